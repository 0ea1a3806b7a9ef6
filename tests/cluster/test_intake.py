"""Messages that a job's workflow must receive follow from two values: what is seen, and what is acknowledged."""

import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model import keys
from rekindle.model.cluster import JobObject, JobPhase, JobView, Node, Pod, PodPhase
from rekindle.model.fault import FaultKind, Sighting
from rekindle.model.job import Trait
from rekindle.model.limits import Limits
from rekindle.model.state import Registration, Remembered
from rekindle.policy.detection import watcher_updates
from rekindle.policy.detection.watcher_updates import (
    Acknowledged,
    End,
    News,
    Register,
    Shown,
    Sighted,
    acknowledge,
    decline,
    is_urgent,
    unconfirmed,
)
from tests.support.cluster import ROOT
from tests.support.job_views import NOW, job, manager, node, pod, view
from workers.watcher.cluster_index import ClusterIndex

NOTHING = Acknowledged()


def shown(seen: JobView) -> Shown:
    return watcher_updates.shown(seen, Limits())


def due(seen: JobView, acknowledged: Acknowledged) -> News | None:
    return watcher_updates.due(shown(seen), acknowledged)


def told(seen: JobView, acknowledged: Acknowledged = NOTHING) -> tuple[Acknowledged, list[News]]:
    """Returns all messages that are sent until none is due."""
    tells: list[News] = []
    while news := due(seen, acknowledged):
        assert len(tells) < 10
        tells.append(news)
        acknowledged = acknowledge(acknowledged, news)
    return acknowledged, tells


def sighting(news: News | None) -> Sighting:
    assert isinstance(news, Sighted)
    return news.sighting


SICK = (node(sick="slow"),)
HOT_SWITCH = {keys.SUB_HEALTHY_STRATEGY: "hotSwitch"}
BY_TURNS = (Trait.FIRST_WORD_HOLDS,)
MISSPELT = job(labels={keys.SUB_HEALTHY_STRATEGY: "hot"})


# ---- a job begins and ends


def test_one_update_registers_a_job_and_tells_how_it_is() -> None:
    """One update registers a new job, and carries its faults. Afterwards no message is due."""
    seen = view(pod(), nodes=SICK)
    known, (register,) = told(seen)
    assert isinstance(register, Register)
    assert register.registration.job.name == "demo"
    assert register.registration.sighting == shown(seen).sighting
    assert due(seen, known) is None


@pytest.mark.parametrize("over", [JobView(), view(of=job(deleted=True)), view(of=job(JobPhase.SUCCEEDED))])
def test_an_ended_job_is_told_once(over: JobView) -> None:
    """An end is sent once: of a job that was deleted, is being deleted or has succeeded. A job that was never reported needs no
    message."""
    known, _ = told(view(pod()))
    after, (end,) = told(over, known)
    assert isinstance(end, End)
    assert end.reason
    assert (due(over, after), due(over, NOTHING)) == (None, None)


def test_a_job_whose_pods_all_failed_is_not_over() -> None:
    """A failed job may be restored: its workflow stays."""
    known, _ = told(view(pod()))
    failed = view(pod(phase=PodPhase.FAILED), of=job(JobPhase.FAILED))
    assert isinstance(due(failed, known), Sighted)


def test_a_job_that_may_have_been_registered_is_ended() -> None:
    """An end is sent although the registration was not confirmed: a workflow may exist."""
    (register,) = told(view(pod()))[1]
    assert isinstance(due(JobView(), unconfirmed(NOTHING, register)), End)


# ---- what is seen


@pytest.mark.parametrize(
    ("now", "what"),
    [
        (view(pod(0)), "it vanished, or was deleted without grace"),
        (view(pod(0), pod(1, deleted=True)), "it is drained, evicted, preempted, or deleted by a person"),
        (view(pod(0), pod(1, "new")), "its controller made another one before anybody looked"),
        (view(pod(0), pod(1, "new", generation="1")), "somebody started it anew"),
    ],
)
def test_a_rank_that_lost_its_pod_is_told(now: JobView, what: str) -> None:
    """The workflow learns that another pod holds its rank, or none, whatever happened to the pod."""
    known, _ = told(view(pod(0), pod(1)))
    assert sighting(due(now, known)).holders in (("pod-0", ""), ("pod-0", "new")), what


