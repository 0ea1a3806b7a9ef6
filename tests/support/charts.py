"""Charts of `deploy/helm`, rendered by the real Helm library."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

Object = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "rekindle"
CRDS_CHART = ROOT / "deploy" / "helm" / "rekindle-crds"

ADDRESS = "temporal.example.com:7233"

Name = tuple[str, str, str]
"""Kind, namespace and name of an object."""


def given(**values: object) -> Object:
    """Returns values as a user gives them, with the address of a Temporal. Two underscores stand for a dot."""
    root: Object = {"temporal": {"address": ADDRESS}}
    for path, value in values.items():
        *groups, last = path.split("__")
        here = root
        for group in groups:
            here = here.setdefault(group, {})
        here[last] = value
    return root


def texts(values: Object, namespace: str = "mindx-dl", chart: Path = CHART) -> dict[str, str]:
    """Returns the rendered text of each template by its path.

    Raises:
        HelmError: the chart refuses the values.
    """
    with Chart.load(chart) as loaded:  # each time: rendering takes out the charts below that the values do not want
        return dict(loaded.render(values, name="rekindle", namespace=namespace))


def objects(values: Object, namespace: str = "mindx-dl", chart: Path = CHART) -> list[Object]:
    """Returns all objects of a release, those of its tests too."""
    rendered = texts(values, namespace, chart)
    files = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    return [one for text in files for one in yaml.safe_load_all(text) if one]


def name_of(one: Object) -> Name:
    metadata = one["metadata"]
    return one["kind"], metadata.get("namespace", ""), metadata["name"]


def names(things: Iterable[Object]) -> set[Name]:
    return {name_of(one) for one in things}
