"""Maps devices of nodes to ranks, for people and platforms that name devices. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rekindle.model.cluster import JobObject, JobView, Node, Pod
from rekindle.model.fault import HOLDER_LENGTH
from rekindle.model.keys import DEVICES
from rekindle.model.layout import Layout
from rekindle.policy.detection.device_names import known, local_ids, plain, uuids
from rekindle.policy.detection.pod_ranks import RankedPod, ranked


class DeviceOfRank(NamedTuple):
    rank: int
    pod_rank: int
    node: str
    device: str
    """Local id of the device on its node: `0`, `1`, ..."""

    holder: str
    """First characters of the UID of the pod that holds the rank, as in a sighting."""


class Held(NamedTuple):
    """Holders of the pod ranks of a job. Computed once for all nodes of the job, since there may be thousands."""

    layout: Layout

    by_node: Mapping[str, Sequence[tuple[int, Pod]]]
    """Pod ranks and their pods, by node."""


class Struck(NamedTuple):
    """Pods and ranks that are affected by a fact about a node."""

    pods: Sequence[RankedPod]
    ranks: tuple[int, ...] = ()
    """Ranks that use the device in question. Empty: all ranks of these pods."""


def struck(held: Held, node: Node, named: Sequence[str], pods: Sequence[RankedPod]) -> Struck:
    """Returns the pods and ranks of a job that use some devices of a node.

    Args:
        named: devices of the node, by local ids, UUIDs or PCI addresses. Empty: the whole node.
        pods: pods of the job on the node.
    """
    if not named or not pods:
        return Struck(pods)
    of_node = known(node.metadata.annotations.get(DEVICES, ""))
    ids = local_ids(named, of_node)
    here = [(rank, _with_local_id(pod, of_node)) for rank, pod in held.by_node.get(node.metadata.name, ())]
    rows = list(_rows(held.layout, here))
    pods = [one._replace(pod=_with_local_id(one.pod, of_node)) for one in pods]
    if ids is not None and all(one.pod.status.devices for one in pods):
        return _with_ranks(rows, ids, [one for one in pods if not set(one.pod.status.devices).isdisjoint(ids)])
    by_uuid = uuids(named)
    if by_uuid and all(one.pod.status.uuids for one in pods):
        return Struck([one for one in pods if not set(by_uuid).isdisjoint(map(plain, one.pod.status.uuids))])
    if ids is None or len(here) != 1 or len(rows) != node.status.accelerators or not {row.device for row in rows}.issuperset(ids):
        return Struck(pods)  # other pods use devices here too, or names are of another kind: the owner is unknown
    owners = {row.pod_rank for row in rows if row.device in ids}
    return _with_ranks(rows, ids, [one for one in pods if one.rank in owners or one.backup])


def _with_ranks(rows: Iterable[DeviceOfRank], ids: Sequence[str], hit: Sequence[RankedPod]) -> Struck:
    own = {one.rank for one in hit if not one.backup}
    return Struck(hit, tuple(sorted({row.rank for row in rows if row.device in ids and row.pod_rank in own})))


def _with_local_id(pod: Pod, of_node: Mapping[str, str]) -> Pod:
    """Returns the pod with the local ids of its UUIDs in ascending order, as a process sees its GPUs. It is unchanged if the node
    does not know one of them."""
    ids = [of_node.get(plain(uuid), "") for uuid in pod.status.uuids]
    if pod.status.devices or not ids or "" in ids:
        return pod
    return pod.model_copy(update={"status": pod.status.model_copy(update={"devices": tuple(sorted(ids, key=int))})})


def devices(view: JobView) -> tuple[DeviceOfRank, ...]:
    """Returns the device of each rank, by rank. A pod rank that no pod holds on a node, or that two pods claim, has none.

    The n-th device of a pod belongs to its n-th local rank. If there are more devices than ranks, they are divided in order, and
    a rank has a row for each of its devices. If there are more ranks than devices, several ranks share one.
    """
    if view.job is None:
        return ()
    held = held_by_node(view.job, ranked(view.pods))
    return tuple(sorted(row for pods in held.by_node.values() for row in _rows(held.layout, pods)))


def held_by_node(job: JobObject, pods: Iterable[RankedPod]) -> Held:
    holding = [one for one in pods if one.holds and one.rank is not None and one.rank < job.spec.pods]
    claims = Counter(one.rank for one in holding)
    found: dict[str, list[tuple[int, Pod]]] = {}
    for one in holding:
        if one.rank is not None and claims[one.rank] == 1 and one.pod.spec.node_name:
            found.setdefault(one.pod.spec.node_name, []).append((one.rank, one.pod))
    return Held(job.spec.layout, found)


def _rows(layout: Layout, pods: Iterable[tuple[int, Pod]]) -> Iterator[DeviceOfRank]:
    """Yields the device of each rank for the pods of one node."""
    before, each = 0, layout.ranks_per_pod
    for pod_rank, pod in sorted(pods, key=lambda one: one[0]):
        node, own = pod.spec.node_name, pod.status.devices
        if not own:
            own = tuple(str(before + local) for local in range(each))
            before += each
        pairs = max(each, len(own))
        for pair in range(pairs):
            rank, device = layout.ranks_of(pod_rank)[pair * each // pairs], own[pair * len(own) // pairs]
            yield DeviceOfRank(rank, pod_rank, node, device, pod.metadata.uid[:HOLDER_LENGTH])
