"""Times at which a failed attempt to leave a node is repeated."""

from datetime import UTC, datetime, timedelta

import pytest

from rekindle.model.fault import WATCHER, Decided, Fault, FaultKind
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import Drain, Job, JobId, SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState, Pending, Standing
from rekindle.model.verdict import Verdict
from rekindle.policy.drain.drain_verdicts import MOST_RARELY, WAITS, WENT_BACK, again_at, decided, is_told, waited
from rekindle.policy.modes import cases
from rekindle.policy.placement import avoided_nodes

NOW = datetime(2020, 2, 20, 20, 20, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
JOB = Job(id=JobId("job"), name="gpt", pods=4, sub_health=SubHealthStrategy.HOT_SWITCH)
NO_SPARE, PAUSED = f"{WAITS}: no spare", f"{WAITS}: {WENT_BACK}: exit code 1"


def tried(reason: str, since: datetime, summary: str = "s") -> Incident:
    """Returns an attempt that takes a minute."""
    verdict = Verdict(mode=Mode.HOT_SWITCH, outcome=Outcome.IGNORED, reason=reason)
    policy, seconds, ended = SubHealthStrategy.HOT_SWITCH, MINUTE.total_seconds(), Outcome.IGNORED
    return Incident(
        number=1, summary=summary, started_at=since, seconds=seconds, verdict=ended, ladder=(verdict,), policy_after=policy
    )


def a_case(pod_rank: int, node: str) -> cases.Case:
    decided = Decided(rule="plain/cordoned", saw="cordoned", maintenance=True)
    fault = Fault(
        id=f"c/{pod_rank}",
        kind=FaultKind.SUB_HEALTH,
        pod_ranks=(pod_rank,),
        node=node,
        code="Cordoned",
        message=f"node {node} is cordoned"[:160],
        source=WATCHER,
        decided=decided,
        accepted_at=NOW,
    )
    found = cases.next_case(JobState.of(JOB).with_(faults=(Standing(fault=fault),)), NOW)
    assert found
    return found


@pytest.mark.parametrize(
    ("reasons", "waits"),
    [
        ([NO_SPARE] * 4, [1, 1, 1, 1]),
        ([PAUSED] * 8, [1, 2, 4, 8, 16, 30, 30, 30]),
        ([NO_SPARE, NO_SPARE, PAUSED, PAUSED, NO_SPARE, PAUSED], [1, 1, 1, 2, 1, 1]),
    ],
)
def test_what_costs_a_pause_is_tried_ever_more_rarely(reasons: list[str], waits: list[int]) -> None:
    """A wait for a free node costs training nothing, and is as short each time."""
    job = Job(id=JobId("job"), name="gpt", pods=1)
    now, found = NOW, []
    before: Incident | None = None
    for reason in reasons:
        incident = tried(reason, now)
        now = again_at(job, before, incident)
        found.append((now - incident.started_at) / MINUTE - 1)
        before = incident
    assert found == waits


def test_the_owner_of_a_job_may_have_it_tried_more_often_or_more_rarely() -> None:
    """A limit of the job sets the wait, also where it is longer than our longest one."""
    for limit in (timedelta(seconds=2), 2 * MOST_RARELY):
        job = Job(id=JobId("job"), name="gpt", pods=1, limits=Limits(drain_again=limit))
        assert again_at(job, tried(PAUSED, NOW), tried(PAUSED, NOW + MINUTE)) == NOW + 2 * MINUTE + limit


@pytest.mark.parametrize("node", ["node-1", "a" * 253], ids=["short", "long"])
def test_two_pods_of_one_node_wait_each_by_itself(node: str) -> None:
    """The tries of the one are none of the other: each has its event and its own pace. Its own one is found however many are
    between, and however long the name of its node is."""
    first, second = a_case(1, node), a_case(2, node)
    history = (tried(PAUSED, NOW, first.summary), tried(PAUSED, NOW + MINUTE, second.summary))
    assert waited(history[:1], second) is None
    assert (waited(history, first), waited(history, second)) == history


def test_a_node_that_is_drained_again_is_another_wait() -> None:
    """The owner is notified of the new drain, and its attempts do not wait as long as those of the last one."""
    case = a_case(1, "node-1")
    assert waited([tried(PAUSED, NOW - MINUTE, case.summary)], case) is None


def test_who_drains_a_node_for_long_is_told_again_why_it_waits() -> None:
    """Kubernetes forgets an event after an hour."""
    case, told = a_case(1, "node-1"), 0
    before: Incident | None = None
    for minute in range(0, 24 * 60, 2):
        now = NOW + minute * MINUTE
        told += is_told(case, before, now)
        before = tried(NO_SPARE, now, case.summary)
    assert told == 48


@pytest.mark.parametrize("drain", list(Drain))
def test_a_hot_switch_that_a_person_asks_for_ends_as_it_ended(drain: Drain) -> None:
    """A requested hot switch lowers no policy and leads to no restart, whatever the drain of the job says."""
    found = a_case(1, "node-1")
    asked = found.model_copy(update={"request": Pending(id="r", request=ModeRequest(mode=Mode.HOT_SWITCH, pod_rank=1))})
    state = JobState.of(JOB.model_copy(update={"drain": drain})).with_(
        faults=tuple(Standing(fault=fault) for fault in found.faults)
    )
    ended = Verdict(mode=Mode.HOT_SWITCH, outcome=Outcome.IGNORED, reason="no spare", policy_after=SubHealthStrategy.IGNORE)
    assert decided(asked, state, NOW, ended) == ended.with_(policy_after=None)
    assert (decided(found, state, NOW, ended).outcome is Outcome.ESCALATE) == (drain is Drain.RESCHEDULE)


def test_the_pods_of_a_restart_may_be_put_on_a_cordoned_node() -> None:
    """A node that was cordoned is not avoided, since the nodes to avoid are fixed when pods are created. A tainted node is
    avoided."""
    (fault,) = a_case(1, "node-1").faults
    assert avoided_nodes.to_avoid([fault], JOB.sub_health) == ()
    assert fault.decided
    tainted = fault.model_copy(update={"decided": fault.decided.model_copy(update={"saw": "taint"})})
    assert avoided_nodes.to_avoid([tainted], JOB.sub_health) == ("node-1",)
