"""State of the pods on a node that a person drains."""

from datetime import UTC, datetime
from typing import Any

import pytest

from rekindle.model.attachment import Attachment, Progress
from rekindle.model.cluster import JobObject, JobSpec, Node, NodeStatus, ObjectMeta, PodTemplate
from rekindle.model.draining import Where
from rekindle.model.explained import PodThere, There
from rekindle.model.fault import WATCHER, Decided, Fault, FaultKind
from rekindle.model.incident import Incident
from rekindle.model.job import Drain, Job, JobId, SubHealthStrategy
from rekindle.model.keys import HEALTH, IGNORE_RULES, SUB_HEALTHY_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.model.mode import Mode, Outcome
from rekindle.model.rule_file import parse, plain
from rekindle.model.situation import PodRef, Switched
from rekindle.model.state import JobState, JobStatus, Standing
from rekindle.model.verdict import Verdict
from rekindle.policy.detection.node_report import there
from rekindle.policy.drain import node_progress

NOW = datetime(2020, 2, 20, 20, 20, tzinfo=UTC)
JOB = Job(id=JobId("job"), name="gpt", pods=2, sub_health=SubHealthStrategy.HOT_SWITCH)
RANK_1, MANAGER, UNREGISTERED = (
    PodThere(job_id="job", name="gpt-worker-1", uid="uid-of-one", pod_rank=1),
    PodThere(job_id="job", name="gpt-manager", uid="uid-of-manager"),
    PodThere(job_id="other", name="web", uid="uid-of-web", pod_rank=0),
)
THERE = There(cordoned=True, rule="plain/cordoned", pods=(RANK_1, MANAGER))


def status(job: Job = JOB, running: Mode | None = None, **changes: Any) -> JobStatus:
    known = {"holders": ("uid-of-n", "uid-of-o"), "attachment": Attachment(queue="q", session="s", since=NOW)}
    progress = Progress(incarnation="i", step=1)
    state = JobState.of(job).with_(progress=progress, **{**known, **changes})
    return JobStatus(state=state, running=running, recovery="recovery/1" if running else "")


def cordoned(judged: str = "", settle: float = 0.0) -> tuple[Standing, ...]:
    decided = Decided(rule="plain/cordoned", saw="cordoned", maintenance=True, settle=settle)
    fault = Fault(id="c", kind=FaultKind.SUB_HEALTH, pod_ranks=(1,), node="node-1", source=WATCHER, decided=decided)
    return (Standing(fault=fault, judged=judged),)


def moved(**changes: Any) -> tuple[Incident, ...]:
    pods = [PodRef(name="gpt-worker-1", uid=uid, node=node) for uid, node in (("uid-of-one", "node-1"), ("uid-of-two", "node-2"))]
    switched = (Switched(pod_rank=1, before=pods[0], after=pods[1]),)
    verdict = Verdict(mode=Mode.HOT_SWITCH, outcome=Outcome.RECOVERED, reason="moved", steps_lost=0, switched=switched)
    ladder = (verdict.with_(**changes),)
    return (
        Incident(
            number=1,
            summary="cordoned",
            started_at=NOW,
            seconds=1.0,
            verdict=Outcome.RECOVERED,
            ladder=ladder,
            policy_after=SubHealthStrategy.HOT_SWITCH,
        ),
    )


@pytest.mark.parametrize(
    ("known", "where", "why"),
    [
        (status(), Where.MOVES, "by a hot switch; where no node is free for it, it waits and is tried again"),
        (status(JOB.model_copy(update={"drain": Drain.RESCHEDULE})), Where.MOVES, "restart, from its last checkpoint"),
        (status(JOB.model_copy(update={"drain": Drain.LET_GO})), Where.MOVES, "it stays until it is evicted"),
        (status(running=Mode.LINK_SWITCH), Where.MOVES, "when the link switch that runs has ended, by a hot switch"),
        (status(attachment=None), Where.WAITS, "the training side is not attached"),
        (status(problems=("two pods",)), Where.WAITS, "the job cannot be recovered as it is: two pods"),
        (status(holders=("uid-of-n", "another1")), Where.MOVES, "it does not hold its pod rank"),
        (status(JOB.model_copy(update={"framework": "tensorflow"})), Where.STAYS, "framework tensorflow is not supported"),
        (status(ended="deleted"), Where.OVER, "its job has ended: deleted"),
    ],
)
def test_what_would_become_of_a_pod_is_said_before_anything_is_touched(known: JobStatus, where: Where, why: str) -> None:
    """A pod that would stay for good refuses the drain, one that can only not move now does not."""
    would = node_progress.forecast("node-1", THERE, {"job": known})
    ours, manager = would.rows
    assert (ours.where, why in ours.why) == (where, True), ours
    assert manager.where is (Where.OVER if known.state.ended else Where.NO_RANK)
    assert bool(would.refused) is (where is Where.STAYS)


