"""Decides whether training can go on with another number of ranks. The reasons against it are reported to the manager."""

import torch

from rekindle_training.adapter.boundary import Boundary
from rekindle_training.adapter.data_parallel import STATIC, UNWRAPPED
from rekindle_training.adapter.rank import Rank


def fixed_size(rank: Rank, boundary: Boundary) -> str:
    """Returns why the number of ranks cannot change. Empty: it can."""
    trained, communicator = rank.trained, rank.communicator
    misuse = rank.wrappers.sums.misuse if rank.wrappers.sums is not None else ""
    modules = [module for root in trained.modules for module in root.modules()]
    whole = rank.whole_replicas
    own_groups = communicator.own_groups(whole.groups if whole is not None else ())
    reasons = {
        "its data are not divided into shares: session(data=rekindle_training.shares(make_loader))": rank.shares is None,
        rank.fixed_by_shards: bool(rank.fixed_by_shards),
        "ranks hold different parts of what is trained": bool(rank.replicas) and whole is None,
        "session(after_update): ranks send each other their updates": rank.after_update is not None,
        "session(checkpoints): all ranks together write them": rank.keeps_own_checkpoints,
        f"the script has made {own_groups} process groups of its own": own_groups > 0,
        "no model is wrapped in DistributedDataParallel over the default process group": not rank.wrappers.count
        and whole is None,
        "a model is wrapped in DistributedDataParallel beside one that is sharded": rank.wrappers.count > 0 and whole is not None,
        STATIC: rank.wrappers.has_static_graph,
        "SyncBatchNorm needs the batches of all ranks at once": any(
            isinstance(module, torch.nn.SyncBatchNorm) for module in modules
        ),
        UNWRAPPED: whole is None and trained.updates_others_than(rank.wrappers.parameters),
        misuse: bool(misuse),
        "gradients are gathered over several steps: put all passes of one update into one `with step:`": boundary.gathers,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
