"""Environment, job directory and port that a pod of the local cluster finds when it starts."""

import os
import random
import socket
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from rekindle.model import keys
from rekindle.model.cluster import JobObject, Pod
from simulators.local_cluster.options import Options
from workers.training_job_phase import role_of

FOLDERS = ("checkpoints", "steps", "final", "logs")
PORTS = range(20_000, 32_000)
"""Ports for `MASTER_PORT`: below the ephemeral ports of the kernel, which would take a job's port between two pods."""

LOOPBACK = "127.0.0.1"


def job_directory(state_dir: Path, name: str, uid: str) -> Path:
    """Creates the directory of a job (`REKINDLE_JOB_DIR`), and returns its path."""
    directory = state_dir.absolute() / "jobs" / f"{name}-{uid[:8]}"
    for folder in FOLDERS:
        (directory / folder).mkdir(parents=True, exist_ok=True)
    return directory


def log_of(pod: Pod, job: JobObject) -> Path:
    return Path(job.status.directory) / "logs" / f"{pod.metadata.name}.{pod.metadata.uid[:8]}.log"


def free_port(taken: Collection[int]) -> int:
    """Returns a port that is free now and that no job has."""
    for _ in range(1000):
        port = random.choice(PORTS)
        if port not in taken and _is_free(port):
            return port
    raise OSError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def environment_of(pod: Pod, job: JobObject, options: Options, network: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a pod. Later entries win: the cluster's own, the contract's, the node network's, the
    template's."""
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    contract = {
        "PATH": search,
        keys.ENV_JOB_ID: job.metadata.uid,
        keys.ENV_GATEWAY_HOST: options.gateway_host,
        keys.ENV_GATEWAY_PORT: str(options.gateway_port),
        keys.ENV_POD_IP: LOOPBACK,
        keys.ENV_MASTER_ADDR: LOOPBACK,
        keys.ENV_MASTER_PORT: str(job.status.master_port),
        keys.ENV_POD_ROLE: role_of(pod),
        keys.ENV_POD_NAME: pod.metadata.name,
        keys.ENV_NODE: pod.spec.node_name,
        keys.ENV_JOB_DIR: job.status.directory,
        keys.ENV_GENERATION: pod.metadata.labels.get(keys.GENERATION, "0"),
    }
    rank = pod.metadata.annotations.get(keys.RANK_INDEX)
    return {**os.environ, **contract, **network, **({keys.ENV_POD_RANK: rank} if rank else {}), **pod.spec.env}
