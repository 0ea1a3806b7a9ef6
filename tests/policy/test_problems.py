"""Pods that no recovery could tell apart: found, told when that changes, and waited for."""

from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model import keys
from rekindle.model.cluster import (
    Condition,
    JobObject,
    JobSpec,
    JobView,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodPhase,
    PodSpec,
    PodStatus,
)
from rekindle.model.cluster import PodTemplate as Template
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.recovery import Mode, ModeRequest
from rekindle.model.state import JobState
from rekindle.policy import incidents, requests
from rekindle.policy.intake import Tell, TellKind, Told, after, due, observe
from rekindle.policy.ranks import MORE_PROBLEMS, TOLD_PROBLEMS, problems

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REGISTERED = Told(known=True, registered=True)


def pod(name: str, rank: str | None, **wishes: Any) -> Pod:
    """A running pod; `rank` as it is written."""
    annotations = {keys.RANK_INDEX: rank} if rank is not None else {}
    if wishes.get("backup"):
        annotations[keys.POD_TYPE] = "backup"
    labels = {keys.REPLICA_TYPE: wishes.get("replica_type", "worker")}
    deleted = NOW if wishes.get("deleted") else None
    return Pod(
        metadata=ObjectMeta(name=name, uid=f"uid-{name}", labels=labels, annotations=annotations, deletion_timestamp=deleted),
        spec=PodSpec(command=("train",), node_name=wishes.get("node", "node-0")),
        status=PodStatus(phase=wishes.get("phase", PodPhase.RUNNING)),
    )


def view(*pods: Pod, pods_of_job: int = 4, observed: bool = False, nodes: tuple[Node, ...] = ()) -> JobView:
    spec = JobSpec(pods=pods_of_job, ranks_per_pod=2, template=Template(command=("train",)))
    return JobView(job=JobObject(metadata=ObjectMeta(name="gpt", uid="job"), spec=spec, observe=observed), pods=pods, nodes=nodes)


IN_ORDER = tuple(pod(f"gpt-{rank}", str(rank)) for rank in range(4))


# ---- what is a problem


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (pod("x", None), f"pod x carries no rank: expected annotation {keys.RANK_INDEX}"),
        (pod("x", None), "with a number from 0 to 3"),
        (pod("x", ""), "pod x carries no rank"),
        (pod("x", "one"), "pod rank 'one' of pod x is not a number from 0 to 3"),
        (pod("x", "-1"), "pod rank '-1' of pod x is not a number from 0 to 3"),
        (pod("x", "9" * 5000), f"pod rank '{'9' * 40}' of pod x is not a number from 0 to 3"),
        (pod("x", "7"), "pod rank 7 of pod x is outside 0 to 3"),
        (pod("x", "7", phase=PodPhase.PENDING), "pod rank 7 of pod x is outside 0 to 3"),
        (pod("gpt-1b", "1"), "pods gpt-1 and gpt-1b both carry pod rank 1"),
        (pod("gpt-1b", "01"), "pods gpt-1 and gpt-1b both carry pod rank 1"),
    ],
)
def test_a_pod_that_is_not_the_one_pod_of_its_rank_is_a_problem(wrong: Pod, words: str) -> None:
    """The line names pod, rank and what is expected; pods in order are no problem."""
    assert problems(view(*IN_ORDER)) == ()
    (line,) = problems(view(*IN_ORDER, wrong))
    assert words in line


@pytest.mark.parametrize("names", [3, 5])
def test_many_pods_of_one_rank_are_one_problem(names: int) -> None:
    """The first three are named."""
    (line,) = problems(view(*(pod(f"p{i}", "1") for i in range(names))))
    assert line == f"pods p0, p1, p2{' and 2 more' if names == 5 else ''} all carry pod rank 1"


