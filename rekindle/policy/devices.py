"""Which device of which node belongs to which rank. Asked where people, or a platform, name devices of nodes. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rekindle.model.cluster import JobView, Node, Pod
from rekindle.model.fault import HOLDER_LENGTH
from rekindle.model.keys import DEVICES
from rekindle.policy.device_names import known, local_ids, plain, uuids
from rekindle.policy.pod_ranks import RankedPod, ranked


class DeviceOfRank(NamedTuple):
    rank: int
    pod_rank: int
    node: str
    device: str
    """Its local id on the node: `0`, `1`, ..."""

    holder: str
    """UID of the pod that holds the rank, as far as a sighting says it."""


class Struck(NamedTuple):
    """Whom something concerns that is wrong on a node."""

    pods: Sequence[RankedPod]
    ranks: tuple[int, ...] = ()
    """Those that have the device in question; empty: all of these pods."""


def struck(view: JobView, node: Node, named: Sequence[str], pods: Sequence[RankedPod]) -> Struck:
    """Args:
    named: devices of the node, by local ids, UUIDs or PCI addresses; none: all of it.
    pods: of the job, on the node.
    """
    if not named or not pods:
        return Struck(pods)
    of_node = known(node.metadata.annotations.get(DEVICES, ""))
    ids = local_ids(named, of_node)
    view = _with_local_ids(view, node.metadata.name, of_node)
    pods = [one._replace(pod=_with_local_id(one.pod, of_node)) for one in pods]
    if ids is not None and all(one.pod.status.devices for one in pods):
        hit = [one for one in pods if not set(one.pod.status.devices).isdisjoint(ids)]
        return _with_ranks(view, node, ids, hit)
    by_uuid = uuids(named)
    if by_uuid and all(one.pod.status.uuids for one in pods):
        return Struck([one for one in pods if not set(by_uuid).isdisjoint(map(plain, one.pod.status.uuids))])
    here = [row for row in devices(view) if row.node == node.metadata.name]
    counts = len(pods) == 1 or not any(one.pod.status.uuids for one in pods)
    if ids is None or not counts or len(here) != node.status.accelerators or not {row.device for row in here}.issuperset(ids):
        return Struck(pods)  # others have devices here too, or names of another kind: nobody knows whose it is
    owners = {row.pod_rank for row in here if row.device in ids}
    return _with_ranks(view, node, ids, [one for one in pods if one.rank in owners or one.backup])


def _with_ranks(view: JobView, node: Node, ids: Sequence[str], hit: Sequence[RankedPod]) -> Struck:
    own = {one.rank for one in hit if not one.backup}
    rows = devices(view) if own else ()
    ranks = {row.rank for row in rows if row.node == node.metadata.name and row.device in ids and row.pod_rank in own}
    return Struck(hit, tuple(sorted(ranks)))


def _with_local_ids(view: JobView, node: str, of_node: Mapping[str, str]) -> JobView:
    if not of_node:
        return view
    pods = (_with_local_id(pod, of_node) if pod.spec.node_name == node else pod for pod in view.pods)
    return view.model_copy(update={"pods": tuple(pods)})


def _with_local_id(pod: Pod, of_node: Mapping[str, str]) -> Pod:
    """In the order of the node, as a process sees its GPUs; where the node does not know one of them nothing is said."""
    ids = [of_node.get(plain(uuid), "") for uuid in pod.status.uuids]
    if pod.status.devices or not ids or "" in ids:
        return pod
    return pod.model_copy(update={"status": pod.status.model_copy(update={"devices": tuple(sorted(ids, key=int))})})


def devices(view: JobView) -> tuple[DeviceOfRank, ...]:
    """By rank. A pod rank that no pod holds on a node, or that two pods claim, has none.

    The n-th device of a pod belongs to its n-th local rank. Of more devices than ranks each rank has its share, in order, and
    as many rows; of more ranks than devices several share one.
    """
    return tuple(sorted(_rows(view))) if view.job else ()


def _rows(view: JobView) -> Iterator[DeviceOfRank]:
    assert view.job
    each, before = view.job.spec.ranks_per_pod, Counter[str]()
    for pod_rank, pod in sorted(_holders(view, view.job.spec.pods).items()):
        node, own = pod.spec.node_name, pod.status.devices
        if not own:
            own = tuple(str(before[node] + local) for local in range(each))
            before[node] += each
        pairs = max(each, len(own))
        for pair in range(pairs):
            rank, device = pod_rank * each + pair * each // pairs, own[pair * len(own) // pairs]
            yield DeviceOfRank(rank, pod_rank, node, device, pod.metadata.uid[:HOLDER_LENGTH])


def _holders(view: JobView, count: int) -> dict[int, Pod]:
    """By pod rank."""
    holding = [one for one in ranked(view.pods) if one.holds and one.rank is not None and one.rank < count]
    claims = Counter(one.rank for one in holding)
    return {one.rank: one.pod for one in holding if one.rank is not None and claims[one.rank] == 1 and one.pod.spec.node_name}