def test_what_happened_while_no_watcher_ran_is_told_by_the_next() -> None:
    """A watcher that starts has no state, so it reports everything: a rank without a pod, and no fault that has healed."""
    told(view(pod(0), pod(1), nodes=SICK))
    _, (register,) = told(view(pod(0), nodes=(node(),)))
    assert isinstance(register, Register)
    now = register.registration.sighting
    assert now is not None
    assert (now.holders, now.faults) == (("pod-0", ""), ())


def test_a_second_pod_on_a_sick_node_is_told() -> None:
    """A second pod on an unhealthy node is a fault of its own, and the first one's fault stays."""
    known, _ = told(view(pod(0), nodes=SICK))
    assert [fault.pod_ranks for fault in sighting(due(view(pod(0), pod(1), nodes=SICK), known)).faults] == [(0,), (1,)]


def test_a_node_that_was_deleted_is_lost_while_pods_seem_to_run_on_it() -> None:
    """An administrator deletes the node as soon as its machine is gone, and the cluster deletes its pods a minute later: no fault
    heals by that. A node without pods is not reported, and one that is back is healthy."""
    index = ClusterIndex([job()], [pod(0), pod(1, node="node-1")], [node(), node("node-1", ready="False"), node("idle")])
    assert index.remove(node("idle")) == set()
    assert index.remove(node("node-1")) == {"job"}
    (lost,) = shown(index.view("job")).sighting.faults
    assert (lost.kind, lost.node, lost.pod_ranks, lost.code) == (FaultKind.NODE, "node-1", (1,), "NodeGone")
    assert index.is_wrong("node-1")
    assert index.put(node("node-1")) == {"job"}
    assert shown(index.view("job")).sighting.faults == ()


def test_what_healed_is_gone_from_what_is_told() -> None:
    """A healed fault disappears, also if the same watcher had reported it."""
    known, _ = told(view(pod(), nodes=SICK))
    assert sighting(due(view(pod()), known)).faults == ()


def test_problems_are_told_when_they_come_and_when_they_go() -> None:
    """All problems are reported whenever they change, and nothing in between."""
    right, wrong = view(pod(0), pod(1)), view(pod(0), pod(1), pod(7))
    known, _ = told(right)
    known, (first,) = told(wrong, known)
    assert sighting(first).problems == ("pod rank 7 of pod demo-worker-7 is outside 0 to 1",)
    assert sighting(due(right, known)).problems == ()


def test_words_alone_are_no_news() -> None:
    """A node that reports its temperature every minute would otherwise fill the history of each job on it."""
    known, _ = told(view(pod(), nodes=(node(sick="hot", words="81 degrees"),)))
    assert due(view(pod(), nodes=(node(sick="hot", words="82 degrees"),)), known) is None


def test_what_becomes_of_a_standby_is_told_without_haste_and_its_words_alone_are_not() -> None:
    """Changes of a standby are reported without urgency: its creation, its end and its removal. A different message of its end is
    not reported."""
    standby: dict[str, Any] = {"rank": None, "uid": "s", "name": "demo-standby-0", "standby": True}
    quiet, _ = told(view(pod(0)))
    running, (news,) = told(view(pod(0), pod(**standby)), quiet)
    assert [one.uid for one in sighting(news).standbys] == ["s"]
    assert not is_urgent(news, quiet)
    ended, (news,) = told(view(pod(0), pod(**standby, phase=PodPhase.FAILED, message="no memory")), running)
    assert sighting(news).standbys[0].wrong
    assert told(view(pod(0), pod(**standby, phase=PodPhase.FAILED, message="no disk")), ended)[1] == []
    assert sighting(told(view(pod(0)), ended)[1][0]).standbys == ()


def test_what_nobody_confirmed_is_told_as_it_is_by_then() -> None:
    """The workflow may know the old news or not: the end of a fault is reported, although it was known before."""
    known, _ = told(view(pod()))
    news = due(view(pod(), nodes=SICK), known)
    assert news
    unsure = unconfirmed(known, news)
    assert sighting(due(view(pod()), unsure)).faults == ()
    assert due(view(pod()), told(view(pod()), unsure)[0]) is None


def test_who_held_the_ranks_is_known_also_if_the_last_word_was_not_confirmed() -> None:
    """The workflow may have been lost with the last update. The next workflow learns who held the ranks, so that it misses a rank
    whose pod is gone."""
    known, _ = told(view(pod()))
    news = due(view(), known)
    assert isinstance(news, Sighted)
    again = due(view(), watcher_updates.unknown(shown(view()), unconfirmed(known, news), news))
    assert isinstance(again, Register)
    assert known.sighting
    assert again.registration.holders == known.sighting.holders


