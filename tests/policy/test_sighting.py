"""Facts of a job that matter, as a cluster shows them."""

from datetime import timedelta
from itertools import pairwise
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.contrib.pydantic import pydantic_data_converter

from rekindle.model.cluster import JobPhase, JobView, Node, Pod, PodPhase
from rekindle.model.fault import UNKNOWN_HOLDER, Fault, FaultKind, Sighting
from rekindle.model.rule_file import plain
from rekindle.model.sizes import MOST_PODS, MOST_STANDBYS
from rekindle.policy.detection import refusals
from rekindle.policy.detection.sighting import MOST_BYTES, MOST_FAULTS, gone, matters, sight
from tests.support.job_views import NOW, job, kept, manager, node, pod, view

PAYLOAD = 256 * 1024
"""Bytes of the largest payload that we send."""


def faults(seen: JobView, kind: FaultKind | None = None) -> list[Fault]:
    return [fault for fault in sight(seen).faults if kind in (None, fault.kind)]


# ---- who holds which rank


def test_a_rank_is_held_by_the_pod_that_carries_it() -> None:
    """The holder of a pod rank is the beginning of the pod's UID, also while the pod waits for a node and after it has
    succeeded."""
    for phase in (PodPhase.PENDING, PodPhase.RUNNING, PodPhase.SUCCEEDED):
        assert sight(view(pod(1, "0123456789", phase=phase))).holders == ("", "01234567")


@pytest.mark.parametrize(
    "other",
    [
        pod(1, deleted=True),
        pod(1, deleted=True, phase=PodPhase.SUCCEEDED),
        pod(1, phase=PodPhase.FAILED),
        pod(1, backup=True),
        pod(7),
        pod(1, role="scheduler"),
        pod(None),
    ],
)
def test_nobody_else_holds_a_rank(other: Pod) -> None:
    """A pod that is ending (drained, evicted, preempted, deleted), that failed, is a backup or has no rank holds none."""
    assert sight(view(pod(0), other)).holders == ("pod-0", "")


def test_a_rank_that_two_pods_carry_has_no_known_holder() -> None:
    """The pod that trains is not known; that is a problem, and no fault."""
    seen = sight(view(pod(0), pod(0, "other")))
    assert (seen.holders, len(seen.problems), seen.faults) == ((UNKNOWN_HOLDER, ""), 1, ())


def test_the_generation_is_that_of_most_holders() -> None:
    """The later of two equally common generations counts. Pods that hold no rank do not count."""
    assert sight(view(pod(0, generation="1"), pod(1, generation="1"), pod(0, "b", generation="2"))).generation == "1"
    assert sight(view(pod(0, generation="9"), pod(1, generation="10"))).generation == "10"
    assert sight(view(pod(0, generation="1", phase=PodPhase.FAILED))).generation == ""


def test_the_manager_is_known_by_its_pod_and_its_start() -> None:
    """Started again in its pod it is another process; of one that does not run nothing is known."""
    assert sight(view(manager())).manager == "manager/2026-01-01T00:00:00+00:00"
    again = manager(started=NOW + timedelta(seconds=1))
    assert sight(view(manager("old"), again)).manager == "manager/2026-01-01T00:00:01+00:00"
    for none in (manager(phase=PodPhase.FAILED), manager(phase=PodPhase.PENDING), manager(deleted=True), pod(0)):
        assert sight(view(none)).manager == ""


# ---- failed pods


def test_a_failed_pod_is_a_fault() -> None:
    """The fault names the pod, its ranks, how it ended and its last message."""
    (fault,) = faults(view(pod(0), pod(1, phase=PodPhase.FAILED, exit_code=9, message="out of memory", generation="3")))
    assert fault == Fault(
        id="failed/3/exit 9",
        kind=FaultKind.POD,
        pod_ranks=(1,),
        ranks=(2, 3),
        node="node-0",
        pod="demo-worker-1",
        pod_uids=("pod-1",),
        generation="3",
        code="exit 9",
        message="pod demo-worker-1 failed: out of memory",
        source="watcher",
    )


