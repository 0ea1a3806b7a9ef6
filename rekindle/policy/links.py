"""From devices as people name them to the ranks that have them; and what a job remembers of links that were switched. Pure."""

from collections.abc import Iterable, Sequence

from rekindle.model.activity_values import LinkTarget, LinkTargets
from rekindle.model.bounds import few
from rekindle.model.fault import EXPECTED_HOLDER, UNKNOWN_HOLDER
from rekindle.model.links import MovedLinks, NodeLinks, OnBackup
from rekindle.model.state import JobState
from rekindle.policy.devices import DeviceOfRank

MOST_PODS = 256
"""Pods of a job that have devices on their backup links at once. Source: ours; all of them are in the state of its workflow."""


def resolved(devices: Iterable[DeviceOfRank], links: Sequence[NodeLinks]) -> LinkTargets:
    """The ranks of these devices, pod by pod, or the first device that the job has not."""
    of_nodes: dict[str, dict[str, list[DeviceOfRank]]] = {}
    for device in devices:
        of_nodes.setdefault(device.node, {}).setdefault(device.device, []).append(device)
    targets: list[LinkTarget] = []
    for one in links:
        here = of_nodes.get(one.node)
        if here is None:
            return LinkTargets(problem=f"node: {one.node} has no pod of the job, accepted are {few(sorted(of_nodes)) or 'none'}")
        if wrong := [device for device in one.devices if device not in here]:
            accepted = few(sorted(here, key=_number))
            return LinkTargets(problem=f"device: {wrong[0]} of {one.node} is none of the job's, accepted are {accepted}")
        targets.extend(_by_pod([row for device in one.devices for row in here[device]], backup=one.backup))
    return LinkTargets(pods=tuple(targets))


def _number(device: str) -> tuple[int, str]:
    return (int(device) if device.isdecimal() else 0, device)


def _by_pod(devices: Sequence[DeviceOfRank], *, backup: bool) -> list[LinkTarget]:
    of_pods: dict[int, list[DeviceOfRank]] = {}
    for device in devices:
        of_pods.setdefault(device.pod_rank, []).append(device)
    return [
        LinkTarget(
            moved=MovedLinks(
                pod_rank=pod_rank,
                holder=here[0].holder,
                node=here[0].node,
                devices=tuple(dict.fromkeys(one.device for one in here)),
                backup=backup,
            ),
            ranks=tuple(sorted({one.rank for one in here})),
        )
        for pod_rank, here in sorted(of_pods.items())
    ]


# ---- what a job remembers


def moved(before: Sequence[OnBackup], links: Iterable[MovedLinks], maintenance: str) -> tuple[OnBackup, ...]:
    """Which devices are on their backup links, when these were moved. The last word on a device holds."""
    here = {(one.pod_rank, one.maintenance): one for one in before}
    for link in links:
        for key, one in list(here.items()):
            if one.pod_rank == link.pod_rank:
                left = () if one.holder != link.holder else tuple(device for device in one.devices if device not in link.devices)
                here[key] = one.model_copy(update={"devices": left})
        if link.backup:
            key = (link.pod_rank, maintenance)
            known = here[key].devices if key in here else ()
            here[key] = OnBackup(
                pod_rank=link.pod_rank,
                holder=link.holder,
                node=link.node,
                devices=(*known, *link.devices),
                maintenance=maintenance,
            )
    return tuple(one for _, one in sorted(here.items()) if one.devices)


def reset(state: JobState) -> tuple[OnBackup, ...]:
    """Those whose pods have been followed by others, which began on their first links."""
    return tuple(one for one in state.links if _has_another_holder(state, one))


def _has_another_holder(state: JobState, one: OnBackup) -> bool:
    now = state.holders[one.pod_rank] if one.pod_rank < len(state.holders) else ""
    return now == EXPECTED_HOLDER or now not in ("", UNKNOWN_HOLDER, one.holder)


def described(links: Iterable[OnBackup]) -> str:
    return few([f"{one.node} devices {','.join(one.devices)}" for one in links], between="; ")


def taken(state: JobState, links: Iterable[NodeLinks], maintenance: str) -> str:
    """Which of these devices somebody else has moved to its backup link already, in words; empty: none."""
    for one in links:
        for there in state.links:
            both = [device for device in one.devices if device in there.devices]
            if one.backup and both and there.node == one.node and there.maintenance != maintenance:
                return f"device {both[0]} of {one.node} is on its backup link already, moved by {there.maintenance or 'a client'}"
    return ""


# ---- what a maintenance remembers


def after(before: Sequence[NodeLinks], moves: Iterable[NodeLinks]) -> tuple[NodeLinks, ...]:
    """Which devices are on the backup link, behind these movements."""
    here = {one.node: dict.fromkeys(one.devices) for one in before}
    for move in moves:
        devices = here.setdefault(move.node, {})
        for device in move.devices:
            if move.backup:
                devices[device] = None
            else:
                devices.pop(device, None)
    return tuple(NodeLinks(node=node, devices=tuple(devices), backup=True) for node, devices in here.items() if devices)


def back(on_backup: Sequence[NodeLinks], wanted: Sequence[NodeLinks]) -> tuple[NodeLinks, ...]:
    """The movement back of what is wanted, or of all; of what has returned already, none."""
    named = {(one.node, device) for one in wanted for device in one.devices}
    chosen = (
        (one.node, tuple(device for device in one.devices if not wanted or (one.node, device) in named)) for one in on_backup
    )
    return tuple(NodeLinks(node=node, devices=devices, backup=False) for node, devices in chosen if devices)


def back_problem(on_backup: Sequence[NodeLinks], wanted: Sequence[NodeLinks]) -> str:
    """Which device of a switchback is not on its backup link by this maintenance; empty: all are."""
    here = {(one.node, device) for one in on_backup for device in one.devices}
    missing = next((key for one in wanted for device in one.devices if (key := (one.node, device)) not in here), None)
    return f"device: {missing[1]} of {missing[0]} is not on its backup link by this maintenance" if missing else ""
