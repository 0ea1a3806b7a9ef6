"""Annotations of jobs of third-party kinds for what a `TrainingJob` has fields for. Of an empty text nothing is set."""

import json
from typing import Any

import yaml

from rekindle.errors import MALFORMED, BadInput
from rekindle.model import keys
from rekindle.model.sizes import MOST_STANDBYS

LONGEST_LIMITS = 2000
"""Maximum length of a job's limits.

All existing limits need half of it. An owner may write a hundred times as much, which takes long to read.
"""


RANK_COUNTS = ("LOCAL_WORLD_SIZE", "NPROC_PER_NODE", "PET_NPROC_PER_NODE")
"""Variables of a pod that say how many ranks it has, if no annotation does."""


class Flat(yaml.SafeLoader):
    """YAML loader that refuses aliases. Ten lines of merged aliases can expand to more than any memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it refers to another part of itself")
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


def count_of(text: str) -> int:
    """Parses a number that another party wrote; 0 if it is invalid.

    Only some of very many digits are read, as the number is refused as too large anyway.
    """
    return int(text[:10]) if text.isascii() and text.isdecimal() else 0


def ranks_per_pod(said: str) -> int:
    """Returns the number of ranks of a pod. 0: nothing is said.

    Raises:
        BadInput: it is not a whole number from 1.
    """
    if said and not count_of(said):
        raise BadInput(f"metadata.annotations.{keys.RANKS_PER_POD}: {said[:40]!r} is not accepted, use a whole number from 1")
    return count_of(said)


def standbys(said: str) -> int:
    """Returns the number of standbys.

    Raises:
        BadInput: it is not a whole number that a job may have.
    """
    if said and not (said.isascii() and said.isdecimal() and count_of(said) <= MOST_STANDBYS):
        raise BadInput(
            f"metadata.annotations.{keys.STANDBYS}: {said[:40]!r} is not accepted, use a whole number from 0 to {MOST_STANDBYS}"
        )
    return count_of(said)


def limits(said: str) -> dict[str, float | str]:
    """Returns the limits by name, of which the names and values are not judged yet.

    Raises:
        BadInput: it is not a mapping, or too long.
    """
    if len(said) > LONGEST_LIMITS:
        raise BadInput(f"metadata.annotations.{keys.LIMITS}: {len(said)} characters are too many, use {LONGEST_LIMITS} at most")
    try:
        found = yaml.load(said, Flat) if said else {}  # noqa: S506  # a safe one
    except (yaml.YAMLError, *MALFORMED) as error:
        raise BadInput(f"metadata.annotations.{keys.LIMITS}: is not YAML: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, int | float | str) for value in found.values()):
        example = json.dumps({"pause": 60})
        raise BadInput(f"metadata.annotations.{keys.LIMITS}: must be a mapping of limits to seconds, such as {example}")
    return {str(name): value for name, value in found.items()}