def test_pods_that_fail_alike_are_one_fault() -> None:
    """The fault names ten pods and the number of the others. Pods with another end, generation or kind are faults of their
    own."""
    alike = [pod(rank, f"uid-{rank}", phase=PodPhase.FAILED, node=f"node-{rank}") for rank in range(12)]
    others = [pod(12, phase=PodPhase.FAILED, exit_code=2), pod(13, phase=PodPhase.FAILED, generation="1")]
    backup = pod(14, phase=PodPhase.FAILED, backup=True)
    found = faults(view(*reversed(alike), *others, backup, of=job(pods=15)))
    assert [fault.id for fault in found] == ["failed/0/exit 1", "failed/0/exit 2", "failed/1/exit 1", "backup-failed/0/exit 1"]
    assert [fault.backup for fault in found] == [False, False, False, True]
    assert found[0].pod_ranks == tuple(range(12))
    assert (found[0].pod, found[0].node) == ("demo-worker-0", "")
    assert found[0].pod_uids == tuple(f"uid-{rank}" for rank in range(10))
    names = ", ".join(f"demo-worker-{rank}" for rank in range(10))
    assert found[0].message == f"12 pods failed: exit 1 ({names} and 2 more)"


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfcpu", "TopologyAffinityError"])
def test_pods_that_nodes_have_refused_are_a_fault_of_each_node(reason: str) -> None:
    """No container of them ever ran: the next ones are not put there, as those are that failed by themselves."""
    refused = [
        pod(rank, f"uid-{rank}", phase=PodPhase.FAILED, node=f"node-{rank}", exit_code=None, reason=reason) for rank in range(2)
    ]
    found = faults(view(*refused, pod(2, phase=PodPhase.FAILED, node="node-2"), of=job(pods=3)))
    assert [(fault.id, fault.code, fault.node) for fault in found] == [
        (f"failed/0/{reason}/node-0", reason, "node-0"),
        (f"failed/0/{reason}/node-1", reason, "node-1"),
        ("failed/0/exit 1", "exit 1", "node-2"),
    ]
    assert refusals.refusing(found) == ("node-0", "node-1")


def test_a_pod_that_was_evicted_was_not_refused() -> None:
    """An evicted pod has run on its node, and the node may take the next one."""
    (fault,) = faults(view(pod(0, phase=PodPhase.FAILED, exit_code=None, reason="Evicted")))
    assert (fault.code, refusals.refusing([fault])) == ("", ())


def test_only_a_pod_that_was_not_told_to_end_can_fail() -> None:
    """No fault: one that is being deleted, one that succeeded, and the manager."""
    for innocent in (pod(phase=PodPhase.FAILED, deleted=True), pod(phase=PodPhase.SUCCEEDED), manager(phase=PodPhase.FAILED)):
        assert faults(view(innocent)) == []


def test_a_failed_pod_of_no_rank_of_the_job_is_a_fault_all_the_same() -> None:
    """A failed pod without a rank of the job is reported, although its ranks are not known."""
    (fault,) = faults(view(pod(7, phase=PodPhase.FAILED)))
    assert (fault.kind, fault.pod_ranks, fault.ranks) == (FaultKind.POD, (), ())


# ---- nodes


def test_sub_health_is_a_fault_of_each_pod_on_the_node() -> None:
    """The fault names node, code, pod and ranks. Pods elsewhere have none."""
    seen = view(pod(0), pod(1), nodes=(node(sick="slow-link"),))
    first, second = faults(seen)
    assert (first.kind, first.node, first.code, first.message) == (FaultKind.SUB_HEALTH, "node-0", "slow-link", "slow")
    assert (first.pod_ranks, first.ranks, first.pod, first.pod_uids) == ((0,), (0, 1), "demo-worker-0", ("pod-0",))
    assert first.id == "uid-of-node-0/plain/sub-healthy/0/0"
    assert (second.pod_ranks, second.ranks) == ((1,), (2, 3))
    assert faults(view(pod(node="node-1"), nodes=(node(sick="slow"), node("node-1")))) == []


def test_a_second_pod_on_a_sick_node_is_a_fault_of_its_own() -> None:
    """A pod that comes to the node later, or is of another generation, has a fault of its own. The first fault stays as it
    was."""
    sick = (node(sick="slow"),)
    (before,) = faults(view(pod(0), nodes=sick))
    same, news = faults(view(pod(0), pod(1), nodes=sick))
    assert same == before
    assert news.id != before.id
    (again,) = faults(view(pod(0, "new", generation="1"), nodes=sick))
    assert again.id != before.id


