"""Faults on demand, for demonstrations and tests; read by the manager and by backup ranks from the job's environment.

They act in the first life of a job only: a job that was restarted because of them runs through.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from rekindle_training import names

ACCEPTED = (
    '{"fault": "pause-hangs"}',
    '{"fault": "resume-fails"}',
    '{"fault": "backup-fails", "when": "loading"}',
    '{"fault": "backup-fails", "when": "paused"}',
)


class InjectionInvalid(ValueError):
    """`REKINDLE_INJECT` names something that nobody can inject; its author corrects it."""


@dataclass(frozen=True)
class Injection:
    pause_hangs: bool = False
    """The pause is ordered and never comes: training goes on and no report is sent."""
    resume_fails: bool = False
    """The migration ends with 406."""
    backup_fails_loading: bool = False
    """The backup's processes end with 1 before they register."""
    backup_fails_paused: bool = False
    """The backup's processes end with 1 once training is paused, before the report of the pause."""

    @classmethod
    def read(cls, source: Mapping[str, str] = os.environ) -> "Injection":
        if (source.get(names.JOB_GENERATION) or "0") != "0" or not source.get(names.INJECT):
            return cls()
        return cls(**{_field(entry): True for entry in _entries(source[names.INJECT])})


def _entries(text: str) -> list[object]:
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise InjectionInvalid(f"{names.INJECT} is not JSON ({error}); accepted is a list of {_accepted()}") from error
    if not isinstance(entries, list):
        raise InjectionInvalid(f"{names.INJECT} is not a list; accepted is a list of {_accepted()}")
    return entries


def _field(entry: object) -> str:
    fields = {json.dumps(json.loads(text), sort_keys=True): _name(json.loads(text)) for text in ACCEPTED}
    field = fields.get(json.dumps(entry, sort_keys=True))
    if field is None:
        raise InjectionInvalid(f"{names.INJECT}: unknown fault {json.dumps(entry)}; accepted are {_accepted()}")
    return field


def _name(entry: dict[str, str]) -> str:
    return "_".join(entry.values()).replace("-", "_")


def _accepted() -> str:
    return ", ".join(ACCEPTED)
