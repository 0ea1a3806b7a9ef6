"""Generates what follows from the chart's templates and from the rows of its values. `make manifests` runs it.

The charts are the source: `deploy/base` is the chart `rekindle`, rendered with its default values, for kustomize. A test fails
while a committed file says something else.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from helm_python import Chart

from deploy import chart_values

DEPLOY = Path(__file__).resolve().parent
CHART = DEPLOY / "helm" / "rekindle"
CRDS_CHART = DEPLOY / "helm" / "rekindle-crds"
BASE = DEPLOY / "base"
WEBHOOK = DEPLOY / "components" / "webhook"

NAMESPACE = "mindx-dl"
BASE_FILES = (
    "control",
    "flow",
    "gateway",
    "marks",
    "network",
    "operator",
    "priority",
    "rbac",
    "service",
    "standbys",
    "watcher",
)

WEBHOOK_FILES = ("webhook", "rbac", "network", "mutating", "validating")

ANYWHERE: dict[str, object] = {"temporal": {"address": "said-by-an-overlay:7233"}}
"""Values of the base: defaults, and an address that is left out again, as an overlay gives it."""

GENERATED = "# Generated from deploy/helm/rekindle by `make manifests`.\n"

SETTINGS_HASH = re.compile(r"^ +annotations: \{rekindle\.io/settings: .*\}\n", re.MULTILINE)
"""Annotation by which Helm replaces pods when a setting changes. kustomize does it by the names of ConfigMaps."""

TABLE = re.compile(r"(?<=<!-- values -->\n).*(?=<!-- end of values -->)", re.DOTALL)

OF_CRDS = """\
# Generated from deploy/crds by `make manifests`. Kept when the release is uninstalled: with the definition all TrainingJobs go.
"""


def of_values() -> Iterator[tuple[Path, str]]:
    """Yields files of the charts, with their content, that come from rows of values, from CRDs and from monitoring."""
    yield CHART / "values.yaml", chart_values.values_file()
    yield CHART / "values.schema.json", chart_values.schema()
    yield CHART / "files" / "known.json", chart_values.known_file()
    readme = CHART / "README.md"
    yield readme, TABLE.sub(lambda _: chart_values.table(), readme.read_text())
    monitoring = DEPLOY / "monitoring"
    for file in (monitoring / "rules.yaml", *sorted((monitoring / "dashboards").glob("*.json"))):
        yield CHART / "files" / "monitoring" / file.relative_to(monitoring), file.read_text()
    for file in sorted((DEPLOY / "crds").glob("*.rekindle.io.yaml")):
        yield CRDS_CHART / "templates" / file.name, OF_CRDS + _kept(file.read_text())


def _kept(definition: str) -> str:
    """Returns a definition as a template, with the annotation by which Helm leaves it in the cluster."""
    if "{{" in definition:
        raise ValueError("a definition with {{ would be read as a template")
    labels = "  labels: {app.kubernetes.io/part-of: rekindle}\n"
    return definition.replace("metadata:\n", f"metadata:\n  annotations: {{helm.sh/resource-policy: keep}}\n{labels}", 1)


def of_templates() -> Iterator[tuple[Path, str]]:
    """Yields files of the base, with their content."""
    rendered = _rendered(ANYWHERE)
    for name in BASE_FILES:
        yield BASE / f"{name}.yaml", _manifest(rendered[f"rekindle/templates/{name}.yaml"])
    of_webhook = _rendered({**ANYWHERE, "webhook": {"enabled": True}})
    for name in WEBHOOK_FILES:
        yield WEBHOOK / f"{name}.yaml", _manifest(of_webhook[f"rekindle/templates/webhook/{name}.yaml"])
    of_certificates = _rendered({**ANYWHERE, "webhook": {"enabled": True, "certManager": {"enabled": True}}})
    certificate = of_certificates["rekindle/templates/webhook/certificate.yaml"]
    yield WEBHOOK / "cert-manager" / "certificate.yaml", _manifest(certificate)
    for config in yaml.safe_load_all(rendered["rekindle/templates/settings.yaml"]):
        data = {key: value for key, value in config["data"].items() if key != "TEMPORAL_ADDRESS"}
        lines = "".join(f"{key}={value}\n" for key, value in sorted(data.items()))
        yield BASE / f"{config['metadata']['name'].removeprefix('rekindle-')}.env", GENERATED + lines


def _rendered(values: dict[str, object]) -> dict[str, str]:
    """Returns the text of each template by its path."""
    with Chart.load(CHART) as chart:
        return dict(chart.render(values, name="rekindle", namespace=NAMESPACE))


def _manifest(text: str) -> str:
    """Returns a rendered template as a file for kustomize."""
    return GENERATED + SETTINGS_HASH.sub("", text).lstrip("\n").removeprefix("---\n").rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a committed file differs")
    check = parser.parse_args().check
    differing = []
    for files in (of_values, of_templates):
        for path, text in files():
            if check and path.read_text() != text:
                differing.append(path)
            elif not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    for path in differing:
        print(f"{path.relative_to(DEPLOY.parent)} differs from what it is made from, run `make manifests`", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
