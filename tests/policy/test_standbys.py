"""Number of standbys of a job, their replacement, the times of their checks, and their texts."""

from datetime import UTC, datetime, timedelta

import pytest

from rekindle.errors import NotFound
from rekindle.model.attachment import Progress
from rekindle.model.cluster import Condition, Pod, PodPhase
from rekindle.model.fault import FaultKind, FaultReport
from rekindle.model.job import Job, JobId, Trait
from rekindle.model.standby import Standby, Upkeep
from rekindle.model.state import JobState
from rekindle.model.training_side import TrainingSide
from rekindle.policy.detection.sighting import sight
from rekindle.policy.placement import standbys
from tests.support.harness import node_fault, sub_health
from tests.support.job_views import NOW, node, pod, view
from workflows import job_reducers

JOB = Job(id=JobId("uid"), name="demo", pods=2, ranks_per_pod=2, standbys=2)
TRAINS = JobState(job=JOB, progress=Progress(incarnation="life-1", step=1))
THERE = (Standby(name="a", uid="a", node="node-2", runs=True), Standby(name="b", uid="b", node="node-3", runs=True))
RANKS = (pod(0, node="node-0"), pod(1, node="node-1"))
NO_ROOM = "0/4 nodes are available: 4 Insufficient accelerators."


def standby(number: int = 0, *, avoids: tuple[str, ...] = ("node-0", "node-1"), **wishes: object) -> Pod:
    """Returns a standby that runs on node-2."""
    name = f"demo-standby-{number}"
    made = pod(None, name, standby=True, **{"name": name, "node": "node-2", **wishes})
    return made.model_copy(update={"spec": made.spec.model_copy(update={"avoid_nodes": avoids})})


def waiting() -> Pod:
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=NO_ROOM)
    one = standby(node="", phase=PodPhase.PENDING)
    return one.model_copy(update={"status": one.status.model_copy(update={"conditions": (condition,)})})


def seen(state: JobState, *found: Standby) -> JobState:
    return state.with_(standbys=found)


# ---- as the cluster shows them


def test_a_standby_is_no_pod_of_a_rank_whatever_becomes_of_it() -> None:
    """A standby holds no rank and is neither a problem nor a fault. It may run or fail, also on a sub-healthy or lost node."""
    alone = sight(view(*RANKS))
    for one in (standby(), standby(phase=PodPhase.FAILED), standby(node="ill"), standby(generation="7"), waiting()):
        for nodes in ((node(), node("ill", sick="slow")), (node(), node("ill", ready="False"))):
            found = sight(view(*RANKS, one, nodes=nodes))
            assert found.model_copy(update={"standbys": ()}) == alone
            assert [shown.uid for shown in found.standbys] == [one.metadata.uid]


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (standby(phase=PodPhase.FAILED, message="no such image"), "it has ended: no such image"),
        (standby(node="ill"), "its node ill is sub-healthy"),
        (standby(node="lost"), "its node lost is lost"),
        (standby(generation="7"), "all pods of the job have started again"),
        (standby(), ""),
        (waiting(), ""),
    ],
)
def test_what_is_wrong_with_a_standby_is_said_of_it(one: Pod, words: str) -> None:
    """The text of the problem decides that another standby takes its place."""
    (found,) = sight(view(*RANKS, one, nodes=(node("ill", sick="slow"), node("lost", ready="False")))).standbys
    assert found.wrong == words
    assert found.waits == (NO_ROOM if not one.spec.node_name else "")


# ---- which ones stay


def test_missing_standbys_are_made_off_the_nodes_of_the_job() -> None:
    """New standbys have names that no pod has. They avoid the nodes of the job and those that are to be avoided."""
    plan = standbys.plan("demo", [*RANKS, standby(1)], 2, ["ill"])
    assert (plan.new, plan.avoid_nodes) == (["demo-standby-0"], ("ill", "node-0", "node-1"))
    assert plan.model == RANKS[1]
    assert [one.metadata.name for one in plan.stay] == ["demo-standby-1"]


@pytest.mark.parametrize(
    "wrong",
    [
        standby(phase=PodPhase.FAILED),
        standby(phase=PodPhase.SUCCEEDED),
        standby(node="ill"),
        standby(generation="7"),
        standby(node="", phase=PodPhase.PENDING, avoids=("node-9",)),
    ],
)
def test_a_standby_that_is_of_no_use_is_replaced(wrong: Pod) -> None:
    """A standby is of no use if it has ended, is on an unhealthy node, is of another life, or avoids an old list of nodes."""
    plan = standbys.plan("demo", [*RANKS, wrong], 1, ["ill"] if wrong.spec.node_name == "ill" else [])
    assert (plan.end, plan.new) == ([wrong], ["demo-standby-1"])


def test_of_too_many_those_go_first_that_do_not_run() -> None:
    """A standby that is ending already is not counted."""
    found = [standby(0, node="", phase=PodPhase.PENDING), standby(1), standby(2), standby(3, deleted=True)]
    plan = standbys.plan("demo", [*RANKS, *found], 1, [])
    assert [one.metadata.name for one in plan.end] == ["demo-standby-0", "demo-standby-2"]
    assert plan.new == []


