"""What the watcher has to tell, as decisions."""

from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model import keys
from rekindle.model.cluster import (
    LOOSE_PODS,
    Condition,
    JobObject,
    JobObjectStatus,
    JobPhase,
    JobSpec,
    JobView,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodPhase,
    PodSpec,
    PodStatus,
    PodTemplate,
)
from rekindle.model.fault import FaultKind
from rekindle.policy.intake import Tell, TellKind, Told, after, declined, due, observe

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(
    phase: JobPhase = JobPhase.RUNNING,
    *,
    deleted: bool = False,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    limits: dict[str, float | str] | None = None,
    kind: str = "LocalJob",
) -> JobObject:
    return JobObject(
        kind=kind,
        metadata=ObjectMeta(
            name="demo",
            uid="job",
            labels=labels or {},
            annotations=annotations or {},
            deletion_timestamp=NOW if deleted else None,
        ),
        spec=JobSpec(pods=2, ranks_per_pod=2, template=PodTemplate(command=("train",)), limits=limits or {}),
        status=JobObjectStatus(phase=phase),
    )


def pod(
    rank: int = 0,
    uid: str = "",
    *,
    node: str = "node-0",
    phase: PodPhase = PodPhase.RUNNING,
    backup: bool = False,
    deleted: bool = False,
    generation: str = "0",
) -> Pod:
    marks = {keys.POD_TYPE: "backup"} if backup else {}
    return Pod(
        metadata=ObjectMeta(
            name=f"demo-worker-{rank}",
            uid=uid or f"pod-{rank}",
            labels={keys.GENERATION: generation},
            annotations={keys.RANK_INDEX: str(rank), **marks},
            owner_uid="job",
            deletion_timestamp=NOW if deleted else None,
        ),
        spec=PodSpec(command=("train",), node_name=node),
        status=PodStatus(phase=phase, exit_code=1 if phase is PodPhase.FAILED else None),
    )


def manager(phase: PodPhase) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="demo-manager-0", uid="manager", owner_uid="job"),
        spec=PodSpec(command=("manage",), node_name="node-0"),
        status=PodStatus(phase=phase),
    )


def node(name: str = "node-0", *, sick: str = "", ready: Literal["True", "False"] = "True", since: datetime = NOW) -> Node:
    conditions = [Condition(type="Ready", status=ready, reason="" if ready == "True" else "NodeLost", last_transition_time=since)]
    if sick:
        conditions.append(Condition(type="SubHealthy", status="True", reason=sick, message="slow", last_transition_time=since))
    return Node(
        metadata=ObjectMeta(name=name, uid=f"uid-of-{name}"), status=NodeStatus(accelerators=8, conditions=tuple(conditions))
    )


def view(*pods: Pod, nodes: tuple[Node, ...] = (), of: JobObject | None = None) -> JobView:
    return JobView(job=of or job(), pods=pods, nodes=nodes or (node(),))


REGISTERED = Told(known=True, registered=True)


def news(told: Told, seen: JobView) -> tuple[Tell, ...]:
    return due(observe(told, seen), seen, NOW)


def tell_all(told: Told, seen: JobView) -> tuple[Told, list[Tell]]:
    """What is told until nothing is due."""
    told, tells = observe(told, seen), []
    while waiting := due(told, seen, NOW):
        tells.append(waiting[0])
        told = after(told, waiting[0], seen)
    return told, tells


def test_a_job_is_registered_before_anything_else() -> None:
    """Of a new job nothing is told before its registration is taken; then its faults are."""
    sick = view(pod(), nodes=(node(sick="slow"),))
    assert [tell.kind for tell in news(Told(), sick)] == [TellKind.REGISTER]
    _, tells = tell_all(Told(), sick)
    assert [tell.kind for tell in tells] == [TellKind.REGISTER, TellKind.FAULT]


HOT_SWITCH = {keys.SUB_HEALTHY_STRATEGY: "hotSwitch"}