@pytest.mark.parametrize(
    ("known", "where", "why"),
    [
        (status(), Where.MOVES, "it is not begun yet"),
        (status(faults=cordoned(settle=86_400.0)), Where.MOVES, "it is not begun yet: it counts when it has lasted 86400 s"),
        (status(running=Mode.HOT_SWITCH, faults=cordoned()), Where.MOVES, "hot switch runs"),
        (status(faults=cordoned("ignored: no spare")), Where.WAITS, "ignored: no spare"),
        (status(JOB.model_copy(update={"drain": Drain.LET_GO}), faults=cordoned("no spare")), Where.STAYS, "from being evicted"),
        (status(faults=cordoned("cancelled: cancelled by request, before training paused")), Where.STAYS, "is uncordoned and"),
        (status(holders=("uid-of-n", "*")), Where.MOVES, "its rank gets another pod"),
        (status(holders=("uid-of-n", "uid-of-t"), history=moved()), Where.MOVED, "to node-2 by a hot switch, steps lost: 0"),
        (
            status(holders=("uid-of-n", "uid-of-t"), history=moved(switched=(), restarted_at=NOW, mode=Mode.JOB_RESCHEDULING)),
            Where.MOVED,
            "by a job rescheduling, from the last checkpoint",
        ),
    ],
)
def test_what_has_become_of_a_pod_is_told_by_who_holds_its_rank(known: JobStatus, where: Where, why: str) -> None:
    """The state of a pod follows from the holder of its rank and from the decision about its node."""
    (ours, _) = node_progress.progress("node-1", THERE, {"job": known}).rows
    assert (ours.where, why in ours.why) == (where, True), ours


def test_a_node_is_left_when_the_cluster_shows_nothing_of_a_rank() -> None:
    """The node is not left while the old pod ends there, nor when another pod of the job came. A manager is not waited for."""
    jobs = {"job": status(holders=("uid-of-n", "uid-of-t"), history=moved())}
    assert not node_progress.progress("node-1", THERE, jobs).drained
    still = node_progress.progress("node-1", THERE, jobs, THERE)
    assert (still.drained, still.rows[0].where, still.rows[0].why) == (False, Where.MOVES, node_progress.ANOTHERS_RANK)
    gone = THERE.model_copy(update={"pods": (MANAGER,)})
    known = node_progress.met(THERE, gone, jobs)
    assert len(known.pods) == 2
    assert node_progress.progress("node-1", known, jobs, gone).drained
    new = PodThere(job_id="job", name="gpt-worker-1-hot", uid="uid-of-two", pod_rank=1)
    came = THERE.model_copy(update={"pods": (MANAGER, new)})
    assert not node_progress.progress("node-1", node_progress.met(THERE, came, jobs), jobs, came).drained


def test_of_a_node_that_is_cordoned_already_it_is_said_what_was_decided() -> None:
    """The forecast has the decision, and not what would be tried as for a node that is not cordoned."""
    jobs = {"job": status(faults=cordoned("ignored: the drain waits: no spare"))}
    now = node_progress.forecast("node-1", THERE, jobs).rows[0]
    assert (now.where, now.why) == (Where.WAITS, "ignored: the drain waits: no spare")
    there = THERE.model_copy(update={"cordoned": False})
    assert node_progress.forecast("node-1", there, jobs).rows[0].where is Where.MOVES


def test_a_node_that_a_person_calls_well_is_drained_all_the_same() -> None:
    """A node that is called well is drained, as `kubectl drain` does. The drain is refused where a cordon is no maintenance by
    the rules."""
    status = NodeStatus(accelerators=8)
    node = Node(metadata=ObjectMeta(name="node-1", annotations={HEALTH: "well: it was the cable"}), status=status)
    assert (there(node, (), plain()).rule, there(node, (), plain()).refused) == ("plain/cordoned", "")
    own = "apiVersion: rekindle.io/v1\nkind: Rules\nspec:\n  rules: [{name: slow, cordoned: true, then: sub-health}]\n"
    assert "silences rule slow" in there(node, (), parse(own)).refused


def test_a_rank_of_a_job_that_is_not_registered_is_no_drained_node() -> None:
    """A pod of an unregistered job is shown and waited for: the node is not drained while the pod trains there."""
    there = There(cordoned=True, rule="plain/cordoned", pods=(UNREGISTERED,))
    now = node_progress.progress("node-1", there, {}, there)
    assert (now.drained, [row.where for row in now.rows]) == (False, [Where.WAITS])
    assert not node_progress.forecast("node-1", there, {}).refused
    left = there.model_copy(update={"pods": ()})
    assert node_progress.progress("node-1", node_progress.met(there, left, {}), {}, left).drained


@pytest.mark.parametrize("known", [status(holders=("uid-of-n", "*")), status(faults=cordoned("ignored: no spare"))])
def test_a_pod_that_the_cluster_does_not_show_any_more_has_left(known: JobStatus) -> None:
    """A rank that waits for a node has left its old one, as in a job that restarts without it. The node may be maintained."""
    gone = THERE.model_copy(update={"pods": (MANAGER,)})
    now = node_progress.progress("node-1", THERE, {"job": known}, gone)
    assert (now.drained, now.rows[0].where) == (True, Where.MOVED)


def test_a_job_that_ignores_cordons_by_its_object_refuses_the_drain() -> None:
    """The annotation did not reach the job's workflow: the node was cordoned, and its ranks were waited for that never left."""
    marks = {SUB_HEALTHY_STRATEGY: "hotSwitch"}, {IGNORE_RULES: "nvidia/throttled, plain/cordoned"}
    metadata = ObjectMeta(name="gpt", uid="job", labels=marks[0], annotations=marks[1])
    found = JobObject(metadata=metadata, spec=JobSpec(pods=2, ranks_per_pod=1, template=PodTemplate(command=("x",))))
    assert node_progress.forecast("node-1", THERE, {"job": status(job_of(found, Limits()))}).rows[0].where is Where.STAYS