@pytest.mark.parametrize(
    "innocent",
    [
        pod("gpt-1-hot-0001", "1", backup=True),
        pod("gpt-1-old", "1", deleted=True),
        pod("gpt-1-old", "1", phase=PodPhase.FAILED),
        pod("gpt-1-old", "1", phase=PodPhase.SUCCEEDED),
        pod("gpt-manager-0", None, replica_type="manager"),
        pod("gpt-manager-0", None, replica_type="Manager"),
        pod("gpt-scheduler-0", None, replica_type="Scheduler"),
        pod("gpt-new", None, phase=PodPhase.PENDING, node=""),
    ],
    ids=lambda innocent: f"{innocent.metadata.name} {innocent.status.phase}",
)
def test_what_passes_by_itself_is_no_problem(innocent: Pod) -> None:
    """A backup beside the old pod, a pod that ends, one whose rank is still to be written, and pods without ranks by nature."""
    assert problems(view(*IN_ORDER, innocent)) == ()


PODS = st.builds(
    pod,
    st.sampled_from([f"p{number}" for number in range(40)]),
    st.sampled_from([None, "", "0", "1", "7", "x"]),
    phase=st.sampled_from(PodPhase),
    backup=st.booleans(),
    deleted=st.booleans(),
)


@given(st.lists(PODS, max_size=40, unique_by=lambda one: one.metadata.name), st.randoms())
def test_problems_do_not_depend_on_the_order_in_which_pods_are_listed(pods: list[Pod], random: Any) -> None:
    """They are told when they change, so a list in another order must not be a change; and there are never too many to tell."""
    found = problems(view(*pods))
    shuffled = list(pods)
    random.shuffle(shuffled)
    assert problems(view(*shuffled)) == found
    assert len(found) <= TOLD_PROBLEMS + 1
    assert (len(found) > TOLD_PROBLEMS) == (MORE_PROBLEMS in found)


# ---- when it is told


def tell_all(told: Told, seen: JobView) -> tuple[Told, list[Tell]]:
    told, tells = observe(told, seen), []
    while waiting := due(told, seen, NOW):
        tells.append(waiting[0])
        told = after(told, waiting[0], seen)
    return told, tells


WRONG = view(*IN_ORDER, pod("x", "7"))
RIGHT = view(*IN_ORDER, pod("x", "7", deleted=True))


def test_problems_are_told_when_they_change_and_not_again() -> None:
    """All of them each time, and none when they are over; what comes again is another update."""
    told = REGISTERED
    ids: list[str] = []
    for seen in (WRONG, WRONG, RIGHT, RIGHT, WRONG):
        told, tells = tell_all(told, seen)
        assert all(tell.problems == problems(seen) for tell in tells)
        ids.extend(tell.update_id for tell in tells)
    assert len(ids) == len(set(ids)) == 3


def test_a_repeated_tell_is_the_same_update() -> None:
    """It may have been carried out although nobody said so."""
    told = observe(REGISTERED, WRONG)
    (first,), (again,) = due(told, WRONG, NOW), due(observe(told, WRONG), WRONG, NOW)
    assert first == again
    assert first.kind is TellKind.PROBLEMS
    assert first.reason == "pod rank 7 of pod x is outside 0 to 3"


def test_what_was_over_before_anybody_confirmed_it_is_taken_back() -> None:
    """A tell without an answer may be carried out yet: that the problem is over is told as well."""
    told = observe(observe(REGISTERED, WRONG), RIGHT)
    (tell,) = due(told, RIGHT, NOW)
    assert (tell.kind, tell.problems) == (TellKind.PROBLEMS, ())
    assert due(after(told, tell, RIGHT), RIGHT, NOW) == ()


def test_a_registration_carries_the_problems() -> None:
    """So a new watcher tells them again, and takes back those that went while nobody watched."""
    told, tells = tell_all(Told(), WRONG)
    assert [(tell.kind, tell.problems) for tell in tells] == [(TellKind.REGISTER, problems(WRONG))]
    _, tells = tell_all(told.kept(), RIGHT)
    assert [(tell.kind, tell.problems) for tell in tells] == [(TellKind.REGISTER, ())]


def test_a_registration_without_a_look_before_it_carries_them_too() -> None:
    """As when a job's workflow turned out to be gone."""
    (tell,) = due(Told(), WRONG, NOW)
    told = after(Told(), tell, WRONG)
    assert tell.problems == problems(WRONG)
    assert due(observe(told, WRONG), WRONG, NOW) == ()