def test_a_sub_health_that_never_went_away_is_the_same_one() -> None:
    """Agents change reason and time while the condition stands: both are news of the same fault."""
    seen = [
        faults(view(pod(), nodes=(node(sick=code, since=since),)))[0]
        for code, since in (("slow", NOW), ("hot", NOW), ("slow", NOW + timedelta(seconds=1)))
    ]
    assert len({fault.id for fault in seen}) == 1
    assert [fault.code for fault in seen] == ["slow", "hot", "slow"]


@pytest.mark.parametrize("ready", ["False", "Unknown"])
def test_a_lost_node_is_the_same_one_whatever_is_said_of_it(ready: Literal["False", "Unknown"]) -> None:
    """A node that changes between not ready and unknown, or is deleted, is lost since it was not ready first."""
    (first,) = faults(view(pod(), nodes=(node(ready="False"),)))
    (again,) = faults(view(pod(), nodes=(node(ready=ready, since=NOW + timedelta(seconds=9)),)))
    (deleted,) = faults(view(pod(), nodes=(gone("node-0"),)))
    assert first.id == again.id == deleted.id


def test_a_backup_pod_does_not_train_yet() -> None:
    """A sub-healthy node is no fault of the job for the sake of a backup pod alone; a lost one is the affair of who made it."""
    (lost,) = faults(view(pod(backup=True), nodes=(node(sick="slow", ready="False"),)))
    assert (lost.kind, lost.backup, lost.node, lost.pod_uids) == (FaultKind.NODE, True, "node-0", ("pod-0",))


def test_pods_of_a_job_and_backups_on_one_lost_node_are_told_apart() -> None:
    """The fault of a backup alone is marked, since it is no reason to recover the job."""
    found = faults(view(pod(0), pod(1, "b", node="node-0", backup=True), nodes=(node(ready="False"),)))
    assert [(fault.backup, fault.pod_ranks) for fault in found] == [(False, (0,)), (True, (1,))]


@pytest.mark.parametrize("ready", ["False", "Unknown"])
def test_a_lost_node_comes_before_its_pods(ready: Literal["False", "Unknown"]) -> None:
    """A node that is not ready is a fault with the ranks on it, dead or not, before the failed pods themselves."""
    first, second = faults(view(pod(0, phase=PodPhase.FAILED), pod(1), nodes=(node(ready=ready),)))
    assert (first.kind, first.pod_ranks, first.message) == (FaultKind.NODE, (0, 1), "node node-0 is lost")
    assert (second.kind, second.pod_uids) == (FaultKind.POD, ("pod-0",))


@pytest.mark.parametrize("wishes", [{"sick": "slow"}, {"ready": "False"}])
def test_a_fault_names_no_rank_that_the_job_does_not_have(wishes: dict[str, Any]) -> None:
    """A fault with an unknown rank would be refused as a whole, and its other ranks would be lost."""
    (fault,) = faults(view(pod(1), pod(7), nodes=(node(**wishes),)))
    assert (fault.pod_ranks, fault.ranks) == ((1,), (2, 3))


def test_only_wrong_nodes_matter() -> None:
    """Healthy nodes can be left out of a view of thousands of nodes."""
    assert not matters(node())
    assert all(matters(one) for one in (node(sick="slow"), node(ready="False"), node(ready="Unknown")))


# ---- any job, and the largest


def test_of_a_job_that_is_gone_nothing_is_seen() -> None:
    """A job that is gone has an empty sighting, although its pods may outlive it for a while."""
    assert sight(JobView(pods=(pod(0),))) == Sighting()


ENDED: dict[str, Any] = {"standby": True, "phase": PodPhase.FAILED, "message": "the image cannot be pulled " * 20}


