"""Injected faults, for demonstrations and tests. The manager, ranks and backup ranks read them from the job's environment.

They act in the first life of a job only: a job that was restarted because of them is not disturbed again. A fault in a step acts
once, unless it acts always.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rekindle_training import names

ACCEPTED = (
    '{"fault": "pause-hangs"}',
    '{"fault": "resume-fails"}',
    '{"fault": "backup-fails", "when": "loading"}',
    '{"fault": "backup-fails", "when": "paused"}',
    '{"fault": "rank-fails", "when": "paused"}',
    '{"fault": "rank-fails", "when": "switching"}',
)
ON_A_NODE = '{"fault": "wrong-product", "wrong-message", "wrong-memory" or "check-hangs", "node": "node-1"}'
IN_A_STEP = (
    '{"fault": "exception", "memory", "kill", "stop" or "pause", "rank": 0, "step": 1, "place": "forward" (or left out), '
    '"backward", "evaluation" or, for a signal, "updated", "always": true (or left out)}'
)
IN_STEPS = ("exception", "memory", "kill", "stop", "pause")
FORWARD, BACKWARD, EVALUATION, UPDATED = "forward", "backward", "evaluation", "updated"
SIGNALS = ("kill", "stop")
INJECTED = "injected in step"
"""Beginning of the message of an injected error."""


class InjectionInvalid(ValueError):
    """`REKINDLE_INJECT` names a fault that cannot be injected. Its author has to correct it."""


@dataclass(frozen=True)
class StepFault:
    """Fault of a rank at a place in a turn of its loop."""

    rank: int
    step: int
    kind: str
    """Kind of the fault.

    `exception` and `memory` raise RuntimeError and MemoryError, `kill` and `stop` are signals, `pause` holds the rank after
    the step.
    """
    place: str = FORWARD
    always: bool = False
    """True if it occurs each time that the step is repeated. Otherwise it occurs once."""


@dataclass(frozen=True)
class Injection:
    pause_hangs: bool = False
    """True if the pause is ordered but never happens: training goes on and no report is sent."""
    resume_fails: bool = False
    """True if the migration ends with 406."""
    backup_fails_loading: bool = False
    """True if the backup's processes end with 1 before they register."""
    backup_fails_paused: bool = False
    """True if the backup's processes end with 1 once training is paused, before the report of the pause."""
    rank_fails_paused: bool = False
    """True if the process of the first rank that stays is to be killed once the pause is reported.

    Only as long as nothing was recovered before.
    """
    rank_fails_switching: bool = False
    """True if the process of rank 0 is to be killed when all ranks are ordered to connect over other links.

    Only as long as nothing was recovered before.
    """
    in_steps: tuple[StepFault, ...] = field(default=())
    on_nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Faults that a stress test finds on the ranks of a node, keyed by node name. Such ranks compute, send or store wrong values,
    or their checks hang.
    """

    @classmethod
    def read(cls, source: Mapping[str, str] = os.environ) -> "Injection":
        if (source.get(names.JOB_GENERATION) or "0") != "0" or not source.get(names.INJECT):
            return cls()
        entries = _entries(source[names.INJECT])
        others = [entry for entry in entries if not (_is_in_a_step(entry) or _is_on_a_node(entry))]
        return cls(
            **{_field(entry): True for entry in others},
            in_steps=tuple(_step_fault(entry) for entry in entries if _is_in_a_step(entry)),
            on_nodes=_on_nodes([entry for entry in entries if _is_on_a_node(entry)]),
        )


def _entries(text: str) -> list[Any]:
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise InjectionInvalid(f"{names.INJECT} is not JSON ({error}); accepted is a list of {_accepted()}") from error
    if not isinstance(entries, list):
        raise InjectionInvalid(f"{names.INJECT} is not a list; accepted is a list of {_accepted()}")
    return entries


def _is_in_a_step(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("fault") in IN_STEPS


def _is_on_a_node(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("fault") in ("wrong-product", "wrong-message", "wrong-memory", "check-hangs")


def _on_nodes(entries: list[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        node = entry.get("node")
        if entry.keys() != {"fault", "node"} or not isinstance(node, str):
            raise _unknown(entry)
        found[node] = (*found.get(node, ()), entry["fault"])
    return found


def _step_fault(entry: dict[str, Any]) -> StepFault:
    rank, step, place, always = entry.get("rank"), entry.get("step"), entry.get("place", FORWARD), entry.get("always", False)
    known = entry.keys() - {"place", "always"} == {"fault", "rank", "step"} and type(always) is bool
    known &= place in (FORWARD, BACKWARD, EVALUATION, UPDATED)
    if not known or (place == UPDATED and entry["fault"] not in SIGNALS) or type(rank) is not int or type(step) is not int:
        raise _unknown(entry)
    return StepFault(rank, step, entry["fault"], place, always)


def _field(entry: object) -> str:
    fields = {json.dumps(json.loads(text), sort_keys=True): _name(json.loads(text)) for text in ACCEPTED}
    name = fields.get(json.dumps(entry, sort_keys=True))
    if name is None:
        raise _unknown(entry)
    return name


def _unknown(entry: object) -> InjectionInvalid:
    return InjectionInvalid(f"{names.INJECT}: unknown fault {json.dumps(entry)}; accepted are {_accepted()}")


def _name(entry: dict[str, str]) -> str:
    return "_".join(entry.values()).replace("-", "_")


def _accepted() -> str:
    return ", ".join((*ACCEPTED, ON_A_NODE, IN_A_STEP))
