"""Which recovery gets a spare node while fewer are free than recoveries need."""

import time
from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.activities.pods import PodCount
from rekindle.model.cluster import Node, NodeStatus, ObjectMeta, Pod
from rekindle.model.fault import Decided, Fault
from rekindle.model.incident import RecoveryContext
from rekindle.model.job import Drain, Job, JobId
from rekindle.model.mode import Mode
from rekindle.model.situation import Situation
from rekindle.model.spares import MOST_CLAIMS, MOST_FREE, SpareAnswer, SpareClaim, SpareNews, SpareQuestion, SpareView
from rekindle.model.training_side import TrainingSide
from rekindle.policy.placement import spares
from rekindle.policy.placement.spares import ANNOUNCED, HELD, Occupant
from tests.support.harness import NOW, node_fault, sub_health
from tests.support.job_views import pod

MINUTE = timedelta(minutes=1)
ONE_FREE = SpareView(free={"node-9": 8})
OTHER = "the spare node goes to the process rescheduling of job default/other: "


def claim(name: str, **changes: object) -> SpareClaim:
    """Returns a claim of a process rescheduling that began now, for one pod with all devices of a node."""
    known = SpareClaim(job_id=name, job=f"default/{name}", incident=1, mode=Mode.PROCESS_RESCHEDULING, cost=8, need=8, since=NOW)
    return known.model_copy(update=changes)


def answer(own: SpareClaim, *others: SpareClaim, view: SpareView | None = ONE_FREE) -> SpareAnswer:
    """Returns the answer to a claim that was made a minute before these others."""
    return spares.answered((own, *others), SpareQuestion(claim=own, view=view), NOW + timedelta(seconds=1))[0]


@pytest.mark.parametrize(
    ("own", "other", "why"),
    [
        ({}, {"priority": 1}, "its priority is 1, that of this job is 0"),
        ({"priority": -5, "cost": 99}, {"priority": -4}, "its priority is -4, that of this job is -5"),
        ({"cost": 0}, {}, "the priorities are equal, and without it 8 ranks would start again there, 0 here"),
        ({"since": NOW + MINUTE}, {}, "priority and cost are equal, and it asked first"),
        ({"priority": 9, "cost": 99}, {"taken": NOW, "until": NOW + MINUTE}, "its pod is already being created"),
    ],
)
def test_priority_comes_first_then_cost_then_who_asked_first(own: dict[str, object], other: dict[str, object], why: str) -> None:
    """The loser is told who gets the spare node, and why. The winner gets it, whoever asks first."""
    loser, winner = claim("own", **own), claim("other", **other)
    assert answer(loser, winner).reason == OTHER + why
    assert answer(winner, loser) == SpareAnswer(granted=True)


def test_nobody_looks_at_the_nodes_while_one_recovery_needs_a_spare() -> None:
    """A single claim is granted at once, as is one whose pods are being created already."""
    alone = claim("own")
    assert answer(alone, view=None) == SpareAnswer(granted=True)
    assert answer(alone, claim("other"), view=None) == SpareAnswer(look=True)
    assert answer(claim("own", taken=NOW, until=NOW + MINUTE), claim("other", priority=9), view=None).granted


def test_a_claim_whose_pods_have_nodes_no_longer_counts() -> None:
    """Claims whose pod has a node take nothing from others. If no other node is free, its job can be named."""
    taken, own = claim("other", taken=NOW, until=NOW + MINUTE), claim("own")
    view = ONE_FREE.model_copy(update={"placed": {"other": 1}})
    found, left = spares.answered((taken,), SpareQuestion(claim=own, view=view), NOW)
    assert found.granted
    assert found.note == "the process rescheduling of job default/other asked for a spare node first"
    third, _ = spares.answered(left[:1], SpareQuestion(claim=claim("third")), NOW)
    assert third == found  # without another look
    (again,) = spares.with_claim(left[:1], taken, NOW)
    assert not again.taken  # it needs another node now


def test_without_any_free_node_the_cluster_decides_as_for_a_single_job() -> None:
    """Jobs are not refused for another one that gets nothing either."""
    for view in (SpareView(), SpareView(free={"node-9": 4})):
        assert answer(claim("own"), claim("other", priority=9), view=view).granted


def test_a_node_that_a_claim_cannot_use_is_left_to_others() -> None:
    """The first claim takes the other node, although it comes first and the first node would do."""
    view = SpareView(free={"node-1": 8, "node-2": 8})
    picky, easy = claim("own", avoid_nodes=("node-1",)), claim("other", priority=9)
    assert answer(picky, easy, view=view).granted
    assert answer(picky, claim("other", priority=9, avoid_nodes=("node-1",)), view=view).reason