@pytest.mark.parametrize(
    "changed",
    [
        job(labels={keys.SUB_HEALTHY_STRATEGY: "ignore"}),
        job(labels={**HOT_SWITCH, keys.PROCESS_RECOVER_ENABLE: "on"}),
        job(labels={**HOT_SWITCH, keys.FRAMEWORK: "mindspore"}),
        job(labels=HOT_SWITCH, annotations={keys.CAPABILITIES: "watchdog"}),
        job(labels=HOT_SWITCH, limits={"pause": 60}),
    ],
)
def test_a_job_that_says_something_else_is_registered_again(changed: JobObject) -> None:
    """Each of the owner's words, once, and before the news that it may decide about."""
    told, _ = tell_all(Told(), view(of=job(labels=HOT_SWITCH)))
    assert news(told, view(of=job(labels=HOT_SWITCH))) == ()
    _, tells = tell_all(told, view(pod(), of=changed, nodes=(node(sick="slow"),)))
    assert [tell.kind for tell in tells] == [TellKind.REGISTER, TellKind.FAULT]


@pytest.mark.parametrize("kind", ["LocalJob", LOOSE_PODS])
def test_what_nobody_said_registers_no_job_again(kind: str) -> None:
    """A downgrade that we wrote and lifted, and what other controllers write; and of pods that speak by turns nothing."""
    written = job(labels=HOT_SWITCH, annotations={"batch.kubernetes.io/job-tracking": ""}, kind=kind)
    downgraded = job(labels={keys.SUB_HEALTHY_STRATEGY: "ignore"}, annotations={keys.DOWNGRADED: "no spare"}, kind=kind)
    by_turns = [job(kind=kind)] if kind == LOOSE_PODS else []
    told, _ = tell_all(Told(), view(of=job(labels=HOT_SWITCH, kind=kind)))
    for changed in (downgraded, job(labels=HOT_SWITCH, kind=kind), written, *by_turns):
        told, tells = tell_all(told, view(of=changed))
        assert tells == []


def test_a_refused_registration_leaves_what_was_said_before() -> None:
    """A workflow that knows the job hears the news all the same; the registration is due until it is another. Of a job that is
    only observed now nothing is told: the workflow may not know it."""
    told, _ = tell_all(Told(), view(of=job(labels=HOT_SWITCH)))
    sick = view(pod(), of=job(labels={keys.SUB_HEALTHY_STRATEGY: "hot"}), nodes=(node(sick="slow"),))
    told = declined(observe(told, sick))
    assert [tell.kind for tell in news(told, sick)] == [TellKind.REGISTER, TellKind.FAULT]
    new_watcher = declined(observe(told.kept(), sick))
    assert [tell.kind for tell in news(new_watcher, sick)] == [TellKind.REGISTER, TellKind.FAULT]
    observed = sick.model_copy(update={"job": sick.job.model_copy(update={"observe": True}) if sick.job else None})
    for before in (told.kept(), Told()):
        assert [tell.kind for tell in news(declined(observe(before, observed)), observed)] == [TellKind.REGISTER]
    assert [tell.kind for tell in news(declined(observe(Told(), sick)), sick)] == [TellKind.REGISTER]


def test_an_ended_job_is_told_once_and_then_forgotten() -> None:
    """Deleted, being deleted or succeeded: the workflow learns it once; a job without a workflow needs no word."""
    for over in (JobView(), view(of=job(deleted=True)), view(of=job(JobPhase.SUCCEEDED))):
        told, tells = tell_all(REGISTERED, over)
        assert [tell.kind for tell in tells] == [TellKind.END]
        assert tells[0].reason
        assert news(told, over) == news(Told(), over) == ()


def test_a_job_whose_pods_all_failed_is_not_over() -> None:
    """A failed job may be brought back: its workflow lives."""
    assert TellKind.END not in {tell.kind for tell in news(REGISTERED, view(of=job(JobPhase.FAILED)))}


