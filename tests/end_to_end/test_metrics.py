"""Metrics of all processes of the product after a real recovery."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from rekindle.cli.stack import ClusterKind, Machine, Ports, running
from tests.end_to_end.conftest import Product
from tests.end_to_end.test_hot_switch import tried

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(rekindle_\w+)` \| (\w+) \| (.*?) \| .*? \| (.*?) \| (.*?) \|$", re.MULTILINE)
OF_KUBERNETES = ("rekindle_kube", "rekindle_relists")


def _table(process: str, cluster: ClusterKind) -> dict[str, tuple[str, str]]:
    """Returns type and meaning of the metrics that the page lists for a process."""
    is_local = cluster is ClusterKind.LOCAL
    rows = ROW.findall(PAGE.read_text())
    there = [row for row in rows if row[3] in ("all", process) and not (is_local and row[0].startswith(OF_KUBERNETES))]
    return {name: (kind, meaning) for name, kind, _, _, meaning in there}


def _labels() -> dict[str, set[str]]:
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, _, labels, _, _ in ROW.findall(PAGE.read_text())}


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _ours(families: Iterable[Metric]) -> dict[str, Metric]:
    return {_name(family): family for family in families if family.name.startswith("rekindle_")}


def _is_linted(text: str) -> None:
    """Lets promtool look at names, types and help texts, if it is installed."""
    if promtool := shutil.which("promtool"):
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def _is_listed(process: str, text: str, cluster: ClusterKind) -> None:
    """Compares the metrics of a process with the page."""
    families, table, labels = list(text_string_to_metric_families(text)), _table(process, cluster), _labels()
    ours = _ours(families)
    assert table.items() <= {name: (family.type, family.documentation) for name, family in ours.items()}.items(), process
    measured = {name: family for name, family in ours.items() if family.samples}
    assert measured.keys() <= table.keys(), process
    for name, family in measured.items():
        assert all(sample.labels.keys() - {"le"} == labels[name] for sample in family.samples), name
    is_client = process != "operator"
    assert any(family.name.startswith("temporal_") for family in families) is is_client, process
    assert not [family for family in families if family.name.endswith("_total_total")]


@pytest.mark.parametrize("cluster", ClusterKind)
@pytest.mark.costly
@pytest.mark.timeout(600)
async def test_processes_expose_what_the_page_lists(cluster: ClusterKind) -> None:
    """Name, type, labels, meaning and process of every metric are those of the page. The Temporal SDK's are beside them."""
    texts: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="rekindle-e2e-") as folder:
        async with (
            running(Path(folder), Machine(3, 2, cluster), ports=Ports(metrics=0)) as stack,
            aiohttp.ClientSession() as session,
        ):
            result = await Product(stack, Path(folder)).run()
            for name, url in stack.addresses.metrics.items():
                async with session.get(url) as answer:
                    texts[name] = await answer.text()
    assert tried(result) == [("hot switch", "recovered")], result
    assert texts.keys() - {"operator"} == {"control", "gateway", "watcher"}
    for process, text in texts.items():
        _is_linted(text)
        _is_listed(process, text, cluster)
    incidents = [line for line in texts["control"].splitlines() if line.startswith("rekindle_incidents_total{")]
    ended = [line for line in incidents if not line.endswith(" 0.0")]
    assert ended == ['rekindle_incidents_total{fault="sub_health",mode="hot switch",verdict="recovered"} 1.0']
