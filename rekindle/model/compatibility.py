"""Versions that fit together, as one table. Each pair is checked where it connects.

docs/versions.md shows the table. The versions of kinds of jobs are in the table of kinds.
"""

import re

from rekindle.model.base import Value

NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)")


class Fit(Value):
    """Accepted versions of a part that Rekindle connects to."""

    part: str
    """Name of the part, as the subject of a sentence."""

    oldest: str
    """Oldest accepted version, such as `1.30`."""

    newest: str = ""
    """Newest accepted version. Empty: all newer ones are accepted."""

    tried: tuple[str, ...]
    """Versions with which the tests ran."""

    checked: str
    """Processes and commands that check it, and when."""

    otherwise: str
    """Effect of a version that does not fit."""

    releases_only: bool = False
    """True if a version with a suffix is not compared, since others build it and count in another way."""

    @property
    def accepted(self) -> str:
        if not self.newest:
            return f"versions from {self.oldest}"
        return f"version {self.oldest}" if self.oldest == self.newest else f"versions from {self.oldest} to {self.newest}"

    def problem(self, found: str) -> str:
        """Returns why a version does not fit, with both versions. Empty: it does, or it cannot be compared."""
        numbers = NUMBERS.match(found)
        if numbers is None or (self.releases_only and numbers[0] != found):
            return ""
        given = _numbers(numbers[1])
        is_old = given < _numbers(self.oldest)
        is_new = bool(self.newest) and given[: self.newest.count(".") + 1] > _numbers(self.newest)
        return f"{self.part} is {found}: accepted are {self.accepted}" if is_old or is_new else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


TEMPORAL = Fit(
    part="the Temporal server",
    oldest="1.32",
    tried=("1.32",),
    checked="control worker, gateway and watcher, when they start and at each probe; client and commands, when they connect",
    otherwise="a process does not start, with the reason on its Deployment; client and commands warn",
    releases_only=True,
)

API_SERVER = Fit(
    part="the API server",
    oldest="1.30",
    tried=("1.33", "1.36"),
    checked="the charts, when they are installed; control worker, watcher and operator, when they start",
    otherwise="the chart is refused; a process does not start",
)

TRAINING_SIDE = Fit(
    part="the protocol of the training side",
    oldest="4",
    newest="4",
    tried=("4",),
    checked="gateway, when a manager connects and at its reports; manager, when a rank of its job joins",
    otherwise="the manager is refused with code 409, and the rank ends; both logs have the two versions",
)

TABLE = (TEMPORAL, API_SERVER, TRAINING_SIDE)
