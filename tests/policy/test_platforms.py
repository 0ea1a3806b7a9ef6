"""News for platforms of a job's faults and of how it fares."""

import pytest

from rekindle.model.attachment import Attachment
from rekindle.model.elastic import Small
from rekindle.model.fault import EXPECTED_HOLDER, Decided, Fault, FaultKind, FaultType, FaultyRanks
from rekindle.model.job import Job, JobId
from rekindle.model.state import JobState
from rekindle.policy.platforms import Level, Stage, merged, node_faults, view_of
from tests.support.harness import NOW

JOB = Job(id=JobId("job"), name="gpt", pods=2)
ATTACHED = Attachment(queue="gateway/0", session="one", since=NOW)


def fault(kind: FaultKind, node: str = "node-1", **more: object) -> Fault:
    return Fault(id="one", kind=kind, node=node, source="watcher").model_copy(update=more)


def test_each_device_is_named_with_its_codes() -> None:
    """A fault that names several devices is listed for each of them."""
    details = (FaultyRanks(ranks=(3,), type=FaultType.MEMORY, device="1,2", code="80E01801"),)
    more = fault(FaultKind.PROCESS, id="two", details=(details[0].model_copy(update={"device": "2", "code": "8C084E00"}),))
    (node,) = node_faults([fault(FaultKind.PROCESS, details=details, message="memory"), more, fault(FaultKind.SUB_HEALTH)])
    told = [(one.device, one.level, one.codes, one.reasons) for one in node.devices]
    assert (node.node, node.level) == ("node-1", Level.UNHEALTHY)
    assert told == [
        ("", Level.SUB_HEALTHY, (), ()),
        ("1", Level.UNHEALTHY, ("80E01801",), ("memory",)),
        ("2", Level.UNHEALTHY, ("80E01801", "8C084E00"), ("memory",)),
    ]


@pytest.mark.parametrize(
    "one",
    [
        fault(FaultKind.PROCESS, node=""),
        fault(FaultKind.POD),
        fault(FaultKind.SUB_HEALTH, decided=Decided(rule="plain/cordon", saw="cordoned", maintenance=True)),
    ],
    ids=["processes", "a pod", "a node that is to be left"],
)
def test_what_is_no_fault_of_a_node_is_not_told(one: Fault) -> None:
    """A platform would take the node away for it."""
    assert node_faults([one]) == ()


def test_a_node_with_several_jobs_is_told_once() -> None:
    """The fault has all that is known of it."""
    slow, lost = node_faults([fault(FaultKind.SUB_HEALTH, code="a")]), node_faults([fault(FaultKind.NODE, code="b")])
    (node,) = merged([slow, lost, slow])
    (device,) = node.devices
    assert (node.level, device.codes) == (Level.UNHEALTHY, ("a", "b"))


@pytest.mark.parametrize(
    ("state", "stage"),
    [
        (JobState(job=JOB), Stage.PENDING),
        (JobState(job=JOB, holders=("a", ""), small=Small(since=NOW, missing=(1,))), Stage.RUNNING),
        (JobState(job=JOB, attachment=ATTACHED), Stage.RUNNING),
        (JobState(job=JOB, holders=("a", "b")), Stage.RUNNING),
        (JobState(job=JOB, holders=("a", "")), Stage.PENDING),
        (JobState(job=JOB, holders=("a",)), Stage.PENDING),
        (JobState(job=JOB, holders=("a", EXPECTED_HOLDER)), Stage.PENDING),
        (JobState(job=JOB, holders=("a", "b"), ended="the job succeeded"), Stage.COMPLETE),
        (JobState(job=JOB, holders=("a", "b"), ended="the job failed for good: DeadlineExceeded"), Stage.FAILED),
        (JobState(job=JOB, holders=("a", "b"), ended="the job was deleted"), Stage.RUNNING),
    ],
)
def test_a_job_runs_when_each_rank_has_its_pod(state: JobState, stage: Stage) -> None:
    """The end is reported as its controller reports it. A deleted job is reported in its last stage."""
    assert view_of(state).stage is stage