def test_what_changed_while_the_job_was_registered_is_told() -> None:
    """What the registration carried is old by then."""
    told = observe(Told(), RIGHT)
    (tell,) = due(told, RIGHT, NOW)
    told = after(observe(told, WRONG), tell, WRONG)
    _, tells = tell_all(told, WRONG)
    assert [found.problems for found in tells] == [problems(WRONG)]


def test_a_job_that_is_observed_from_now_on_is_registered_again() -> None:
    """And again when it is not any more; each is an update of its own, and nothing else is told before it."""
    told = REGISTERED
    ids: list[str] = []
    for observed in (True, True, False, True):
        told, tells = tell_all(told, view(*IN_ORDER, observed=observed))
        assert {tell.kind for tell in tells} <= {TellKind.REGISTER}
        ids.extend(tell.update_id for tell in tells)
    assert len(ids) == len(set(ids)) == 3


def test_what_began_to_be_observed_while_it_was_registered_is_registered_again() -> None:
    """The registration on its way says the contrary; until the next one is taken nothing is told."""
    told = observe(Told(), RIGHT)
    (tell,) = due(told, RIGHT, NOW)
    observed = view(*IN_ORDER, observed=True)
    told = after(observe(told, observed), tell, observed)
    told, tells = tell_all(told, observed)
    assert [found.kind for found in tells] == [TellKind.REGISTER]
    assert tells[0].update_id != tell.update_id


@pytest.mark.parametrize(("kind", "status"), [("SubHealthy", "True"), ("Ready", "False")])
def test_a_fault_names_no_rank_that_the_job_does_not_have(kind: str, status: Literal["True", "False"]) -> None:
    """It would be refused as a whole, and the ranks beside it would be lost."""
    condition = Condition(type=kind, status=status, reason="r", last_transition_time=NOW)
    node = Node(metadata=ObjectMeta(name="node-0", uid="n"), status=NodeStatus(accelerators=8, conditions=(condition,)))
    (tell, *_) = due(REGISTERED, view(pod("a", "1"), pod("x", "7"), nodes=(node,)), NOW)
    assert tell.fault
    assert (tell.fault.pod_ranks, tell.fault.ranks) == ((1,), (2, 3))


def test_a_failed_pod_of_no_rank_of_the_job_is_a_fault_all_the_same() -> None:
    """Whose ranks it had nobody knows; that it failed everybody should."""
    (tell,) = due(REGISTERED, view(pod("x", "7", phase=PodPhase.FAILED)), NOW)
    assert tell.fault
    assert (tell.fault.kind, tell.fault.pod_ranks, tell.fault.ranks) == (FaultKind.POD, (), ())


# ---- what waits for it

JOB = Job(id=JobId("job"), name="gpt", pods=2, ranks_per_pod=2, sub_health=SubHealthStrategy.HOT_SWITCH)
ILL = Fault(episode="ill", kind=FaultKind.SUB_HEALTH, pod_ranks=(1,), node="node-1", seen_at=NOW, source="test")


def broken(episode: str) -> Fault:
    return ILL.model_copy(update={"episode": episode, "kind": FaultKind.NODE})


def with_problems(*found: str, before: JobState | None = None) -> JobState:
    return incidents.found_problems(before or JobState.of(JOB), found)


def work_off(state: JobState) -> tuple[JobState, list[incidents.Case]]:
    """Declines and begins whatever there is, until nothing is left to decide."""
    cases: list[incidents.Case] = []
    while case := incidents.next_case(state):
        assert len(cases) < 100
        cases.append(case)
        state = incidents.without(state, case)
        if case.pod_rank is not None:
            state = incidents.judged(state, case.pod_rank, case.plan.refused or "begun")
    return state, cases


