"""Builds and leaves the default process group of one generation. Called by the session, at its start and at each rebuild."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from rekindle_training.environment import RankEnvironment
from rekindle_training.processor.gate import Join

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def accelerator_module() -> str | None:
    """`torch.<name>` of the accelerator that this process can use, or None."""
    if torch.cuda.is_available():
        return "cuda"
    if hasattr(torch, "npu") and torch.npu.is_available():
        return "npu"
    return None


def _backend() -> str:
    return {None: "gloo", "cuda": "cpu:gloo,cuda:nccl", "npu": "cpu:gloo,npu:hccl"}[accelerator_module()]


def refuse_another() -> None:
    """Raises RuntimeError where the script has made a default process group itself."""
    if dist.is_initialized():
        raise RuntimeError(
            "session(): the default process group is there already; leave `init_process_group` out: the session makes the group, "
            "and makes it anew in each recovery"
        )


def join(environment: RankEnvironment, wish: Join) -> None:
    """Leaves the old generation, if there is one, and meets the other members in the store that the manager holds."""
    if dist.is_initialized():
        dist.destroy_process_group()
    rebuild = wish.rebuild
    store = dist.TCPStore(
        environment.master_addr,
        rebuild.store_port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=rebuild.timeout_seconds),
    )
    dist.init_process_group(
        _backend(),
        store=dist.PrefixStore(rebuild.store_prefix, store),
        rank=environment.rank,
        world_size=rebuild.world_size,
    )


def warm(environment: RankEnvironment) -> None:
    """Pays now, while nobody waits, what the first group and the first backward pass of a process cost."""
    if environment.master_addr in LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(_backend(), store=dist.HashStore(), rank=0, world_size=1)
    dist.barrier()
    dist.destroy_process_group()
    weight = torch.ones(1, requires_grad=True)
    (weight * 2).sum().backward()


def leave() -> None:
    """The normal end: nobody closes a connection that another rank still reads from."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