def test_a_job_without_a_living_pod_gets_no_standbys_and_may_lose_them() -> None:
    """No pod is left from which a standby could be made."""
    left = [pod(0, phase=PodPhase.FAILED), standby()]
    with pytest.raises(NotFound, match="no pod of the job lives"):
        standbys.plan("demo", left, 1, [])
    assert standbys.plan("demo", left, 0, []).end == [left[1]]


# ---- when


def test_standbys_are_seen_to_when_there_are_too_few_or_too_many() -> None:
    """A standby that is faulty, waits for a node or does not run yet is a reason as well."""
    assert standbys.next_try(seen(TRAINS, *THERE)) is None
    for found in ((), THERE[:1], (*THERE, Standby(name="c", uid="c"))):
        assert standbys.next_try(seen(TRAINS, *found)) == standbys.AT_ONCE
    for change in ({"wrong": "it has ended"}, {"runs": False, "waits": NO_ROOM}, {"runs": False}):
        assert standbys.next_try(seen(TRAINS, THERE[0], THERE[1].model_copy(update=change)))


def test_nothing_is_done_for_standbys_while_the_job_itself_needs_something() -> None:
    """The job comes first before its first step, with a fault, with pods that cannot be distinguished, and at its end. A job that
    is only observed gets no standbys either."""
    faulty = job_reducers.reported(TRAINS, FaultReport(faults=(node_fault("node-1"),)), NOW)
    others = (
        TRAINS.with_(progress=None),
        faulty,
        TRAINS.with_(problems=("two pods of one rank",)),
        TRAINS.with_(ended="the job succeeded"),
        TRAINS.with_(job=JOB.model_copy(update={"observe": True})),
    )
    assert [standbys.next_try(state) for state in others] == [None] * 5


def test_a_sub_health_that_is_ignored_keeps_no_standby_from_coming() -> None:
    """The node of an ignored sub-health is avoided, whatever the policy."""
    state = job_reducers.reported(TRAINS, FaultReport(faults=(sub_health(),)), NOW)
    assert state.faults[0].fault.kind is FaultKind.SUB_HEALTH
    assert standbys.next_try(state)
    assert standbys.to_avoid(state) == ("node-1",)


@pytest.mark.parametrize("job", [{"training_side": TrainingSide.MINDIO}, {"traits": (Trait.NO_STANDBYS,)}])
def test_who_cannot_have_standbys_is_told_so_and_gets_none(job: dict[str, object]) -> None:
    """An event says why; none is ever made, and one that is there goes."""
    state = TRAINS.with_(job=JOB.model_copy(update=job))
    reason, words = standbys.trouble(state)
    assert reason == "StandbysRefused"
    assert "no standbys" in words
    assert standbys.next_try(state) is None
    assert standbys.next_try(seen(state, THERE[0]))
    assert standbys.wanted(state.job) == 0


def test_a_standby_that_fails_again_and_again_is_made_ever_more_rarely() -> None:
    """The pause doubles with each try, up to two hours. It is short again when nothing had to be done for twice as long."""
    upkeep, now, pauses = Upkeep(), datetime(2026, 1, 1, tzinfo=UTC), []
    for _ in range(13):
        upkeep = standbys.tried(upkeep, now)
        again = standbys.next_try(TRAINS.with_(upkeep=upkeep))
        assert again
        pauses.append(again - now)
        now = again + timedelta(seconds=1)
    assert pauses[:3] == [timedelta(seconds=seconds) for seconds in (10, 20, 40)]
    assert pauses[-1] == standbys.LONGEST_PAUSE
    assert standbys.tried(upkeep, now + 2 * standbys.LONGEST_PAUSE).tries == 1


# ---- what people read


def test_people_read_how_many_there_are_and_where() -> None:
    """The text also says what is wrong. A job that wants no standby has none."""
    waits = Standby(name="b", uid="b", waits=NO_ROOM)
    assert standbys.words(seen(TRAINS, *THERE)) == "standbys: 2 of 2 (node-2, node-3)"
    assert standbys.words(seen(TRAINS, THERE[0], waits)) == f"standbys: 1 of 2 (node-2); b: {NO_ROOM}"
    assert standbys.words(JobState(job=JOB.model_copy(update={"standbys": 0}))) == ""


def test_what_is_wrong_becomes_an_event_with_the_words_of_who_said_it() -> None:
    """The event has the text of the source. A lost standby comes before one that waits."""
    lost, waits = Standby(name="a", uid="a", wrong="it has ended: oom"), Standby(name="b", uid="b", waits=NO_ROOM)
    assert standbys.trouble(seen(TRAINS, lost, waits)) == ("StandbyLost", "standby a is replaced: it has ended: oom")
    reason, words = standbys.trouble(seen(TRAINS, waits))
    assert (reason, words) == ("StandbyUnschedulable", f"standby b has no node, training goes on without: {NO_ROOM}")
    assert standbys.trouble(seen(TRAINS, *THERE)) == ("", "")