def test_a_real_fault_waits_until_the_problems_are_over() -> None:
    """It is declined once, with the first problem, and is one incident with those that joined it."""
    state, cases = work_off(incidents.take_fault(with_problems("twice", "none"), broken("a")))
    assert [case.plan.refused for case in cases] == ["the job cannot be recovered as it is: twice"]
    state, cases = work_off(incidents.take_fault(state, broken("b")))
    assert [[fault.episode for fault in case.faults] for case in cases] == [["b"]]
    state, (case,) = work_off(with_problems(before=state))
    assert ([fault.episode for fault in case.faults], case.plan.modes) == (["a", "b"], (Mode.JOB_RESCHEDULING,))
    assert (state.faults, state.held) == ((), ())


def test_it_is_judged_again_when_the_reason_is_another() -> None:
    """Another first problem is another reason; one more behind it is not."""
    ready = {"capabilities": (), "training_side": "rekindle"}
    state = incidents.take_fault(JobState.of(JOB.model_copy(update=ready)), ILL)
    state, _ = work_off(incidents.take_fault(with_problems("twice", before=state), broken("a")))
    assert work_off(with_problems("twice", "none", before=state))[1] == []
    state, cases = work_off(with_problems("none", before=state))
    assert [case.plan.refused for case in cases] == ["the job cannot be recovered as it is: none"] * 2
    assert state.sub_healthy[0].judged == "the job cannot be recovered as it is: none"


def test_a_policy_of_ignore_comes_before_problems() -> None:
    """Nothing would be done about that sub-health anyway."""
    ignores = JobState.of(JOB.model_copy(update={"sub_health": SubHealthStrategy.IGNORE}))
    _, (case,) = work_off(incidents.take_fault(with_problems("twice", before=ignores), ILL))
    assert case.plan.ignored


@pytest.mark.parametrize("mode", list(Mode))
def test_a_request_is_refused_with_the_first_problem(mode: Mode) -> None:
    """Whether it asks now or waits since before the problem."""
    request = ModeRequest(mode=mode, pod_rank=1, force=True)
    state = with_problems("twice", "none")
    assert requests.refused(state, request) == "the job cannot be recovered as it is: twice"
    _, (case,) = work_off(state.model_copy(update={"requests": (request,)}))
    assert case.plan.refused == "the job cannot be recovered as it is: twice"


FAULTS = st.builds(broken, st.text("abc", min_size=1, max_size=2)).map(lambda fault: ("fault", fault))
PROBLEMS = st.lists(st.sampled_from(["twice", "none"]), max_size=2, unique=True).map(lambda found: ("problems", tuple(found)))


@given(st.lists(st.one_of(FAULTS, PROBLEMS), max_size=30))
def test_whatever_comes_and_goes_no_real_fault_is_lost(news: list[tuple[str, Any]]) -> None:
    """Every one is in an incident that was begun, or still waits; and each piece of news is worked off to its end."""
    state, told, begun = JobState.of(JOB), set(), set()
    for what, thing in news:
        state = incidents.take_fault(state, thing) if what == "fault" else incidents.found_problems(state, thing)
        told |= {thing.episode} if what == "fault" else set()
        state, cases = work_off(state)
        begun |= {fault.episode for case in cases if case.plan.modes for fault in case.faults}
        assert {fault.episode for fault in state.faults} == told - begun
        assert set(state.held) == {fault.episode for fault in state.faults}
        assert bool(state.faults) <= bool(state.problems)


def test_what_waits_is_bounded() -> None:
    """Pods that fail again and again while a problem lasts do not grow the state for ever; the newest stay."""
    state = with_problems("twice")
    for number in range(incidents.KEPT_HELD + 5):
        state, _ = work_off(incidents.take_fault(state, broken(str(number))))
    assert len(state.faults) == len(state.held) == incidents.KEPT_HELD
    assert state.faults[-1].episode == str(incidents.KEPT_HELD + 4)


def test_a_fault_that_waits_is_not_taken_twice() -> None:
    """Also when so many came after it that its episode was forgotten."""
    state, _ = work_off(incidents.take_fault(with_problems("twice"), broken("a")))
    forgotten = state.model_copy(update={"seen": ()})
    assert incidents.take_fault(forgotten, broken("a")) == forgotten
