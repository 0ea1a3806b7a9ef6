"""The environment of a rank process: torchrun's variables, and where the manager is."""

from collections.abc import Mapping

from rekindle_training import names
from rekindle_training.launcher.arguments import Arguments

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def rank_environment(arguments: Arguments, local_rank: int, master_port: int, base: Mapping[str, str]) -> dict[str, str]:
    """`base` is the launcher's own environment; torchrun, too, sets the number of threads only where nobody has."""
    added = {
        names.RANK: arguments.node_rank * arguments.nproc_per_node + local_rank,
        names.LOCAL_RANK: local_rank,
        names.WORLD_SIZE: arguments.world_size,
        names.LOCAL_WORLD_SIZE: arguments.nproc_per_node,
        "GROUP_RANK": arguments.node_rank,
        "GROUP_WORLD_SIZE": arguments.nnodes,
        "NODE_RANK": arguments.node_rank,
        "ROLE_RANK": arguments.node_rank * arguments.nproc_per_node + local_rank,
        "ROLE_WORLD_SIZE": arguments.world_size,
        "ROLE_NAME": "default",
        names.MASTER_ADDR: arguments.master_addr,
        names.MASTER_PORT: master_port,
        names.LAUNCHER: "rekindle-train",
        "TORCHELASTIC_RUN_ID": arguments.run_id,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    defaults = {"OMP_NUM_THREADS": "1"}
    if arguments.master_addr in LOOPBACK:
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    return {**defaults, **base, **{name: str(value) for name, value in added.items()}}
