"""Result of a mode: its outcome, how it left training, and what it did."""

from datetime import datetime
from enum import StrEnum
from typing import Self, TypedDict, Unpack

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text
from rekindle.model.dialogue import Report
from rekindle.model.elastic import Resized
from rekindle.model.fault import Fault
from rekindle.model.job import SubHealthStrategy
from rekindle.model.links import RankLinks
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Handled, Own, Phase, PodRef, Situation, Switched
from rekindle.model.stress import Tested


class Training(StrEnum):
    """State of training when a mode ends without having recovered it. Policy decides which mode follows."""

    LOST = "lost"
    """The state of training is unknown: only a restart of the whole job helps."""

    WHOLE = "whole"
    """Training stands with all that it has, and may repeat its step."""

    SAVES = "saves"
    """Training stands, and accepts no other strategy than to save its state."""

    SUSPECT = "suspect"
    """Ranks stand on nodes that they must leave."""

    FAULTED = "faulted"
    """A real fault interrupted the mode: a mode that repairs that fault follows."""


TRAINING_BEFORE = {"online retry": Training.WHOLE, "process rescheduling": Training.SUSPECT, "job rescheduling": Training.LOST}
"""State of training by the next mode, which verdicts of earlier versions name."""


class VerdictChanges(TypedDict, total=False):
    """Fields of `Verdict` that change after the end of a mode, for `with_`."""

    outcome: Outcome
    reason: str
    approved: str
    seconds: float
    phases: tuple[Phase, ...]
    went_on_at: datetime | None
    training: Training | None
    saved: bool
    policy_after: SubHealthStrategy | None
    look_at: str
    switched: tuple[Switched, ...]
    handled: tuple[Handled, ...]
    moved_links: RankLinks | None
    moved_by: str
    tested: Tested | None
    asked: Own | None
    resized: Resized | None
    found: tuple[Fault, ...]
    left_behind: tuple[PodRef, ...]
    failed_on: tuple[str, ...]
    unread: tuple[Report, ...]
    situation: Situation | None


FEW = (
    "approved",
    "resumed_at",
    "saved",
    "training",
    "again",
    "failed_on",
    "passing",
    "moved_links",
    "moved_by",
    "tested",
    "asked",
    "resized",
    "found",
    "handled",
    "left_behind",
    "unread",
    "situation",
)
"""Fields of a verdict that are serialized only if they are not empty."""


class Verdict(Value):
    """Result of a recovery, readable as a post-mortem."""

    mode: Mode
    outcome: Outcome
    reason: Text
    seconds: float = 0.0
    phases: tuple[Phase, ...] = ()
    steps_lost: int | None = None
    approved: Text = ""
    """Who approved the mode. Empty: it needed no approval."""

    resumed_at: int | None = None
    """Restart: the first step that was completed after it. None: it is unknown."""

    saved: bool = False
    """Dying gasp: True if the ranks that are left have saved their state."""

    training: Training | None = None
    """None: training stands as the situation says, or was not touched."""

    policy_after: SubHealthStrategy | None = None
    """New sub-health policy of the job. None: unchanged."""

    look_at: Note = ""
    """Hint for people where to look."""

    passing: bool = False
    """True if a refusal may soon be outdated, so that another request may be accepted."""

    switched: tuple[Switched, ...] = ()
    moved_links: RankLinks | None = None
    """Ranks that use another link than before. None: no rank does."""

    moved_by: Text = ""
    """Workflow id of the maintenance that requested the movement, and that moves the ranks back."""

    tested: Tested | None = None
    """Results of a stress test. Not kept in the job's history."""

    asked: Own | None = None
    """Verdict of the requested mode that this mode followed. None: no mode was requested."""

    resized: Resized | None = None
    """Pods that have left or come back. None: the job has its size as before. Not kept in the job's history."""

    found: tuple[Fault, ...] = ()
    """Faults that were found by the mode and not known before. The next mode repairs them."""

    handled: tuple[Handled, ...] = ()
    """Faults that the mode has handled, in addition to those that it was started for."""

    went_on_at: datetime | None = None
    """Time at which the training side reported that training continues. Its earlier reports about processes are settled, later
    ones are new."""

    restarted_at: datetime | None = None
    """Time at which the mode recreated the job's pods. Faults that were seen before are settled."""

    left_behind: tuple[PodRef, ...] = ()
    """Pods that the mode could not delete. The `TrainingJob` retries that later."""

    failed_on: tuple[str, ...] = ()
    """Nodes on which pods of the mode did not start. For a while no mode places pods of the job there."""

    again: Note = ""
    """Condition that was missing for a restart, which left the job without pods. The restart is retried from time to time. Empty:
    it is not, and a person has to look."""

    unread: tuple[Report, ...] = ()
    situation: Situation | None = None
    """State of the incident for the next mode. None: the mode ended without returning one."""

    @model_serializer(mode="wrap")
    def _without_what_few_have(self, written: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Omits empty fields that few verdicts have. The state of a job may contain sixty verdicts."""
        fields: dict[str, object] = written(self)
        return {name: value for name, value in fields.items() if value or name not in FEW}

    @property
    def was_interrupted(self) -> bool:
        """True if a real fault interrupted the mode."""
        return self.training is Training.FAULTED

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, given: object) -> object:
        """Reads the successor that earlier versions have named, in place of the state of training."""
        if not isinstance(given, dict) or not (named := given.get("next_mode")):
            return given
        return {
            **given,
            "training": Training.FAULTED if given.get("outcome") == Outcome.CANCELLED else TRAINING_BEFORE.get(named),
        }

    def with_(self, **changes: Unpack[VerdictChanges]) -> Self:
        """Returns a copy with these fields changed."""
        return self.model_copy(update=dict(changes))
