"""Meeting of ranks in the manager's store, for work that they do together when their process group is gone."""

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from rekindle_training.adapter.failure_text import FAILURES, cause_in_words

LOOK_SECONDS = 0.02
"""Minimum number of seconds between two looks of a rank at the store."""
LOOKS_PER_SECOND = 5000
"""Maximum number of looks at the store in a second, of all ranks together. The manager answers them beside its other work."""

Done = TypeVar("Done")
Given = TypeVar("Given")


class MeetingFailed(RuntimeError):
    """Failure of the work of one rank. All ranks of the meeting raise it."""


class MeetingOver(Exception):
    """The manager asks for something else, as a rank of the meeting is gone, or the time is over."""


def nothing(done: Sequence[Any]) -> list[None]:
    """Combines results to nothing for each rank."""
    return [None] * len(done)


class Meeting:
    """Meeting as one rank takes part in it. All of them make the same calls in the same order."""

    def __init__(
        self, store: dist.Store, members: Sequence[int], rank: int, seconds: float, is_called_off: Callable[[], bool]
    ) -> None:
        """Args:
        store: store that no other meeting uses.
        members: ranks that take part, ascending. The first one leads.
        seconds: limit of the whole meeting.
        is_called_off: returns whether this rank has to leave the meeting.
        """
        self._store, self._members, self._rank = store, members, rank
        self._ends, self._is_called_off = time.monotonic() + seconds, is_called_off
        self._pause = max(LOOK_SECONDS, 0 if self.leads else len(members) / LOOKS_PER_SECOND)
        self._round = 0

    @property
    def leads(self) -> bool:
        return self._rank == self._members[0]

    def hold(self, work: Callable[[], Done], combine: Callable[[list[Done]], Sequence[Given]]) -> Given:
        """Does work on all ranks, and combines the results on the first one. Returns this rank's part of the combination.

        Raises:
            MeetingFailed: on all ranks, if the work or the combination has failed.
            MeetingOver: this rank has to leave, or the limit has passed.
        """
        self._round += 1
        done = self._tried(work)
        self._refuse_if_called_off()  # what it has read may not be what it was
        self._put(f"done/{self._rank}", done)
        if self.leads:
            self._combine(combine)
        given, failure = self._get(f"given/{self._rank}")
        if failure:
            raise MeetingFailed(failure)
        parts: Given = given
        return parts

    def _combine(self, combine: Callable[[list[Done]], Sequence[Given]]) -> None:
        said = [self._get(f"done/{member}") for member in self._members]
        failure = next((failure for _, failure in said if failure), "")
        parts: Sequence[Given | None] = nothing(said)
        if not failure:
            combined, failure = self._tried(lambda: combine([done for done, _ in said]))
            parts = parts if combined is None else combined
        for member, part in zip(self._members, parts, strict=True):
            self._put(f"given/{member}", (part, failure))

    def _tried(self, work: Callable[[], Done]) -> tuple[Done | None, str]:
        """Returns the result of the work, and the description of its failure."""
        try:
            return work(), ""
        except FAILURES as error:
            return None, f"rank {self._rank}: {cause_in_words(error)}"

    def _put(self, key: str, content: Any) -> None:
        self._store.set(f"{self._round}/{key}", pickle.dumps(content))  # type: ignore[arg-type]  # bytes are accepted

    def _get(self, key: str) -> Any:
        name = f"{self._round}/{key}"
        while not self._store.check([name]):
            self._refuse_if_called_off()
            if time.monotonic() > self._ends:
                raise MeetingOver("not all ranks have done their part in time")
            time.sleep(self._pause)
        content = pickle.loads(self._store.get(name))  # written by a rank of the same job
        self._store.delete_key(name)  # the store lives as long as its manager, and no other rank reads it
        return content

    def _refuse_if_called_off(self) -> None:
        if self._is_called_off():
            raise MeetingOver("the manager asks for something else")
