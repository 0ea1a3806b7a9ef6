"""Settings that the cluster and the launcher pass to a process in its environment.

Only this module reads `os.environ` for settings.
"""

import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rekindle_training import names


class EnvironmentIncomplete(RuntimeError):
    """A variable is missing or unreadable. The cluster, or `rekindle-train`, has to set it."""


def has_launcher(source: Mapping[str, str] = os.environ) -> bool:
    """Returns whether `rekindle-train` started this process."""
    return bool(source.get(names.LAUNCHER))


def require_launcher(source: Mapping[str, str] = os.environ) -> None:
    """Raises EnvironmentIncomplete where `rekindle-train` did not start this process, or where a rank did."""
    if multiprocessing.parent_process() is not None:
        raise EnvironmentIncomplete(
            f"this process was made by rank {source.get(names.RANK, '?')} and is none itself: `rekindle-train --nproc-per-node "
            "N` starts the ranks, so leave out what starts them in the script, such as torch.multiprocessing.spawn"
        )
    if not has_launcher(source):
        raise EnvironmentIncomplete(
            "this process was not started by `rekindle-train`, so there is no manager that it could join: start the script with "
            "`rekindle-train`, which takes torchrun's flags, in torchrun's place"
        )


def checkpoint_every(said: int | None, source: Mapping[str, str] = os.environ) -> int | None:
    """Returns the number of steps between two checkpoints, from the script, or else from the environment. None: neither sets it.

    In a drill the environment takes precedence.

    Raises:
        EnvironmentIncomplete: it is no number.
    """
    if said is not None and not source.get(names.DRILL_STEPS):
        return said
    return _number(source, names.CHECKPOINT_EVERY) if source.get(names.CHECKPOINT_EVERY) else said


@dataclass(frozen=True)
class RankEnvironment:
    """Settings of one rank process that `rekindle-train` has started."""

    rank: int
    world_size: int
    ranks_per_pod: int
    master_addr: str
    master_port: int
    role: str
    pod: str
    pod_uid: str
    node: str
    job_dir: Path | None
    job_generation: str
    tamper: str
    process: str
    """Name of this process, unique within the job."""
    own_state: int | None
    """Descriptor of the memory in which the rank leaves the state that only it has. None: there is no such memory."""
    snapshots: int | None = None
    """Descriptor of the memory of snapshots. None: there is no such memory."""
    snapshot_every: int | None = None
    """Steps between two snapshots of shards that one rank alone holds. None: no snapshots are taken."""
    rack: str = ""
    """Rack of the node. Empty: it is not known."""
    pod_memory: int | None = None
    """Descriptor of the memory that the ranks of the pod share. None: they share none."""
    links: tuple[str, ...] = ()
    """Interfaces of the pod's two links; none: it has one link only."""
    trace: Path | None = None
    """Folder for digests of the state after each step; None: none are written."""
    drill_steps: int = 0
    """Step after which a drill ends the script; 0: this is no drill."""

    @property
    def launcher(self) -> str:
        """Name of the launcher that started this process; no other launcher of the job has it."""
        return self.process.partition("/")[0]

    @classmethod
    def read(cls, source: Mapping[str, str] = os.environ) -> "RankEnvironment":
        host, _, port = source.get(names.MANAGER, "").rpartition(":")
        return cls(
            rank=_number(source, names.RANK),
            world_size=_number(source, names.WORLD_SIZE),
            ranks_per_pod=_number(source, names.LOCAL_WORLD_SIZE, default=_number(source, names.WORLD_SIZE)),
            master_addr=host or _text(source, names.MASTER_ADDR),
            master_port=int(port) if port else _number(source, names.MASTER_PORT),
            role=source.get(names.POD_ROLE) or names.WORKER,
            pod=source.get(names.POD_NAME, ""),
            pod_uid=source.get(names.POD_UID, ""),
            node=source.get(names.NODE, ""),
            job_dir=Path(source[names.JOB_DIR]) if source.get(names.JOB_DIR) else None,
            job_generation=source.get(names.JOB_GENERATION) or "0",
            tamper=source.get(names.TAMPER, ""),
            process=_text(source, names.PROCESS),
            own_state=_memory(source, names.OWN_STATE, names.OWN_STATE_MEMORY),
            snapshots=_memory(source, names.SNAPSHOTS, names.SNAPSHOTS_MEMORY),
            snapshot_every=_snapshot_every(source),
            rack=source.get(names.RACK, ""),
            pod_memory=_number(source, names.POD_MEMORY) if source.get(names.POD_MEMORY) else None,
            links=_links(source.get(names.LINKS, "")),
            trace=Path(source[names.TRACE]) if source.get(names.TRACE) else None,
            drill_steps=_number(source, names.DRILL_STEPS, default=0),
        )