def test_a_claim_for_several_pods_holds_all_nodes_or_none() -> None:
    """A claim that cannot be met keeps no node from a later one."""
    two = claim("other", priority=9, pods=2)
    assert answer(claim("own"), two).granted
    assert answer(claim("own"), two, view=SpareView(free={"node-1": 8, "node-2": 8})).reason
    assert answer(claim("own", need=4), claim("other", need=4)).granted  # both find room on one node


def test_more_than_can_be_compared_is_granted() -> None:
    """Clusters decide by themselves about more free nodes or claims than are listed."""
    plenty = ONE_FREE.model_copy(update={"plenty": True})
    assert answer(claim("own"), claim("other", priority=9), view=plenty).granted
    many = [claim(f"other-{number}", priority=9) for number in range(MOST_CLAIMS)]
    assert answer(claim("own"), *many, view=None).granted


# ---- claims over time


def test_a_large_cluster_is_compared_within_a_workflow_task() -> None:
    """A task that takes two seconds is taken for a deadlock, and fails for ever with all claims. Each of these claims that gets
    nothing looks for other places of all pods."""
    view = SpareView(free={f"node-{number:03}": 8 for number in range(MOST_FREE)})
    others = [claim(f"job-{number:02}", pods=10, priority=1) for number in range(30)]
    began = time.process_time()
    assert answer(claim("own", pods=10), *others, view=view).reason
    assert time.process_time() - began < 2


def test_a_claim_is_over_by_itself() -> None:
    """A claim that was only begun counts for a minute. A granted one holds its spare while pods are placed, then it is named."""
    known = spares.with_claim((), claim("own"), NOW)
    assert spares.current(known, NOW + ANNOUNCED) == ()
    _, granted = spares.answered(known, SpareQuestion(claim=known[0]), NOW)
    assert spares.current(granted, NOW + HELD - timedelta(seconds=1)) == granted
    (later,) = spares.current(granted, NOW + HELD)
    assert later.placed
    assert spares.current(granted, NOW + spares.NAMED) == ()


def test_a_pod_that_cannot_use_the_free_nodes_holds_none_of_them() -> None:
    """Pods without a node long after their creation can use no free one. The scheduler would have used the node."""
    stuck, own = claim("other", taken=NOW, until=NOW + spares.NAMED, priority=9), claim("own")
    question = SpareQuestion(claim=own, view=ONE_FREE)
    assert not spares.answered((stuck,), question, NOW + timedelta(seconds=5))[0].granted
    assert spares.answered((stuck,), question, NOW + HELD)[0].granted


def test_jobs_that_need_other_nodes_do_not_compete() -> None:
    """The free node may be of no use for the other job, whose pods select nodes by their labels."""
    assert answer(claim("own"), claim("other", priority=9, demands="b7"), view=None) == SpareAnswer(granted=True)
    assert answer(claim("own", demands="b7"), claim("other", priority=9, demands="b7")).reason


def test_an_incident_keeps_its_place_and_a_mode_its_spare() -> None:
    """A repeated message changes neither. The next mode of the incident asks again, and the next incident comes last."""
    first = spares.with_claim((), claim("own", since=None), NOW)
    _, taken = spares.answered(first, SpareQuestion(claim=first[0]), NOW)
    (again,) = spares.with_claim(taken, claim("own", since=None), NOW + timedelta(seconds=5))
    assert again == taken[0]
    (following,) = spares.with_claim(taken, claim("own", mode=Mode.POD_RESCHEDULING, since=None), NOW + MINUTE)
    assert (following.since, following.taken) == (NOW, None)
    (later,) = spares.with_claim(taken, claim("own", incident=2, since=None), NOW + MINUTE)
    assert (later.since, later.taken) == (NOW + MINUTE, None)


def test_a_released_claim_leaves_the_others() -> None:
    """Release ends the claim of the job, and no other one."""
    assert [one.job_id for one in spares.without((claim("a"), claim("b")), "a")] == ["b"]


# ---- what modes need

JOB = Job(id=JobId("uid"), name="demo", pods=2, ranks_per_pod=2, priority=7)


def context(job: Job = JOB, *faults: Fault) -> RecoveryContext:
    situation = Situation(faults=faults)
    return RecoveryContext(job=job, incident=3, attachment=None, situation=situation, avoid_nodes=("node-1",))


