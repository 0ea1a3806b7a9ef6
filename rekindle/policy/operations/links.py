"""Maps devices that people name to ranks, and keeps account of the links that were switched. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest

from rekindle.model.activities.targets import LinkTargets
from rekindle.model.bounds import few, numbered
from rekindle.model.fault import EXPECTED_HOLDER, UNKNOWN_HOLDER
from rekindle.model.links import MOST_ON_BACKUP, NodeLinks, OnBackup, Placed, RankLinks
from rekindle.model.state import JobState
from rekindle.policy.detection.devices import DeviceOfRank
from rekindle.policy.modes import elastic


def resolved(devices: Iterable[DeviceOfRank], links: Sequence[NodeLinks]) -> LinkTargets:
    """Returns the ranks of these devices, pod by pod, or the first device that the job does not have."""
    of_nodes: dict[str, dict[str, list[DeviceOfRank]]] = {}
    for device in devices:
        of_nodes.setdefault(device.node, {}).setdefault(device.device, []).append(device)
    found: list[Placed] = []
    for one in links:
        here = of_nodes.get(one.node)
        if here is None:
            return LinkTargets(problem=f"node: {one.node} has no pod of the job, accepted are {few(sorted(of_nodes)) or 'none'}")
        if wrong := [device for device in one.devices if device not in here]:
            accepted = few(sorted(here, key=_number))
            return LinkTargets(problem=f"device: {wrong[0]} of {one.node} is none of the job's, accepted are {accepted}")
        ranks = tuple(tuple(sorted(row.rank for row in here[device])) for device in one.devices)
        found.append(Placed(node=one.node, devices=one.devices, backup=one.backup, ranks=ranks))
    return LinkTargets(links=tuple(found))


def _number(device: str) -> tuple[int, str]:
    return (int(device) if device.isdecimal() else 0, device)


def ranks_of(links: Iterable[Placed]) -> RankLinks:
    """Returns the ranks to move, by link. A rank of two devices that move in different directions uses its backup link."""
    listed = list(links)
    backup = {rank for one in listed if one.backup for ranks in one.ranks for rank in ranks}
    first = {rank for one in listed for ranks in one.ranks for rank in ranks} - backup
    return RankLinks(backup=tuple(sorted(backup)), first=tuple(sorted(first)))


# ---- ranks on backup links, in the state of a job


def moved(before: Sequence[OnBackup], links: RankLinks, maintenance: str) -> tuple[OnBackup, ...]:
    """Returns the ranks on backup links after the movement of some ranks."""
    here = {one.maintenance: set(one.ranks) - set(links.ranks) for one in before}
    here.setdefault(maintenance, set()).update(links.backup)
    return _of(here)


def without(before: Sequence[OnBackup], ranks: Iterable[int]) -> tuple[OnBackup, ...]:
    gone = set(ranks)
    return _of({one.maintenance: set(one.ranks) - gone for one in before})


def among(links: Sequence[OnBackup], ranks: Iterable[int]) -> tuple[OnBackup, ...]:
    """Returns those of these ranks that use a backup link."""
    named = set(ranks)
    return _of({one.maintenance: set(one.ranks) & named for one in links})


def _of(ranks: Mapping[str, Collection[int]]) -> tuple[OnBackup, ...]:
    return tuple(OnBackup(ranks=tuple(sorted(of)), maintenance=name) for name, of in sorted(ranks.items()) if of)


def reset(before: JobState, after: JobState) -> tuple[OnBackup, ...]:
    """Returns ranks on backup links whose pods were replaced, or have left the job. New pods begin on their first links."""
    pairs = zip_longest(before.holders, after.holders, fillvalue="")
    new = [pod_rank for pod_rank, (old, now) in enumerate(pairs) if _is_another(old, now)] if after.links else []
    return among(after.links, after.job.layout.ranks_of_all({*new, *elastic.missing_of(after.small)}))


def taken_over(before: Sequence[OnBackup], after: Sequence[OnBackup], mover: str) -> tuple[OnBackup, ...]:
    """Returns the ranks that were moved by another maintenance (`mover`) than the one that had put them on their backup links."""
    kept = {one.maintenance: one.ranks for one in after}
    lost = ((one, set(one.ranks).difference(kept.get(one.maintenance, ()))) for one in before if one.maintenance != mover)
    return _of({one.maintenance: ranks for one, ranks in lost})


def _is_another(before: str, now: str) -> bool:
    if before in (now, EXPECTED_HOLDER):
        return False
    return now == EXPECTED_HOLDER or bool(before and now not in ("", UNKNOWN_HOLDER))


def taken(links: Sequence[OnBackup], move: RankLinks, maintenance: str) -> str:
    """Returns why these ranks are not moved to their backup links: another maintenance has moved them, or there are too many.
    Empty: they can be."""
    if others := [one for one in among(links, move.backup) if one.maintenance != maintenance]:
        by = others[0].maintenance or "a client"
        return f"on the backup link already: {numbered('rank', others[0].ranks)}, moved by {by}"
    if sum(len(one.ranks) for one in moved(links, move, maintenance)) > MOST_ON_BACKUP:
        return f"at most {MOST_ON_BACKUP} ranks of a job use their backup links at once"
    return ""


def described(links: Iterable[OnBackup]) -> str:
    return "; ".join(numbered("rank", one.ranks) for one in links)


# ---- devices on backup links, in the state of a maintenance


def after(before: Sequence[Placed], moves: Iterable[Placed]) -> tuple[Placed, ...]:
    """Returns the devices on backup links after these movements. A rank is moved with all of its devices."""
    moves = list(moves)
    first = set(ranks_of(moves).first)
    here = {one.node: dict(zip(one.devices, one.ranks, strict=True)) for one in before}
    for move in moves:
        devices = here.setdefault(move.node, {})
        for device, ranks in zip(move.devices, move.ranks, strict=True):
            if move.backup:
                devices[device] = ranks
            else:
                devices.pop(device, None)
    left = {node: {device: of for device, of in devices.items() if not first & set(of)} for node, devices in here.items()}
    return tuple(_placed(node, devices) for node, devices in left.items() if devices)


def are_done(moves: Iterable[Placed], on_backup: Iterable[OnBackup]) -> bool:
    """Returns whether all ranks of these movements have arrived, according to the job's state."""
    wanted, there = ranks_of(moves), {rank for one in on_backup for rank in one.ranks}
    return there.issuperset(wanted.backup) and there.isdisjoint(wanted.first)