@dataclass(frozen=True)
class ManagerEnvironment:
    """Settings of the manager."""

    job_id: str
    """Id of the job. Empty: the gateway finds it by the manager's token and returns it."""
    gateway: str | None
    """Address of the gateway, `host:port`. None: there is no control plane."""
    token_file: Path
    """File of the manager's token. It may be missing."""
    listen_host: str
    listen_port: int
    job_generation: str
    rebuild_timeout: float
    order_timeout: float
    decides_without_orders: bool
    """True if this manager repairs training itself when no order arrives in that time. Otherwise the ranks wait."""
    stress_seconds: int
    """Seconds that each check of a stress test takes."""

    @classmethod
    def read(cls, source: Mapping[str, str] = os.environ, *, standalone: bool = False, port: int = 0) -> "ManagerEnvironment":
        """Reads the settings.

        Args:
            standalone: True if there is no control plane.
            port: port of a standalone manager. 0: any port.
        """
        token_file = Path(source.get(names.TOKEN_FILE) or names.DEFAULT_TOKEN_FILE)
        return cls(
            job_id="standalone" if standalone else _job_id(source, token_file),
            gateway=None if standalone else _gateway(source),
            token_file=token_file,
            listen_host="127.0.0.1" if standalone else "0.0.0.0",  # ranks come from other pods
            listen_port=port if standalone else _number(source, names.MASTER_PORT, default=names.DEFAULT_MASTER_PORT),
            job_generation=source.get(names.JOB_GENERATION) or "0",
            rebuild_timeout=_number(source, names.REBUILD_TIMEOUT, default=60),
            order_timeout=_number(source, names.ORDER_TIMEOUT, default=60),
            decides_without_orders=_one_of(source, names.WITHOUT_ORDERS, names.DECIDE, names.WAIT) == names.DECIDE,
            stress_seconds=_stress_seconds(source),
        )


MOST_STRESS_SECONDS = 120
"""Maximum seconds of one check, so that three checks that time out end within the 15 minutes of a pause."""


def _stress_seconds(source: Mapping[str, str]) -> int:
    seconds = _number(source, names.STRESS_SECONDS, default=10)
    if not 1 <= seconds <= MOST_STRESS_SECONDS:
        raise EnvironmentIncomplete(f"{names.STRESS_SECONDS}={seconds} is not accepted: it is one of 1 to {MOST_STRESS_SECONDS}")
    return seconds


def _gateway(source: Mapping[str, str]) -> str:
    port = _number(source, names.GATEWAY_PORT, default=names.DEFAULT_GATEWAY_PORT)
    return f"{_text(source, names.GATEWAY_HOST)}:{port}"


def _job_id(source: Mapping[str, str], token_file: Path) -> str:
    if not (source.get(names.JOB_ID) or token_file.exists()):
        raise EnvironmentIncomplete(
            f"neither {names.JOB_ID} nor a token says of which job this manager is: there is no file {token_file}. In a cluster "
            "its pod needs a projected service account token with the audience rekindle-gateway mounted there; on one machine, "
            "`rekindle-train --standalone` needs nothing else"
        )
    return source.get(names.JOB_ID, "")


def _text(source: Mapping[str, str], name: str) -> str:
    if not source.get(name):
        raise EnvironmentIncomplete(
            f"{name} is not set: a rank is started by `rekindle-train`, a manager by `rekindle-manager` in a pod of the job; "
            "on one machine, `rekindle-train --standalone` needs nothing else"
        )
    return source[name]


def _snapshot_every(source: Mapping[str, str]) -> int | None:
    if not source.get(names.SNAPSHOT_EVERY):
        return None
    every = _number(source, names.SNAPSHOT_EVERY)
    if every < 1:
        raise EnvironmentIncomplete(
            f"{names.SNAPSHOT_EVERY}={every} is not accepted: it is a number of steps, 1 or more; where it is not set, no "
            "snapshots are taken"
        )
    return every


def _memory(source: Mapping[str, str], name: str, begins: str) -> int | None:
    """Returns the descriptor. None: the process was started by one that did not pass it on."""
    if not source.get(name):
        return None
    descriptor = _number(source, name)
    try:
        opened = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        return descriptor if opened.startswith(f"/memfd:{begins}") else None
    except OSError:
        return None


def _links(said: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in said.split(",")) if said else ()
    if found and (len(found) != 2 or "" in found or found[0] == found[1]):
        raise EnvironmentIncomplete(f"{names.LINKS}={said!r} is not accepted: it is two interfaces, such as eth1,eth2")
    return found


def _one_of(source: Mapping[str, str], name: str, *accepted: str) -> str:
    """Returns the value of a variable. If it is not set, returns the first accepted value."""
    said = source.get(name) or accepted[0]
    if said not in accepted:
        raise EnvironmentIncomplete(f"{name}={said!r} is not accepted: it is one of {', '.join(accepted)}")
    return said


def _number(source: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and not source.get(name):
        return default
    try:
        return int(_text(source, name))
    except ValueError:
        raise EnvironmentIncomplete(f"{name}={source[name]!r} is not a whole number") from None