def test_a_mode_says_what_it_needs() -> None:
    """A hot switch costs nothing without a spare, since training goes on. Other modes lead to a restart of all ranks."""
    wish = spares.wish(Mode.HOT_SWITCH, context(), 1)
    assert (wish.job, wish.priority, wish.cost, wish.avoid_nodes) == ("default/demo", 7, 0, ("node-1",))
    wish = spares.wish(Mode.PROCESS_RESCHEDULING, context(), 2)
    assert (wish.pods, wish.cost, wish.holds) == (2, 4, True)


def test_a_restart_is_compared_and_holds_nothing() -> None:
    """Restarts ask when their pods are gone, and say what they needed. A restart leaves no claim, whatever the answer is."""
    assert spares.wish_of_restart(context(), PodCount()) is None
    wish = spares.wish_of_restart(context(JOB.model_copy(update={"priority": None})), PodCount(accelerators=8, priority=3))
    assert wish
    own = spares.claim_of("uid", wish, ())
    assert own
    assert (own.pods, own.need, own.priority, own.cost) == (2, 8, 3, 4)
    two = SpareView(free={"node-8": 8, "node-9": 8})
    for rival, refused_by in ((claim("other", priority=9), True), (claim("other", priority=1), False)):
        for view in (None, two):
            found, left = spares.answered((rival,), SpareQuestion(claim=own, view=view), NOW)
            assert bool(found.reason) is (refused_by and view is not None)
            assert [one.job_id for one in left] == ["other"]


@pytest.mark.parametrize(("drain", "cost"), [(Drain.WAIT, 0), (Drain.RESCHEDULE, 4), (Drain.LET_GO, 0)])
def test_a_drained_job_that_would_be_restarted_says_so(drain: Drain, cost: int) -> None:
    """A hot switch for a drain costs a restart if the owner wants one where no node is free."""
    decided = Decided(rule="plain/cordoned", saw="cordoned", maintenance=True)
    drained = sub_health().model_copy(update={"decided": decided})
    job = JOB.model_copy(update={"drain": drain})
    assert spares.wish(Mode.HOT_SWITCH, context(job, drained), 1).cost == cost


def test_a_mode_without_new_pods_needs_no_spare() -> None:
    """An earlier claim of the incident is over then."""
    for mode in (Mode.ONLINE_RETRY, Mode.IN_PLACE, Mode.DYING_GASP, Mode.JOB_RESCHEDULING):
        assert spares.news(mode, context(JOB, node_fault("node-1"))) == SpareNews()
    lost = node_fault("node-1").model_copy(update={"pod_ranks": (0, 1)})
    found = spares.news(Mode.PROCESS_RESCHEDULING, context(JOB, lost)).wish
    assert found
    assert found.pods == 2
    mindio = JOB.model_copy(update={"training_side": TrainingSide.MINDIO})
    assert spares.news(Mode.PROCESS_RESCHEDULING, context(mindio, lost)) == SpareNews()


def _pod(rank: int | None, *, accelerators: int = 2, priority: int = 0, standby: bool = False) -> Pod:
    one = pod(rank, standby=standby)
    spec = one.spec.model_copy(update={"accelerators": accelerators, "priority": priority})
    return one.model_copy(update={"spec": spec})


def test_the_pods_of_a_job_complete_its_claim() -> None:
    """The pods' priority counts if the owner has set none. Standbys are used first. Pods without devices find room anywhere."""
    wish = spares.wish(Mode.PROCESS_RESCHEDULING, context(), 2)
    pods = [_pod(0, priority=100), _pod(1, priority=-10)]
    found = spares.claim_of("uid", wish, pods)
    assert found
    assert (found.priority, found.need, found.pods) == (7, 2, 2)
    unset = wish.model_copy(update={"priority": None})
    found = spares.claim_of("uid", unset, pods)
    assert found
    assert found.priority == 100
    found = spares.claim_of("uid", wish, [*pods, _pod(None, standby=True)])
    assert found
    assert found.pods == 1
    assert spares.claim_of("uid", wish, [*pods, _pod(None, standby=True), _pod(None, standby=True)]) is None
    assert spares.claim_of("uid", wish, [_pod(0, accelerators=0)]) is None