def test_a_rank_that_had_lost_its_pod_is_missed_by_the_next_workflow_too() -> None:
    """The workflow that received the loss was itself lost before it acted."""
    known, _ = told(view(pod()))
    assert known.sighting
    after, _ = told(view(), known)
    again = due(view(), watcher_updates.forgotten(after))
    assert isinstance(again, Register)
    assert again.registration.holders == known.sighting.holders


def test_what_the_workflow_does_not_want_is_not_repeated() -> None:
    """The next difference is reported."""
    known, _ = told(view(pod()))
    news = due(view(pod(), nodes=SICK), known)
    assert news
    known = decline(known, news)
    assert due(view(pod(), nodes=SICK), known) is None
    assert isinstance(due(view(pod()), known), Sighted)


# ---- what the job says


@pytest.mark.parametrize(
    "changed",
    [
        job(labels={keys.SUB_HEALTHY_STRATEGY: "ignore"}),
        job(labels={**HOT_SWITCH, keys.PROCESS_RECOVER_ENABLE: "on"}),
        job(labels={**HOT_SWITCH, keys.FRAMEWORK: "mindspore"}),
        job(labels=HOT_SWITCH, annotations={keys.CAPABILITIES: "watchdog"}),
        job(labels=HOT_SWITCH, limits={"pause": 60}),
        job(labels=HOT_SWITCH, observe=True),
    ],
)
def test_a_job_that_says_something_else_is_registered_again(changed: JobObject) -> None:
    """Each change by the owner is registered once, together with the news that it may affect."""
    known, _ = told(view(pod(), of=job(labels=HOT_SWITCH)))
    _, tells = told(view(pod(), of=changed, nodes=SICK), known)
    assert [type(news) for news in tells] == [Register]


@pytest.mark.parametrize("traits", [(), BY_TURNS])
def test_what_nobody_said_registers_no_job_again(traits: tuple[Trait, ...]) -> None:
    """Fields that the owner did not write cause no registration: a downgrade that the workflow wrote and lifted, fields of other
    controllers, and labels that alternate between pods."""
    written = job(labels={**HOT_SWITCH, "team": "x"}, annotations={"batch.kubernetes.io/job-tracking": ""}, traits=traits)
    downgraded = job(labels={keys.SUB_HEALTHY_STRATEGY: "ignore"}, annotations={keys.DOWNGRADED: "no spare"}, traits=traits)
    remembered = job(labels=HOT_SWITCH, annotations={keys.MEMORY: '{"incidents": 1}'}, traits=traits)
    by_turns = [job(traits=traits)] if traits else []
    known, _ = told(view(of=job(labels=HOT_SWITCH, traits=traits)))
    for changed in (downgraded, job(labels=HOT_SWITCH, traits=traits), written, remembered, *by_turns):
        assert due(view(of=changed), known) is None


def test_an_owner_who_speaks_while_a_downgrade_stands_is_heard() -> None:
    """The workflow writes only `ignore` in the label; the rest of the job may change at the same time."""
    known, _ = told(view(of=job(labels=HOT_SWITCH)))
    marks = {keys.DOWNGRADED: "no spare"}
    news = due(view(of=job(labels={keys.SUB_HEALTHY_STRATEGY: "graceExit"}, annotations=marks)), known)
    assert isinstance(news, Register)
    assert news.registration.job.sub_health == "graceExit"
    other = job(labels={keys.SUB_HEALTHY_STRATEGY: "ignore", keys.FRAMEWORK: "mindspore"}, annotations=marks)
    news = due(view(of=other), known)
    assert isinstance(news, Register)
    assert (news.registration.job.framework, news.registration.job.sub_health) == ("mindspore", "hotSwitch")


def test_loose_pods_that_are_only_observed_from_now_on_are_registered_with_their_first_words() -> None:
    """Loose pods that are only observed from now on are registered with their first values, because the namespace says so and not
    the pods."""
    known, _ = told(view(of=job(labels=HOT_SWITCH, traits=BY_TURNS)))
    news = due(view(of=job(traits=BY_TURNS, observe=True)), known)
    assert isinstance(news, Register)
    assert (news.registration.job.observe, news.registration.job.sub_health) == (True, "hotSwitch")


def test_a_registration_brings_what_an_earlier_workflow_left_on_the_job() -> None:
    """A registration contains what an earlier workflow wrote on the job. Content that cannot be parsed counts as empty."""
    left = Remembered(job="job", incidents=3, downgrade="no spare")
    for written, read in ((left.model_dump_json(), left), ("{broken", Remembered()), ("[]", Remembered())):
        news = due(view(of=job(annotations={keys.MEMORY: written})), NOTHING)
        assert isinstance(news, Register)
        assert news.registration.remembered == read


