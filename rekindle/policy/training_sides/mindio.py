"""MindIO with TaskD, the training side of jobs on Ascend clusters. Sources: the wire contract, and tries with the real one."""

from datetime import timedelta

from rekindle.model.dialogue import Strategy
from rekindle.model.job import Capability, Job, SubHealthStrategy, Trait
from rekindle.model.keys import PROCESS_RECOVER_ENABLE, RECOVER_STRATEGY
from rekindle.model.stress import Op
from rekindle.policy.training_sides.row import Readiness, TrainingSideRow

TRY_AGAIN = 405
"""Code with which it accepts another strategy, after the faults are announced again. Source: tried with the real one."""

SAVE_AND_END = 406
"""Code with which it accepts only `dump`, under the same uuid. Source: tried with the real one."""


def _single_operator(job: Job, pod_rank: int, ready: Readiness) -> str:
    return "" if job.can(Capability.SINGLE_OPERATOR) else "MindIO needs single-operator mode (capability single_operator)"


def _megatron(job: Job, pod_rank: int, ready: Readiness) -> str:
    return "" if job.can(Capability.MEGATRON) else "MindIO needs a Megatron-based model (capability megatron)"


def _kind(job: Job, pod_rank: int, ready: Readiness) -> str:
    return "" if job.has(Trait.CONTROLLER_RECREATES) else f"MindIO needs an AscendJob, this job is a {job.kind}"


def _usually_allows(job: Job, strategy: str) -> bool:
    """Returns whether the Ascend Operator prepares its processes for this strategy: it does so for a hot switch. Source: the
    Kubernetes contract."""
    return job.sub_health is SubHealthStrategy.HOT_SWITCH and strategy == Strategy.RECOVER


def _registers(job: Job) -> bool:
    """Returns whether processes are recovered. Where strategies are named, the Ascend Operator labels the PodGroup only."""
    said = job.labels.get(PROCESS_RECOVER_ENABLE, "on" if RECOVER_STRATEGY in job.annotations else "")
    return said == "on" or job.sub_health is SubHealthStrategy.HOT_SWITCH


MINDIO = TrainingSideRow(
    label="MindIO",
    keeps_every_order=False,
    repeats_reports=False,
    waits_for_orders=False,
    successor_continues=False,
    reports_its_steps=False,
    # Its manager takes one order in 100 ms or more, and keeps only the newest. Source: tried, on a busy machine.
    pace=timedelta(seconds=1),
    # Source: ClusterD.
    routes_settle=timedelta(seconds=3),
    acts_unasked=False,
    pods_leave=True,
    devices_settle=True,
    controller_recreates=True,
    usually_allows=_usually_allows,
    registers=_registers,
    accepts_another=lambda code: code == TRY_AGAIN,
    checks=(_single_operator, _megatron, _kind),
    still_saves=lambda code: code == SAVE_AND_END,
    fences_old_processes=False,
    takes_backups=True,
    hears_of_backups=False,
    survives_stop=False,
    reports_its_fault=False,
    goes_on_by_itself=False,
    holds_agents=True,
    ops=(Op.COMPUTE, Op.MESSAGES),
    returns_at_once=True,
    has_tracing=True,
    no_standbys="a MindIO job has no standbys: its processes are started for their ranks",
)