def test_sub_health_names_node_code_pods_and_ranks() -> None:
    """A sub-healthy node is one fault with all ranks that the job has on it, and none for pods elsewhere."""
    seen = view(pod(0), pod(1), nodes=(node(sick="slow-link"),))
    (tell,) = news(REGISTERED, seen)
    assert tell.fault is not None
    assert (tell.fault.kind, tell.fault.node, tell.fault.code) == (FaultKind.SUB_HEALTH, "node-0", "slow-link")
    assert (tell.fault.pod_ranks, tell.fault.ranks) == ((0, 1), (0, 1, 2, 3))
    assert news(REGISTERED, view(pod(node="node-1"), nodes=(node(sick="slow"), node("node-1")))) == ()


def test_a_sub_health_is_told_once_and_cleared_once() -> None:
    """The same condition is one episode; when it is over, that episode is cleared, although no pod is on the node any more."""
    sick = view(pod(), nodes=(node(sick="slow"),))
    told, (fault,) = tell_all(REGISTERED, sick)
    assert news(told, sick) == ()
    healthy = view(pod(node="node-1"), nodes=(node(), node("node-1")))
    told, (cleared,) = tell_all(told, healthy)
    assert fault.fault is not None
    assert (cleared.kind, cleared.episode) == (TellKind.CLEARED, fault.fault.episode)
    assert news(told, healthy) == ()


def test_a_node_that_falls_ill_again_is_another_episode() -> None:
    """The transition time, the code and the generation of the pods each make another episode."""
    first = view(pod(), nodes=(node(sick="slow"),))
    told, _ = tell_all(REGISTERED, first)
    for again in (
        view(pod(), nodes=(node(sick="slow", since=NOW + timedelta(seconds=1)),)),
        view(pod(), nodes=(node(sick="hot"),)),
        view(pod(uid="new", generation="second"), nodes=(node(sick="slow"),)),
    ):
        assert TellKind.FAULT in {tell.kind for tell in news(told, again)}


def test_a_backup_pod_does_not_train_yet() -> None:
    """A sub-healthy node is no fault of the job for the sake of a backup pod alone, until it is promoted."""
    sick = (node(sick="slow"),)
    assert news(REGISTERED, view(pod(backup=True), nodes=sick)) == ()
    assert len(news(REGISTERED, view(pod(), nodes=sick))) == 1


def test_a_lost_node_comes_before_its_pods() -> None:
    """A node that is not ready is told with the ranks on it, dead or not, before the failed pods themselves."""
    seen = view(pod(0, phase=PodPhase.FAILED), pod(1), nodes=(node(ready="False"),))
    first, second = (tell.fault for tell in news(REGISTERED, seen))
    assert first is not None
    assert second is not None
    assert (first.kind, first.pod_ranks) == (FaultKind.NODE, (0, 1))
    assert (second.kind, second.pod_uid) == (FaultKind.POD, "pod-0")


def test_a_fault_is_dated_by_who_saw_it() -> None:
    """Not by the cluster, whose times are whole seconds: a pod that fails and a node that is lost right behind a restart of the
    job would be of the time before it, and so be dropped as done with."""
    rounded = NOW - timedelta(seconds=0.9)
    ready = Condition(type="Ready", status="False", last_transition_time=rounded)
    failed = pod(1, node="node-1", phase=PodPhase.FAILED)
    failed = failed.model_copy(update={"status": failed.status.model_copy(update={"conditions": (ready,)})})
    nodes = (node(ready="False", since=rounded), node("node-1", sick="slow", since=rounded))
    tells = news(REGISTERED, view(pod(), failed, pod(1, "other", node="node-1"), nodes=nodes))
    faults = [tell.fault for tell in tells if tell.fault]
    assert {fault.kind for fault in faults} == {FaultKind.NODE, FaultKind.POD, FaultKind.SUB_HEALTH}
    assert {fault.seen_at for fault in faults} == {NOW}