def test_a_word_that_means_nothing_costs_no_protection() -> None:
    """An invalid label does not stop the protection of a job: its earlier registration holds and faults are reported. That holds
    also for a watcher that never registered the job."""
    known, _ = told(view(pod()))
    sick = view(pod(), of=MISSPELT, nodes=SICK)
    assert "'hot' is not accepted" in shown(sick).refused
    for before in (known, NOTHING):
        after, (news,) = told(sick, before)
        assert len(sighting(news).faults) == 1
        assert isinstance(due(JobView(), after), End)


def test_of_a_job_that_nobody_can_register_nothing_is_told_again_and_again() -> None:
    """No workflow knows the job. The next message is due when it changes, and its registration when its labels are valid."""
    seen = view(pod(), of=MISSPELT)
    news = due(seen, NOTHING)
    assert news
    lost = watcher_updates.unknown(shown(seen), NOTHING, news)
    assert due(seen, lost) is None
    assert due(JobView(), lost) is None
    assert isinstance(due(view(pod()), lost), Register)


def test_a_job_that_is_only_observed_now_and_cannot_be_registered_is_left_alone() -> None:
    """The workflow may not know that it must only observe, and would act on a reported fault."""
    known, _ = told(view(pod()))
    observed = MISSPELT.model_copy(update={"observe": True})
    sick = view(pod(), of=observed, nodes=SICK)
    assert (due(sick, known), due(sick, NOTHING)) == (None, None)
    watched, _ = told(view(pod(), of=job(observe=True)))
    assert isinstance(due(sick, watched), Sighted)


def test_a_refused_registration_is_not_repeated_until_the_job_says_something_else() -> None:
    """Observations of the job are still reported."""
    known, _ = told(view(pod()))
    changed = view(pod(), of=job(labels=HOT_SWITCH))
    news = due(changed, known)
    assert isinstance(news, Register)
    known = decline(known, news)
    assert due(changed, known) is None
    assert isinstance(due(view(pod(), of=job(labels=HOT_SWITCH), nodes=SICK), known), Sighted)
    assert isinstance(due(view(pod(), of=job(labels={keys.FRAMEWORK: "mindspore"})), known), Register)


def test_a_job_whose_workflow_is_gone_is_registered_again() -> None:
    """A job whose workflow is gone is registered again with all that is known by then. The end of such a job needs no message."""
    known, _ = told(view(pod()))
    sick = view(pod(), nodes=SICK)
    news = due(sick, known)
    assert news
    _, (register,) = told(sick, watcher_updates.unknown(shown(sick), known, news))
    assert isinstance(register, Register)
    end = due(JobView(), known)
    assert end
    assert due(JobView(), watcher_updates.unknown(shown(JobView()), known, end)) is None


# ---- how long news may wait


@pytest.mark.parametrize(
    ("now", "urgent"),
    [
        (view(pod(0), pod(1, phase=PodPhase.PENDING)), False),
        (view(pod(0), pod(1), manager()), False),
        (view(pod(0, "new"), pod(1)), True),
        (view(pod(1)), True),
        (view(pod(0), pod(1, phase=PodPhase.FAILED)), True),
        (view(pod(0), pod(1), pod(7)), True),
        (view(pod(0), nodes=(node(ready="False"),)), True),
        (view(pod(0), of=job(labels=HOT_SWITCH)), True),
        (JobView(), True),
    ],
)
def test_only_a_job_that_grows_can_wait(now: JobView, *, urgent: bool) -> None:
    """A fault or its end is reported at once."""
    known, _ = told(view(pod(0)))
    news = due(now, known)
    assert news
    assert is_urgent(news, known) is urgent
    assert is_urgent(news, NOTHING)


PODS = st.builds(
    pod,
    st.integers(0, 1),
    st.sampled_from(["a", "b", "c", "d"]),
    node=st.sampled_from(["node-0", "node-1", ""]),
    phase=st.sampled_from(PodPhase),
    backup=st.booleans(),
    deleted=st.booleans(),
    generation=st.sampled_from(["0", "1"]),
)
NODES = st.tuples(
    *(
        st.builds(
            node,
            st.just(name),
            sick=st.sampled_from(["", "x", "y"]),
            ready=st.sampled_from(["True", "False"]),
            since=st.sampled_from([NOW, NOW + timedelta(seconds=1)]),
        )
        for name in ("node-0", "node-1")
    )
)
JOBS = st.one_of(
    st.none(),
    st.builds(
        job,
        st.sampled_from(JobPhase),
        deleted=st.booleans(),
        labels=st.sampled_from([{}, HOT_SWITCH, {keys.SUB_HEALTHY_STRATEGY: "hot"}]),
    ),
)


