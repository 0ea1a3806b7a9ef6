"""Manager of the job, as `manager.py` of the published recipe starts it."""

import logging
import os
from collections.abc import Mapping
from typing import Any

from rekindle_training.manager import main

log = logging.getLogger(__name__)

JOB, GATEWAY = "MINDX_TASK_ID", "MINDX_SERVER_IP"
"""Variables that name the job and the control plane, which the Ascend Operator sets."""
KNOWN = ("job_id", "node_nums", "proc_per_node")

_arguments: list[str] = []


def init_taskd_manager(config: Mapping[str, Any]) -> bool:
    """Prepares the manager.

    Args:
        config: `node_nums` and `proc_per_node`, positive integers, and `job_id`. Other keys are left out, with a log message.

    Returns:
        True.

    Raises:
        ValueError: a value is missing or wrong. The message names it, and what is accepted.
    """
    sizes = [_positive(config, name) for name in ("node_nums", "proc_per_node")]
    job = config.get("job_id") or os.environ.get(JOB, "")
    if not isinstance(job, str) or not job:
        raise ValueError(f"init_taskd_manager: job_id is {job!r}, accepted is the UID of the job, as in {JOB}")
    if os.environ.setdefault(JOB, job) != job:
        raise ValueError(f"init_taskd_manager: job_id is {job!r}, and {JOB} is {os.environ[JOB]!r}: they are the same job")
    if left_out := sorted(map(str, set(config) - set(KNOWN))):
        log.warning("taskd: settings of the manager left out: %s", ", ".join(left_out))
    _arguments[:] = ["--nnodes", str(sizes[0]), "--nproc-per-node", str(sizes[1])]
    return True


def start_taskd_manager() -> bool:
    """Runs the manager until training is complete. Returns whether it is.

    Raises:
        RuntimeError: `init_taskd_manager` was not called.
    """
    if not _arguments:
        raise RuntimeError("start_taskd_manager: init_taskd_manager comes first")
    return main.main(_arguments) == 0


def _positive(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"init_taskd_manager: {name} is {value!r}, accepted is an integer of 1 or more")
    return value