def test_a_view_counts_what_backup_pods_could_use() -> None:
    """Standbys give way, nodes that new pods avoid are left out, and pods that have a node already are told."""
    nodes = [Node(metadata=ObjectMeta(name=f"node-{at}"), status=NodeStatus(accelerators=8)) for at in range(4)]
    there = [Occupant("node-0", 8), Occupant("node-1", 6, backup_of="uid"), Occupant("node-2", 8, gives_way=True)]
    view = spares.view_of(nodes, ["node-3"], there)
    assert view == SpareView(free={"node-2": 8, "node-1": 2}, placed={"uid": 1})
    many = [Node(metadata=ObjectMeta(name=f"node-{at:03}"), status=NodeStatus(accelerators=8)) for at in range(MOST_FREE + 1)]
    view = spares.view_of(many, (), ())
    assert view.plenty
    assert len(view.free) == MOST_FREE


# ---- properties

CLAIMS = st.lists(
    st.builds(
        lambda priority, cost, asked, need, pods, avoids, taken: {
            "priority": priority,
            "cost": cost,
            "since": NOW + timedelta(seconds=asked),
            "need": need,
            "pods": pods,
            "avoid_nodes": tuple(f"node-{one}" for one in sorted(avoids)),
            "taken": taken,
        },
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(1, 8),
        st.integers(1, 3),
        st.sets(st.integers(0, 3), max_size=3),
        st.sampled_from((None, NOW)),
    ),
    min_size=1,
    max_size=6,
).map(lambda many: [claim(f"job-{number}", **one) for number, one in enumerate(many)])

VIEWS = st.dictionaries(st.integers(0, 3).map("node-{}".format), st.integers(1, 8)).map(lambda free: SpareView(free=free))


def refused(view: SpareView, claims: Sequence[SpareClaim]) -> dict[str, str]:
    reasons = {one.job_id: spares.refusal(view, claims, one) for one in claims}
    return {name: reason for name, reason in reasons.items() if reason}


@given(VIEWS, CLAIMS)
def test_one_claim_is_never_refused_and_a_refusal_names_one_that_comes_first(view: SpareView, claims: list[SpareClaim]) -> None:
    """The claim that comes first in the order is never refused, and a loser's winner is itself not refused."""
    found, order = refused(view, claims), sorted(claims, key=spares.order)
    assert order[0].job_id not in found
    for name, reason in found.items():
        winner = next(one for one in claims if f"of job {one.job}:" in reason)
        assert winner.job_id not in found
        assert spares.order(winner) < spares.order(next(one for one in claims if one.job_id == name))


@given(VIEWS, CLAIMS)
def test_no_later_claim_changes_the_answer_to_an_earlier_one(view: SpareView, claims: list[SpareClaim]) -> None:
    """A claim that comes later in the order is decided after all earlier ones."""
    order = sorted(claims, key=spares.order)
    assert {name: why for name, why in refused(view, order).items() if name != order[-1].job_id} == refused(view, order[:-1])


@given(CLAIMS, st.randoms())
def test_the_order_of_messages_does_not_matter(claims: list[SpareClaim], random: object) -> None:
    """The same claims lead to the same answers, in whatever order they have arrived."""
    view, shuffled = SpareView(free={"node-0": 8, "node-1": 8}), list(claims)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert refused(view, shuffled) == refused(view, claims)


@given(CLAIMS)
def test_nobody_is_refused_while_each_claim_could_have_its_own_nodes(claims: list[SpareClaim]) -> None:
    """Claims are all granted if there is a usable node for every pod."""
    free = {f"spare-{number}": 8 for number in range(sum(one.pods for one in claims))}
    assert not refused(SpareView(free=free), claims)


@given(CLAIMS, VIEWS)
def test_whole_nodes_are_given_to_as_many_as_possible(claims: list[SpareClaim], view: SpareView) -> None:
    """Claims of one node each are met as far as possible: a loser has none even if all earlier ones chose theirs for it."""
    whole = [one.model_copy(update={"need": 8, "pods": 1}) for one in claims]
    nodes = SpareView(free=dict.fromkeys(view.free, 8))
    order = sorted(whole, key=spares.order)
    given_nodes: list[SpareClaim] = []
    for one in order:
        fits = _all_fit([*given_nodes, one], list(nodes.free))
        lost = bool(spares.refusal(nodes, order, one))
        if fits:
            given_nodes.append(one)
            assert not lost
        elif not lost:  # no earlier claim has a node that it could use
            usable = [node for node in nodes.free if node not in one.avoid_nodes]
            assert not usable


def _all_fit(claims: Sequence[SpareClaim], nodes: Sequence[str]) -> bool:
    if not claims:
        return True
    first, *rest = claims
    return any(node not in first.avoid_nodes and _all_fit(rest, [other for other in nodes if other != node]) for node in nodes)
