"""Dashboards, alerts and their pages name what exists."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from rekindle.cli.app import app

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "monitoring" / "rules.yaml"
DASHBOARDS = sorted((ROOT / "deploy" / "monitoring" / "dashboards").glob("*.json"))
RUNBOOKS = ROOT / "docs" / "operations"

TEMPORAL = {
    "approximate_backlog_age_seconds",
    "temporal_num_pollers",
    "temporal_sticky_cache_size",
    "temporal_workflow_task_replay_latency_seconds",
    "temporal_workflow_task_schedule_to_start_latency_seconds",
}
"""Metrics of the Temporal server and its SDK that queries may name."""

OF_PROCESSES = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
NAME = re.compile(r"\b[a-z]+_[a-z_]+\b(?!\s*\()")
SUFFIX = re.compile(r"_(bucket|sum|count)$")


def _alerts() -> list[dict[str, object]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def _queries() -> dict[str, str]:
    """Returns every query of rules and panels, by where it is."""
    found = {str(alert["alert"]): str(alert["expr"]) for alert in _alerts()}
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            found |= {f"{path.stem}: {panel['title']}": target["expr"] for target in panel["targets"]}
    return found


def _names(query: str) -> set[str]:
    """Returns the metrics of a query, without functions, labels and their values."""
    without = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|on)\s*\([^)]*\)", "", query)
    return {SUFFIX.sub("", name) for name in NAME.findall(without)}


def _known() -> set[str]:
    page = (ROOT / "docs" / "metrics.md").read_text()
    return {*re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE), *TEMPORAL, *OF_PROCESSES}


@pytest.mark.parametrize("where", _queries())
def test_a_query_names_metrics_that_exist(where: str) -> None:
    """Metrics of ours are in the table of docs/metrics.md, which is compared with what processes expose."""
    names = _names(_queries()[where])
    assert names
    assert names <= _known()


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    """The annotation of an alert names the page that says what to look at and what to type."""
    pages = {alert["alert"]: alert["annotations"] for alert in _alerts()}
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == pages.keys()
    for name, annotations in pages.items():
        assert annotations["runbook"] == f"docs/operations/{name}.md"  # type: ignore[index]


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_commands_of_a_page_exist(page: Path) -> None:
    """Commands of ours on the page are parsed as the command line parses them."""
    text = page.read_text()
    commands = re.findall(r"`(rekindle [^`]+)`|^(rekindle .+)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        app.parse_args("".join(command).split()[1:], exit_on_error=False, print_error=False)


def test_commands_of_the_page_of_metrics_exist() -> None:
    """The option that exposes metrics on a laptop is one of the command line."""
    commands = re.findall(r"`(rekindle dev [^`]+)`", (ROOT / "docs" / "metrics.md").read_text())
    assert commands
    for command in commands:
        app.parse_args(command.split()[1:], exit_on_error=False, print_error=False)


@pytest.fixture
def promtool() -> str:
    """Path of promtool, which Debian's package `prometheus` has."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    return found


@pytest.mark.parametrize("arguments", [("check", "rules", RULES), ("test", "rules", ROOT / "tests/monitoring/alerts.yaml")])
def test_promtool_accepts_the_rules(promtool: str, arguments: tuple[str | Path, ...]) -> None:
    """The rules are valid, each alert fires after its cause has lasted, and none fires when nothing is wrong."""
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    """The cases of promtool have the cause of every alert."""
    cases = yaml.safe_load((ROOT / "tests/monitoring/alerts.yaml").read_text())["tests"]
    fires = {one["alertname"] for case in cases for one in case["alert_rule_test"] if one.get("exp_alerts")}
    assert fires == {alert["alert"] for alert in _alerts()}
