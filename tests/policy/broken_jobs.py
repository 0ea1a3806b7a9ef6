"""Job files that are wrong in one way each, made of a file that is right. `python -m tests.policy.broken_jobs` writes anew what
is found in each; look at what changes."""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import yaml

from rekindle.policy.parameters.checks import findings
from rekindle.policy.parameters.job_file import jobs_of

FOLDER = Path(__file__).with_name("jobs")
RECIPE = FOLDER / "recipe.yaml"
BROKEN = FOLDER / "broken.yaml"


class Variant(TypedDict, total=False):
    """A wrong file."""

    name: str
    set: dict[str, Any]
    """New values, by the path of their field."""
    remove: list[str]
    """Paths of fields that are left out."""
    says: list[str]
    """Findings, a line for each."""


def variants() -> list[Variant]:
    found: list[Variant] = yaml.safe_load(BROKEN.read_text())
    return found


def said(variant: Variant) -> list[str]:
    """Returns what is found in a variant, a line for each finding."""
    (job,) = jobs_of(text(variant.get("set", {}), variant.get("remove", ())))
    return [f"{one.level} {one.field}: {one.message}{one.fix and f' -> {one.fix}'}" for one in findings(job)]


def text(changes: Mapping[str, Any], removed: Any = ()) -> str:
    """Returns the recipe's file with other values in its job."""
    config, job = yaml.safe_load_all(RECIPE.read_text())
    job = copy.deepcopy(job)  # YAML shares what it repeats
    job["spec"]["replicaSpecs"]["Worker"] = copy.deepcopy(job["spec"]["replicaSpecs"]["Worker"])
    for path, value in changes.items():
        *steps, last = _steps(path)
        inside = _at(job, steps)
        given = _at(job, [*steps, value[1:]]) if isinstance(value, str) and value.startswith("=") else value
        if isinstance(inside, list) and last == len(inside):
            inside.append(given)
        else:
            inside[last] = given
    for path in removed:
        *steps, last = _steps(path)
        del _at(job, steps)[last]
    return yaml.safe_dump_all([config, job], sort_keys=False)


def _steps(path: str) -> Iterator[str | int]:
    """Yields the steps of a path. A key of a label or an annotation is one step, whatever dots it has."""
    for head in ("metadata.labels.", "metadata.annotations."):
        if path.startswith(head):
            yield from (*head.split(".")[:2], path.removeprefix(head))
            return
    for step in path.split("."):
        yield int(step) if step.isdecimal() else step


def _at(inside: Any, steps: list[str | int]) -> Any:
    for step in steps:
        inside = inside[step]
    return inside


def main() -> None:
    found = [{**variant, "says": said(variant)} for variant in variants()]
    BROKEN.write_text(yaml.safe_dump(found, sort_keys=False, width=200, allow_unicode=True))


if __name__ == "__main__":
    main()
