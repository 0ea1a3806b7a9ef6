"""Environment of a rank process: torchrun's variables and the address of the manager."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rekindle_training import names
from rekindle_training.launcher.address import LOOPBACK
from rekindle_training.launcher.arguments import Arguments

BEFORE_TORCH = {
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "HCCL_ASYNC_ERROR_HANDLING": "0",
}
"""Variables that torch and gRPC read when they are loaded, and when a group is made.

By default torch's watchdog ends a process in which a collective on the device has failed, so that healthy ranks would end with
a failed one. Torch's warnings of broken connections have a long C++ stack each, and Rekindle logs their consequences. gRPC would
log a line for each worker of a data loader, none of which uses gRPC.
"""


@dataclass(frozen=True)
class Place:
    """Settings that make a process one rank."""

    environment: Mapping[str, str]
    redirects: Mapping[int, Path]


def pod_environment(arguments: Arguments, master_port: int, pod_memory: int, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment that all ranks of the pod share.

    Args:
        pod_memory: descriptor of the memory that they share.
        base: environment of the launcher. The number of threads is only set if it is missing there, as by torchrun.
    """
    added = {
        names.WORLD_SIZE: arguments.world_size,
        names.LOCAL_WORLD_SIZE: arguments.nproc_per_node,
        "GROUP_WORLD_SIZE": arguments.nnodes,
        "ROLE_WORLD_SIZE": arguments.world_size,
        "ROLE_NAME": arguments.role_name,
        names.MASTER_ADDR: arguments.master_addr,
        names.MASTER_PORT: master_port,
        names.MANAGER: f"{arguments.master_addr}:{master_port}",
        names.POD_MEMORY: pod_memory,
        names.LAUNCHER: "rekindle-train",
        "TORCHELASTIC_RUN_ID": arguments.run_id,
        "TORCHELASTIC_MAX_RESTARTS": arguments.max_restarts,
    }
    defaults = {**BEFORE_TORCH}
    if arguments.master_addr in LOOPBACK:
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    known = {**defaults, **base, **{name: str(value) for name, value in added.items()}}
    if arguments.is_standby:
        return {name: value for name, value in known.items() if name not in OF_ONE_POD}
    return {**known, **_of_one_pod(arguments.node_rank, arguments.role)}


def place(arguments: Arguments, local_rank: int, process: str, memories: tuple[int, int], restarts: int) -> Place:
    """Returns the settings of one rank of the pod.

    Args:
        process: the name of the process that becomes this rank.
        memories: descriptors of the memories that outlive the rank's processes: of its own state, and of snapshots.
        restarts: of all ranks together, so far.
    """
    rank = arguments.node_rank * arguments.nproc_per_node + local_rank
    environment = {
        **_of_one_pod(arguments.node_rank, arguments.role),
        **_of_one_rank(rank, local_rank, process, memories, restarts),
    }
    return Place(environment, redirects(arguments, str(rank)))


def _of_one_pod(node_rank: int, role: str) -> dict[str, str]:
    rank = str(node_rank)
    return {"GROUP_RANK": rank, "NODE_RANK": rank, names.POD_RANK: rank, names.POD_ROLE: role}


OF_ONE_POD = frozenset(_of_one_pod(0, ""))
"""Variables that a process of a standby does not have yet, in addition to `OF_ONE_RANK`."""


def _of_one_rank(rank: int, local_rank: int, process: str, memories: tuple[int, int], restarts: int) -> dict[str, str]:
    environment = {
        names.RANK: rank,
        names.LOCAL_RANK: local_rank,
        "ROLE_RANK": rank,
        names.PROCESS: process,
        names.OWN_STATE: memories[0],
        names.SNAPSHOTS: memories[1],
        "TORCHELASTIC_RESTART_COUNT": restarts,
    }
    return {name: str(value) for name, value in environment.items()}


OF_ONE_RANK = frozenset(_of_one_rank(0, 0, "", (0, 0), 0))
"""Variables that a process which may become any rank of the pod does not have yet."""


def redirects(arguments: Arguments, name: str) -> dict[int, Path]:
    """Returns the log files of a process, by the descriptor that is redirected."""
    if arguments.log_dir is None:
        return {}
    folder = arguments.log_dir / arguments.run_id / name
    files = {1: folder / "stdout.log", 2: folder / "stderr.log"}
    return {descriptor: path for descriptor, path in files.items() if arguments.redirects & descriptor}
