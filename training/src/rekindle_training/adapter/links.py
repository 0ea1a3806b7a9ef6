"""The links of a pod: two network interfaces, of which the collectives of a rank use one. Used by the communicator and the loop.

The link is chosen when a group is made. It is remembered for as long as the pod lives, in the launcher's memory: a process that
takes the rank there begins on it.
"""

import os
from collections.abc import Callable

from rekindle_training import names
from rekindle_training.adapter import interfaces
from rekindle_training.adapter.legacy import END
from rekindle_training.adapter.words import FAILURES, in_words

FUNCTION_IS_MISSING = {
    "cuda": "NCCL reads NCCL_SOCKET_IFNAME once in a process",
    "npu": "HCCL chooses its links itself",
}
"""Why a group that is made again would use the link of before, by accelerators."""


class Links:
    """Of one rank."""

    def __init__(self, interface_names: tuple[str, ...], memory: int | None, accelerator: str | None) -> None:
        """Args:
        interface_names: of the first link and of the backup; none: the pod has one link only.
        memory: descriptor of what outlives this process; None: nothing does.
        """
        self._names, self._memory, self._accelerator = interface_names, memory, accelerator
        self.function: Callable[[bool], None] | None = None
        """The script's, where its library switches links by a call of its own."""
        self._called = False
        remembered = memory is not None and os.pread(memory, 1, END) == b"\1"
        self.on_backup = remembered or self._cannot_begin_on_the_first()
        """The link of the group that was made last, also by a process before this one."""

    def _cannot_begin_on_the_first(self) -> bool:
        """A pod that comes while the first links are pulled for a maintenance reaches nobody there."""
        if not self._names or self._accelerator is not None:
            return False
        first, backup = self._names
        return bool(interfaces.problem(first)) and not interfaces.problem(backup)

    def choose(self, *, backup: bool) -> None:
        """For the groups that are made next: gloo asks each time."""
        if self._names:
            os.environ["GLOO_SOCKET_IFNAME"] = self._names[backup]

    def chosen(self, *, backup: bool) -> None:
        """A group has been made. Raises what the script's function does."""
        if self.function is not None and (backup or self._called):
            self._call(self.function, backup)
        self._remember(backup)

    def switch(self, *, backup: bool) -> tuple[str, bool]:
        """Why it cannot be, or nothing; and whether it takes another group."""
        if self.function is None:
            problem = self._problem(backup)
            return problem, not problem and backup != self.on_backup
        if backup != self.on_backup:
            try:
                self._call(self.function, backup)
            except FAILURES as error:
                return in_words(error), False
            self._remember(backup)
        return "", False

    def _problem(self, backup: bool) -> str:
        if self._accelerator is not None:
            return f"{FUNCTION_IS_MISSING[self._accelerator]}: its links are switched by session(switch_link=...)"
        if not self._names:
            return f"{names.LINKS} is not set: its pod has no second link"
        return "" if backup == self.on_backup else interfaces.problem(self._names[backup])

    def _call(self, function: Callable[[bool], None], backup: bool) -> None:
        function(backup)
        self._called = True

    def _remember(self, backup: bool) -> None:
        self.on_backup = backup
        if self._memory is not None:
            os.pwrite(self._memory, b"\1" if backup else b"\0", END)
