"""Largest values of device checks."""

from rekindle.model import stress as stress_values
from rekindle.model.job import Job
from rekindle.model.stress import MOST_TESTED_NODES, OpResult, RankOps, StressRequest, StressResults
from rekindle.policy.detection.devices import DeviceOfRank
from rekindle.policy.modes.requests import MOST_OPS
from rekindle.policy.operations import device_checks
from tests.workflows.support.largest.common import TEXT, a_name

STRESS = StressRequest(nodes={a_name(number): tuple(range(MOST_OPS)) for number in range(MOST_TESTED_NODES)})


def asked_of(job: Job) -> tuple[RankOps, ...]:
    """Returns the requested checks, which differ between neighbouring ranks."""
    return tuple(RankOps(ops=(0, 1, 2)[: 3 - half], ranks=tuple(range(half, job.ranks, 2))) for half in (0, 1))


def results_of(job: Job) -> StressResults:
    """Returns the results of all ranks: every second one has a fault, and all have long texts."""
    codes = {0: "2", 1: "0"}
    said = {
        str(rank): dict.fromkeys(("aic", "hccs", "memory"), OpResult(code=codes[rank % 2], result=TEXT))
        for rank in range(job.ranks)
    }
    return device_checks.told(said, job.ranks)


def findings_of(job: Job) -> stress_values.Tested:
    devices = [
        DeviceOfRank(rank, rank // job.ranks_per_pod, a_name(rank // job.ranks_per_pod), "0", "u") for rank in range(job.ranks)
    ]
    found = device_checks.tested(results_of(job), dict.fromkeys(range(job.ranks), (0, 1, 2)), devices)
    return found.model_copy(update={"failed": TEXT})