def of_ranks(on_backup: Sequence[Placed], ranks: Iterable[int]) -> tuple[Placed, ...]:
    """Returns the movement of the devices of these ranks back to their first links."""
    gone = set(ranks)
    return tuple(
        _placed(one.node, devices, backup=False)
        for one in on_backup
        if (devices := {device: of for device, of in zip(one.devices, one.ranks, strict=True) if gone & set(of)})
    )


def _placed(node: str, devices: Mapping[str, tuple[int, ...]], *, backup: bool = True) -> Placed:
    return Placed(node=node, devices=tuple(devices), ranks=tuple(devices.values()), backup=backup)


def back(on_backup: Sequence[Placed], wanted: Sequence[NodeLinks]) -> tuple[Placed, ...]:
    """Returns the movement of the wanted devices, or of all, back to their first links. Devices that have
    returned are left out."""
    named = {(one.node, device) for one in wanted for device in one.devices}
    chosen = (
        (one.node, {d: of for d, of in zip(one.devices, one.ranks, strict=True) if not wanted or (one.node, d) in named})
        for one in on_backup
    )
    return tuple(_placed(node, devices, backup=False) for node, devices in chosen if devices)


def back_problem(on_backup: Sequence[NodeLinks], wanted: Sequence[NodeLinks]) -> str:
    """Returns an error with a device that this maintenance has not moved to its backup link. Empty: it has moved all."""
    here = {(one.node, device) for one in on_backup for device in one.devices}
    missing = next((key for one in wanted for device in one.devices if (key := (one.node, device)) not in here), None)
    return f"device: {missing[1]} of {missing[0]} is not on its backup link by this maintenance" if missing else ""
