"""Reads the plan of `rekindle plan start plan.yaml`. An error names all wrong fields at once, with the accepted values."""

from enum import StrEnum
from typing import Annotated, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError

from rekindle.errors import MALFORMED, BadInput
from rekindle.model.base import Written
from rekindle.model.links import MOST_DEVICES, MOST_NODES, DeviceId, NodeLinks, NodeName
from rekindle.model.manifest import Loader, refusal
from rekindle.model.plan import AT_ONCE, LONGEST_BRIEF, LONGEST_SWITCH, MOST_AT_ONCE, MOST_JOBS, MOST_LEAVES, Leaf, SwitchPlan
from rekindle.model.problems import problems
from rekindle.model.sizes import LONGEST_NOTE


class Unmovable(StrEnum):
    """Value of `spec.unmovable`."""

    ASK = "ask"
    SKIP = "skip"


def _as_text(value: object) -> object:
    """Converts device ids that are written as numbers into texts. Rejects `08`: to YAML it is no number, and no device has this
    id."""
    if isinstance(value, str) and value.isdecimal() and value != str(int(value)):
        raise ValueError(f"is not accepted, write {int(value)}")
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Device = Annotated[DeviceId, BeforeValidator(_as_text)]
Devices = Annotated[tuple[Device, ...], Field(min_length=1, max_length=MOST_DEVICES)]
Ports = Annotated[dict[NodeName, Devices], Field(max_length=MOST_NODES)]
Short = Annotated[str, Field(min_length=1, max_length=LONGEST_NOTE)]


class Links(Written):
    """Links by node and device: `{node-1: [0, 1]}`."""

    first: Ports = {}
    backup: Ports = {}

    def links(self) -> tuple[NodeLinks, ...]:
        ports = ((self.first, False), (self.backup, True))
        return tuple(NodeLinks(node=node, devices=ids, backup=backup) for of, backup in ports for node, ids in of.items())


class LeafSpec(Links):
    name: Annotated[str, Field(min_length=1, max_length=LONGEST_BRIEF)]


class Metadata(Written):
    name: Annotated[str, Field(max_length=LONGEST_SWITCH, pattern=r"^[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$")]
    """Name of the switch."""


class Spec(Written):
    carries: Links
    leaves: Annotated[tuple[LeafSpec, ...], Field(max_length=MOST_LEAVES)]
    jobs: Annotated[tuple[Short, ...], Field(max_length=MOST_JOBS)] = ()
    at_once: int = Field(default=AT_ONCE, ge=1, le=MOST_AT_ONCE)
    unmovable: Unmovable = Unmovable.ASK


class PlanFile(Written):
    api_version: Literal["rekindle.io/v1"]
    kind: Literal["SwitchUpgrade"]
    metadata: Metadata
    spec: Spec


def parse(text: str) -> SwitchPlan:
    """Returns the plan of a file in YAML. Each field is validated by itself; `policy.plans.problems` validates them together.

    Raises:
        BadInput: one line for every wrong field.
    """
    try:
        document = yaml.load(text, Loader)  # noqa: S506  # a safe one
    except (yaml.YAMLError, *MALFORMED) as error:
        raise BadInput(f"the plan is not YAML: {type(error).__name__}: {error}") from error
    if not isinstance(document, dict):
        raise BadInput("the plan is not a mapping: it begins with `apiVersion: rekindle.io/v1` and `kind: SwitchUpgrade`")
    try:
        written = PlanFile.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise refusal(problems(error, PlanFile)) from error
    spec = written.spec
    return SwitchPlan(
        switch=written.metadata.name,
        carries=spec.carries.links(),
        leaves=tuple(Leaf(name=leaf.name, links=leaf.links()) for leaf in spec.leaves),
        jobs=spec.jobs,
        at_once=spec.at_once,
        skip_unmovable=spec.unmovable is Unmovable.SKIP,
    )
