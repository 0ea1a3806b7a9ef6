"""Findings about a job file, and the wishes that its owner has written into it."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from rekindle.model import keys
from rekindle.model.job import Framework, SubHealthStrategy
from rekindle.policy.parameters.catalog import PROCESS_LEVEL, STRATEGIES
from rekindle.policy.parameters.job_file import JobFile
from rekindle.policy.parameters.values import LONGEST_MENDED, Words

LABELS, ANNOTATIONS = "metadata.labels", "metadata.annotations"


class Level(StrEnum):
    ERROR = "error"
    """Setting that does not work."""
    WARNING = "warning"
    """Setting that works, but probably not as its owner expects."""


@dataclass(frozen=True)
class Finding:
    level: Level
    field: str
    """Path of the field, as in the file."""
    message: str
    fix: str = ""
    """Text to write instead. Empty: the message says it."""


def error(field: str, message: str, fix: str = "") -> Finding:
    return Finding(Level.ERROR, field, message, fix)


def warning(field: str, message: str, fix: str = "") -> Finding:
    return Finding(Level.WARNING, field, message, fix)


@dataclass(frozen=True)
class Wishes:
    """Recoveries that the owner of a job asks for."""

    job: JobFile

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Words of `recover-strategy` that are meant. A wrong spelling has its own finding, and is no reason for others."""
        said = re.split(r"[,;\s]+", (self.job.annotation(keys.RECOVER_STRATEGY) or "")[:LONGEST_MENDED])
        return tuple(word for word in map(Words(STRATEGIES).mended, said) if word)

    @property
    def hot_switch(self) -> bool:
        return self.job.label(keys.SUB_HEALTHY_STRATEGY) == SubHealthStrategy.HOT_SWITCH

    @property
    def processes(self) -> bool:
        """Returns whether the training side takes part in recoveries."""
        return self.hot_switch or any(word in PROCESS_LEVEL for word in self.words)

    @property
    def pod_rescheduling(self) -> bool:
        return self.job.label(keys.POD_RESCHEDULING) == "on"

    @property
    def framework(self) -> Framework:
        """Framework of the job. An unknown one has its own finding, and counts as the usual one."""
        said = self.job.label(keys.FRAMEWORK)
        return Framework(said) if said in set(Framework) else Framework.PYTORCH
