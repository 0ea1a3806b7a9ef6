"""Operation 1: exchanges messages of known content between pairs of ranks, and measures how fast they arrive.

Each pair has a separate process group, over the network interface that training uses. Training's process group is not touched.
A rank exchanges messages with the ranks of its pod first, then with those of other pods (`meetings.py`). All ranks know the time
of each pair, so a missing rank delays no other one beyond that time.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rekindle_training.stress.codes import NOT_RUN, OK
from rekindle_training.stress.meetings import partners
from rekindle_training.stress.verdict import Disturb, Turn, Verdict

WORDS = 2**17
"""Words of eight bytes in one message on the CPU."""
WORDS_OF_DEVICE = 2**23
MOST = 16
"""Maximum number of messages that a rank sends to another one."""
SENDING = 0.25
"""Share of a pair's time in which a further message may be started. On a slow link there are fewer messages."""
LOOK_SECONDS = 0.001
LAST = -1


class Silent(Exception):
    """The other rank did not take part, or nothing arrived from it."""


@dataclass(frozen=True)
class Meeting:
    """Values that all ranks which exchange messages share."""

    ranks: tuple[int, ...]
    """Ranks that take part, in ascending order."""
    rank: int
    store: dist.Store
    """Store of this test."""

    def partners(self) -> list[int | None]:
        """Returns this rank's partners in their order. None: it has no partner in that round."""
        others = partners(self.ranks.index(self.rank), len(self.ranks))
        return [None if other is None else self.ranks[other] for other in others]


def check(device: torch.device, meeting: Meeting, turn: Turn, disturb: Disturb) -> Verdict:
    """Exchanges messages with each partner.

    Raises:
        OutOfMemoryError: there is no memory for messages, which is no fault of another rank.
    """
    others = meeting.partners()
    if not others:
        return Verdict(NOT_RUN, "no other rank is tested with which messages could be exchanged")
    wrong: dict[int, int] = {}
    silent, rates = list[int](), list[float]()
    for number, partner in enumerate(others):
        if partner is None or turn.stopped:
            continue
        try:
            with _pair(device, meeting, partner, turn.left((number + 1) / len(others))) as pair:
                received = _exchange(pair, device, disturb)
        except torch.OutOfMemoryError:
            raise
        except (Silent, RuntimeError):
            meeting.store.set("is there", "")  # raises where it is the manager that is gone, of which no rank is guilty
            silent.append(partner)
        else:
            rates.append(received.bytes / received.seconds)
            wrong |= {partner: received.wrong} if received.wrong else {}
    return Verdict(OK, _line(wrong, silent, rates, turn), tuple(wrong), tuple(silent))


def _line(wrong: dict[int, int], silent: list[int], rates: list[float], turn: Turn) -> str:
    said = [f"{count} elements wrong from rank {rank}" for rank, count in wrong.items()]
    said += [f"no messages with rank {rank}" for rank in silent]
    speed = f"{min(rates) / 1e9:.2f} to {max(rates) / 1e9:.2f} GB/s" if rates else "none came"
    return ", ".join([*(said or ["0 elements wrong"]), f"messages of {len(rates)} ranks", speed, f"{turn.spent:.1f} s"])


@dataclass(frozen=True)
class _Pair:
    backend: Any
    me: int
    """Number of this rank in the pair: 0 or 1."""
    ends: float

    def wait(self, work: Any) -> None:
        """Waits for `work`. Raises Silent when the time of this pair is over."""
        if (left := self.ends - time.monotonic()) <= 0:
            raise Silent
        if isinstance(self.backend, dist.ProcessGroupGloo):
            work.wait(timedelta(seconds=left))
            return
        while not work.is_completed():  # the library would end the process where its own time is over
            if time.monotonic() > self.ends:
                raise Silent
            time.sleep(LOOK_SECONDS)


@dataclass
class _Received:
    bytes: int = 0
    seconds: float = 0
    wrong: int = 0


@contextmanager
def _pair(device: torch.device, meeting: Meeting, partner: int, seconds: float) -> Iterator[_Pair]:
    """Connects a pair of ranks. No rank leaves before the other one has received all messages.

    Raises:
        Silent or RuntimeError: the other rank does not come.
    """
    ends = time.monotonic() + seconds
    low, high = sorted((meeting.rank, partner))
    me = int(meeting.rank == high)
    store = dist.PrefixStore(f"{low}-{high}", meeting.store)
    _meet(store, "come", me, ends)
    pair = _Pair(_backend(device, store, me, ends), me, ends)
    try:
        yield pair
        _meet(store, "done", me, ends)
    finally:
        if device.type != "cpu":
            pair.backend.abort()


def _meet(store: dist.Store, what: str, me: int, ends: float) -> None:
    store.set(f"{what} {me}", "")
    if (left := ends - time.monotonic()) <= 0:
        raise Silent
    store.wait([f"{what} {1 - me}"], timedelta(seconds=left))


def _backend(device: torch.device, store: dist.Store, me: int, ends: float) -> Any:
    if device.type == "cpu":
        return dist.ProcessGroupGloo(store, me, 2, timedelta(seconds=max(ends - time.monotonic(), LOOK_SECONDS)))
    if device.type == "cuda":
        return dist.ProcessGroupNCCL(store, me, 2, dist.ProcessGroupNCCL.Options())
    make = dist.Backend._plugins["HCCL"].creator_fn  # noqa: SLF001  # torch_npu has no other name for it
    options = dist.distributed_c10d._DistributedBackendOptions()  # noqa: SLF001
    options.store, options.group_rank, options.group_size = store, me, 2
    return make(options, None)


def _exchange(pair: _Pair, device: torch.device, disturb: Disturb) -> _Received:
    """Exchanges messages in turns: one rank sends while the other receives.

    If both sent first, they would wait for each other.
    """
    if pair.me == 0:
        _send(pair, device, disturb)
    received = _receive(pair, device)
    if pair.me == 1:
        _send(pair, device, disturb)
    return received


def _send(pair: _Pair, device: torch.device, disturb: Disturb) -> None:
    enough = time.monotonic() + SENDING * (pair.ends - time.monotonic())
    words = _words(device)
    for number in range(MOST):
        message = words + number
        last = number == MOST - 1 or time.monotonic() > enough
        message[0] = LAST if last else number
        disturb(message[1:])
        pair.wait(pair.backend.send([message], 1 - pair.me, 0))
        if last:
            return


def _receive(pair: _Pair, device: torch.device) -> _Received:
    words = _words(device)
    message = torch.empty_like(words)
    received, began = _Received(), time.monotonic()
    for number in range(MOST):
        pair.wait(pair.backend.recv([message], 1 - pair.me, 0))
        received.bytes += message.nbytes
        received.wrong += int((message[1:] != words[1:] + number).sum().item())
        if message[0].item() == LAST:
            break
    received.seconds = time.monotonic() - began
    return received


def _words(device: torch.device) -> torch.Tensor:
    """Returns the words to which each message adds its number, so that no message is like the one before."""
    count = WORDS if device.type == "cpu" else WORDS_OF_DEVICE
    return torch.arange(count, dtype=torch.int64).to(device) * 2654435761