def test_only_a_pod_that_was_not_told_to_end_can_fail() -> None:
    """A failed pod is a fault by name and UID; not when it is being deleted, succeeded, or is the manager."""
    (tell,) = news(REGISTERED, view(pod(phase=PodPhase.FAILED)))
    assert tell.fault is not None
    assert (tell.fault.pod, tell.fault.pod_uid, tell.fault.backup) == ("demo-worker-0", "pod-0", False)
    for innocent in (
        pod(phase=PodPhase.FAILED, deleted=True),
        pod(phase=PodPhase.SUCCEEDED),
        manager(PodPhase.FAILED),
    ):
        assert news(REGISTERED, view(innocent)) == ()


def test_a_failed_backup_says_that_it_is_one() -> None:
    """The failure of a backup pod is told, and marked as the hot switch's own affair."""
    (tell,) = news(REGISTERED, view(pod(), pod(uid="spare", backup=True, phase=PodPhase.FAILED)))
    assert tell.fault is not None
    assert tell.fault.backup


def test_a_pod_that_vanished_is_missed_once() -> None:
    """A running pod that is gone without having been told to end is a fault, told once."""
    told = observe(REGISTERED, view(pod()))
    told, (tell,) = tell_all(told, view())
    assert tell.fault is not None
    assert (tell.fault.kind, tell.fault.pod_uid) == (FaultKind.POD, "pod-0")
    assert news(told, view()) == ()


def test_nobody_misses_a_pod_that_was_deleted_or_replaced() -> None:
    """No fault: a pod that was terminating when last seen, or whose rank another pod holds now."""
    leaving = observe(REGISTERED, view(pod(deleted=True)))
    assert news(leaving, view()) == ()
    replaced = observe(REGISTERED, view(pod()))
    assert news(replaced, view(pod(uid="new"))) == ()


def test_a_new_watcher_tells_again_and_takes_back_what_is_over() -> None:
    """What a watcher keeps lets the next one register again, tell open faults again, clear what healed, and end what is gone."""
    sick = view(pod(), nodes=(node(sick="slow"),))
    told, _ = tell_all(REGISTERED, sick)
    kept = Told.model_validate_json(told.kept().model_dump_json())
    assert [tell.kind for tell in tell_all(kept, sick)[1]] == [TellKind.REGISTER, TellKind.FAULT]
    assert [tell.kind for tell in tell_all(kept, view(pod()))[1]] == [TellKind.REGISTER, TellKind.CLEARED]
    assert [tell.kind for tell in tell_all(kept, JobView())[1]] == [TellKind.END]


PODS = st.builds(
    pod,
    rank=st.integers(0, 1),
    uid=st.sampled_from(["a", "b", "c", "d"]),
    node=st.sampled_from(["node-0", "node-1", ""]),
    phase=st.sampled_from(PodPhase),
    backup=st.booleans(),
    deleted=st.booleans(),
    generation=st.sampled_from(["0", "1"]),
)
NODES = st.tuples(
    *(
        st.builds(node, st.just(name), sick=st.sampled_from(["", "x", "y"]), ready=st.sampled_from(["True", "False"]))
        for name in ("node-0", "node-1")
    )
)
JOBS = st.one_of(st.none(), st.builds(job, st.sampled_from(JobPhase), deleted=st.booleans()))
VIEWS = st.builds(
    lambda job, pods, nodes: JobView(job=job, pods=tuple(pods), nodes=nodes),
    JOBS,
    st.lists(PODS, max_size=4, unique_by=lambda pod: pod.metadata.uid),
    NODES,
)


@given(st.lists(VIEWS, max_size=6))
def test_whatever_happens_every_episode_is_told_once_and_the_telling_ends(views: list[JobView]) -> None:
    """Over any history: telling comes to an end, no episode is told twice in one life of the job, and ranks exist."""
    told = Told()
    episodes: set[str] = set()
    for seen in views:
        told, tells = tell_all(told, seen)
        for tell in tells:
            if tell.kind is TellKind.END:
                episodes.clear()
            if tell.fault:
                assert tell.update_id not in episodes
                assert set(tell.fault.ranks) <= {0, 1, 2, 3}
                episodes.add(tell.update_id)
