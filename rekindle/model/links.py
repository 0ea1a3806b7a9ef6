"""Links: which network interface a device uses for its collectives, the first one or the backup."""

from collections.abc import Iterable, Sequence

from pydantic import Field

from rekindle.model.base import Value
from rekindle.model.bounds import Text
from rekindle.model.ranks import Ranks

MOST_NODES = 256
"""Nodes whose devices one request moves. Source: ours; a leaf switch has fewer ports."""

MOST_DEVICES = 64
"""Devices of one node in a request."""


class NodeLinks(Value):
    """Devices of one node that are to be moved to one of their two links. Source: `DeviceList` of the wire contract."""

    node: Text
    devices: tuple[Text, ...] = Field(min_length=1, max_length=MOST_DEVICES)
    """Ids as in the job's rank table: `0`, `1`, ..."""

    backup: bool
    """To the backup link; otherwise back to the first one."""


class MovedLinks(Value):
    """Devices of one pod that were moved."""

    pod_rank: int
    holder: str
    """First characters of the pod's UID, as in `Sighting.holders`: a new pod begins on its first links."""

    node: str
    devices: tuple[str, ...]
    backup: bool


class OnBackup(Value):
    """Devices of one pod that are on their backup link."""

    pod_rank: int
    holder: str
    node: str
    devices: tuple[str, ...]
    maintenance: str = ""
    """Workflow id of who moved them, and moves them back; empty: nobody waits for it."""


class LinksReset(Value):
    """Signal `links_reset` to a maintenance: these devices are on their backup links no more."""

    links: tuple[OnBackup, ...]
    why: Text


class RankLinks(Value):
    """What the training side is told: ranks by the link that they are to use."""

    backup: Ranks = ()
    first: Ranks = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted((*self.backup, *self.first)))


def describe(links: Iterable[NodeLinks]) -> str:
    """`node-1 devices 0,8 to the backup link`, of each entry."""
    return "; ".join(f"{one.node} {_devices(one.devices)} to the {'backup' if one.backup else 'first'} link" for one in links)


def _devices(devices: Sequence[str]) -> str:
    return f"device {devices[0]}" if len(devices) == 1 else f"devices {','.join(devices)}"
