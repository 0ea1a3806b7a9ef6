"""The links of a pod: two network interfaces, of which the collectives of a rank use one. Used by the communicator and the loop.

The link is chosen when a group is made. It is remembered for as long as the pod lives, in the launcher's memory: a process that
takes the rank there begins on it.
"""

import os
from collections.abc import Callable

from rekindle_training import names
from rekindle_training.adapter import interfaces
from rekindle_training.adapter.failure_text import FAILURES, in_words
from rekindle_training.adapter.launcher_memory import END

FUNCTION_IS_MISSING = {
    "cuda": "NCCL reads NCCL_SOCKET_IFNAME once in a process",
    "npu": "HCCL chooses its links itself",
}
"""Reasons why a new group would still use the former link, by accelerator."""


class Links:
    """Links of one rank."""

    def __init__(self, interface_names: tuple[str, ...], memory: int | None, accelerator: str | None) -> None:
        """Args:
        interface_names: of the first link and of the backup; none: the pod has one link only.
        memory: descriptor of what outlives this process; None: nothing does.
        """
        self._names, self._memory, self._accelerator = interface_names, memory, accelerator
        self.function: Callable[[bool], None] | None = None
        """Function of the script that switches links by a call of the script's library. None: there is none."""
        self._called = False
        remembered = memory is not None and os.pread(memory, 1, END) == b"\1"
        self.on_backup = remembered or self._cannot_begin_on_the_first()
        """True if the latest group uses the backup link. It may have been made by an earlier process."""

    def _cannot_begin_on_the_first(self) -> bool:
        """Returns whether the pod has to begin on its backup link, because the first links are down for a maintenance."""
        if not self._names or self._accelerator is not None:
            return False
        first, backup = self._names
        return bool(interfaces.problem(first)) and not interfaces.problem(backup)

    def choose(self, *, backup: bool) -> None:
        """Selects the link for the groups that are made next. Gloo reads this setting for each group."""
        if self._names:
            os.environ["GLOO_SOCKET_IFNAME"] = self._names[backup]

    def chosen(self, *, backup: bool) -> None:
        """Records the link of a group that has been made. Raises the errors of the script's function."""
        if self.function is not None and (backup or self._called):
            self._call(self.function, backup)
        self._remember(backup)

    def switch(self, *, backup: bool) -> tuple[str, bool]:
        """Switches the link. Returns why this is not possible (empty: it is), and whether a new group is needed."""
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
