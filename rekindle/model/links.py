"""Links: which network interface a device uses for its collectives, the first one or the backup."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text
from rekindle.model.ranks import Ranks

MOST_NODES = 128
"""Nodes whose devices one request moves. Source: ours; a leaf switch has fewer ports."""

MOST_DEVICES = 32
"""Devices of one node in a request."""

MOST_ON_BACKUP = 1_024
"""Ranks of a job that are on their backup links at once. Source: ours; all of them are in the state of its workflow."""


NodeName = Annotated[str, Field(min_length=1, max_length=253)]
DeviceId = Annotated[str, Field(min_length=1, max_length=16)]
"""As in the job's rank table: `0`, `1`, ..."""


class NodeLinks(Value):
    """Devices of one node that are to be moved to one of their two links. Source: `DeviceList` of the wire contract."""

    node: NodeName
    devices: tuple[DeviceId, ...] = Field(min_length=1, max_length=MOST_DEVICES)
    backup: bool
    """To the backup link; otherwise back to the first one."""


class Placed(NodeLinks):
    """Such devices, with the ranks that have them."""

    ranks: tuple[Ranks, ...]
    """Of each device."""


class OnBackup(Value):
    """Ranks whose devices are on their backup links."""

    ranks: Ranks
    maintenance: Note = ""
    """Workflow id of who moved them, and moves them back; empty: nobody waits for it."""


class LinksReset(Value):
    """Signal `links_reset` to a maintenance: these ranks are on their backup links no more."""

    job_id: str = ""
    """Whose ranks. A job's memory may name any maintenance: a tenant writes there."""

    ranks: Ranks
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
    return "; ".join(f"{named(one)} to the {'backup' if one.backup else 'first'} link" for one in links)


def named(one: NodeLinks) -> str:
    """`node-1 devices 0,8`."""
    return f"{one.node} {_devices(one.devices)}"


def _devices(devices: Sequence[str]) -> str:
    return f"device {devices[0]}" if len(devices) == 1 else f"devices {','.join(devices)}"
