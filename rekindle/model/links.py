"""Links: which network interface each device uses for its collectives, the first one or the backup."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text
from rekindle.model.ranks import Ranks

MOST_NODES = 128
"""Maximum number of nodes whose devices one request moves. Source: ours; a leaf switch has fewer ports."""

MOST_DEVICES = 32
"""Maximum number of devices of one node in a request."""

MOST_ON_BACKUP = 1_024
"""Maximum number of ranks of a job on their backup links. Source: ours; all of them are in the state of its workflow."""


NodeName = Annotated[str, Field(min_length=1, max_length=253)]
DeviceId = Annotated[str, Field(min_length=1, max_length=16)]
"""Id of a device as in the job's rank table: `0`, `1`, ..."""


class NodeLinks(Value):
    """Devices of one node that are to be moved to one of their two links. Source: `DeviceList` of the wire contract."""

    node: NodeName
    devices: tuple[DeviceId, ...] = Field(min_length=1, max_length=MOST_DEVICES)
    backup: bool
    """True to move the devices to their backup link, False to move them back to the first one."""


class Placed(NodeLinks):
    """Devices to move, with the ranks that use them."""

    ranks: tuple[Ranks, ...]
    """Ranks of each device, in the order of `devices`."""


class OnBackup(Value):
    """Ranks whose devices are on their backup links."""

    ranks: Ranks
    maintenance: Note = ""
    """Workflow id of the maintenance that moved the ranks and moves them back. Empty: none waits for it."""


class LinksReset(Value):
    """Signal `links_reset` to a maintenance: these ranks are no longer on their backup links."""

    job_id: str = ""
    """Id of the job of these ranks, to be compared: the memory of a job, which tenants can write, may name any maintenance."""

    ranks: Ranks
    why: Text


class RankLinks(Value):
    """Ranks that the training side has to move, by the link that they are to use."""

    backup: Ranks = ()
    first: Ranks = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted((*self.backup, *self.first)))


def describe(links: Iterable[NodeLinks]) -> str:
    """Returns the movements in words: `node-1 devices 0,8 to the backup link`, separated by semicolons."""
    return "; ".join(f"{named(one)} to the {'backup' if one.backup else 'first'} link" for one in links)


def named(one: NodeLinks) -> str:
    """Returns the devices in words: `node-1 devices 0,8`."""
    return f"{one.node} {_devices(one.devices)}"


def _devices(devices: Sequence[str]) -> str:
    return f"device {devices[0]}" if len(devices) == 1 else f"devices {','.join(devices)}"