def _world(job: JobObject | None, pods: list[Pod], nodes: tuple[Node, ...]) -> JobView:
    return JobView(job=job, pods=tuple(pods), nodes=nodes)


WORLDS = st.builds(_world, JOBS, st.lists(PODS, max_size=4, unique_by=lambda one: one.metadata.uid), NODES)
FATES = st.sampled_from(["taken", "lost on the way", "taken, and the answer lost", "refused", "nobody there"])


@given(st.lists(st.tuples(WORLDS, FATES), max_size=8), WORLDS)
def test_whatever_becomes_of_updates_the_workflow_comes_to_know_the_world(
    history: list[tuple[JobView, str]], last: JobView
) -> None:
    """A few updates that arrive are enough for the workflow to hold what the cluster shows. That holds after any history of
    updates that were taken, lost or refused, or had no receiver."""
    acknowledged, held = NOTHING, None
    for seen, fate in history:
        news = due(seen, acknowledged)
        if news is None:
            continue
        nobody = held is None and not isinstance(news, Register)
        if nobody or fate == "nobody there":
            held = None
            acknowledged = watcher_updates.unknown(shown(seen), acknowledged, news)
        elif fate == "refused":
            acknowledged = decline(acknowledged, news)
        else:
            held = held if fate == "lost on the way" else _held(held, news)
            took = fate == "taken"
            acknowledged = acknowledge(acknowledged, news) if took else unconfirmed(acknowledged, news)
    _brought_up_to_date(last, acknowledged, held)


Held = Registration | None


def _held(held: Held, news: News) -> Held:
    """Returns what a workflow holds after this update. None: it has ended, or does not exist."""
    if isinstance(news, Register):
        return news.registration
    if isinstance(news, End) or held is None:
        return None
    return held.model_copy(update={"sighting": news.sighting})


def _brought_up_to_date(seen: JobView, acknowledged: Acknowledged, held: Held) -> None:
    declined = acknowledged.declined
    for _ in range(4):
        news = due(seen, acknowledged)
        if news is None:
            break
        if held is None and not isinstance(news, Register):
            acknowledged = watcher_updates.unknown(shown(seen), acknowledged, news)
        else:
            held, acknowledged = _held(held, news), acknowledge(acknowledged, news)
    assert due(seen, acknowledged) is None
    now = shown(seen)
    if now.ended:
        assert held is None or not acknowledged.reached
    elif now.job and now.job != declined:
        assert held is not None
        assert (held.job, held.sighting) == (now.job, now.sighting)


def test_the_kinds_of_faults_that_a_watcher_tells() -> None:
    """Faults of processes are reported by the training side."""
    everything = view(pod(0), pod(1, phase=PodPhase.FAILED), nodes=(node(sick="slow", ready="False"),))
    assert {fault.kind for fault in shown(everything).sighting.faults} == set(FaultKind) - {FaultKind.PROCESS}


def test_the_page_shows_what_is_really_told() -> None:
    """The example of docs/intake.md is the sighting of the job that it describes."""
    block = re.search(r"```json\n(.*?)```", (ROOT / "docs" / "intake.md").read_text(), re.DOTALL)
    assert block
    uids = (
        "5f0c9a1e-0d6c-4c1f-8a53-1f4f5a9e6d22",
        "e7a1c8d3-2b47-4f6e-9c80-7b5d3e2f1a55",
        "91b3de07-7d0f-4a53-8b0e-6a1f6f7a2c33",
        "c2d47b90-3c55-4a0b-a6a5-0d7f3e1b9f44",
    )
    last_words = "CUDA error: an illegal memory access was encountered"
    pods = (
        pod(0, uids[0]),
        pod(1, uids[1], node="node-1", deleted=True),
        pod(2, uids[2], node="node-2", phase=PodPhase.FAILED, message=last_words),
        pod(3, uids[3], node="node-3"),
        manager("0b8e6f1a-6c1d-4f0e-9d55-2f6f0c1a7e11"),
    )
    sick = node("node-3", sick="LinkFlapping", words="port 3 went down 14 times in an hour")
    assert Sighting.model_validate_json(block[1]) == shown(view(*pods, nodes=(sick,), of=job(pods=4))).sighting