def largest(sick: int) -> JobView:
    """5,000 pods of two ranks: every fourth failed, the nodes of others are lost and sub-healthy at once, no standby lives."""
    uid = "{:08x}-0000-4000-8000-000000000000".format
    failed = dict.fromkeys(range(0, MOST_PODS, 4), PodPhase.FAILED)
    pods = [
        pod(
            rank,
            uid(rank),
            name=f"gpt-of-the-research-group-worker-{rank}",
            node=_node(rank),
            phase=failed.get(rank, PodPhase.RUNNING),
        )
        for rank in range(MOST_PODS)
    ]
    words = "the link to the leaf switch has lost more packets than it may " * 20
    nodes = [node(_node(rank), sick="LinkFlapping" * 10, ready="False", words=words) for rank in range(1, 4 * sick, 4)]
    ended = [pod(None, uid(MOST_PODS + number), name=f"{number:0200}", **ENDED) for number in range(MOST_STANDBYS)]
    return JobView(job=job(pods=MOST_PODS), pods=(*pods, *ended), nodes=tuple(nodes))


def _node(number: int) -> str:
    return f"node-{number:05}.rack-{number // 16:03}.training.example.com"


async def test_the_largest_job_at_its_worst_fits_into_one_payload() -> None:
    """The job has 1,250 failed pods and 1,000 unhealthy nodes. Only names are omitted, and their number is given."""
    seen = sight(largest(sick=1000))
    (payload,) = await pydantic_data_converter.encode([seen])
    assert len(payload.SerializeToString()) <= PAYLOAD
    (read,) = await pydantic_data_converter.decode([payload], [Sighting])
    assert read == seen
    lost = [fault for fault in seen.faults if fault.kind is FaultKind.NODE]
    sick = [fault for fault in seen.faults if fault.kind is FaultKind.SUB_HEALTH]
    for found in (lost, sick):
        assert {rank for fault in found for rank in fault.pod_ranks} == set(range(1, 4000, 4))
        assert all(one.node < other.node for one, other in pairwise(found))
        assert sum(len(fault.model_dump_json()) for fault in found[:-1]) <= MOST_BYTES
        assert 8 < len(found) <= MOST_FAULTS
        assert f"(and {1000 - len(found)} more " in found[-1].message
    assert len(seen.standbys) == MOST_STANDBYS
    (failed,) = (fault for fault in seen.faults if fault.kind is FaultKind.POD)
    assert failed.pod_ranks == tuple(range(0, MOST_PODS, 4))
    assert (len(failed.pod_uids), failed.message[:24]) == (10, "1250 pods failed: exit 1")


PODS = st.builds(
    pod,
    st.sampled_from([None, "", "0", "1", "7", "x"]),
    st.sampled_from(["a", "b", "c", "d"]),
    node=st.sampled_from(["node-0", "node-1", ""]),
    phase=st.sampled_from(PodPhase),
    backup=st.booleans(),
    deleted=st.booleans(),
    generation=st.sampled_from(["0", "1"]),
    role=st.sampled_from(["worker", "manager"]),
)
NODES = st.tuples(
    *(
        st.builds(node, st.just(name), sick=st.sampled_from(["", "x", "y"]), ready=st.sampled_from(["True", "False"]))
        for name in ("node-0", "node-1")
    )
)


@given(st.lists(PODS, max_size=6, unique_by=lambda one: one.metadata.uid), NODES, st.sampled_from(JobPhase), st.randoms())
def test_the_same_world_gives_an_equal_value(pods: list[Pod], nodes: tuple[Node, ...], phase: JobPhase, random: Any) -> None:
    """The sighting does not depend on the order of lists, nor on how little of the objects is kept. Each fault has an id of its
    own, and names only ranks of the job."""
    seen = sight(JobView(job=job(phase), pods=tuple(pods), nodes=nodes))
    random.shuffle(pods)
    assert sight(JobView(job=job(phase), pods=tuple(pods), nodes=nodes[::-1])) == seen
    assert sight(JobView(job=job(phase), pods=tuple(pods), nodes=tuple(filter(matters, nodes)))) == seen
    assert sight(kept(JobView(job=job(phase), pods=tuple(pods), nodes=nodes), plain())) == seen
    assert len(seen.holders) == 2
    assert len({fault.id for fault in seen.faults}) == len(seen.faults)
    assert {rank for fault in seen.faults for rank in fault.ranks} <= {0, 1, 2, 3}
