"""A real Prometheus scrapes the product while jobs are recovered: panels have data, and rules are evaluated."""

import asyncio
import json
import math
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml

from rekindle.cli.demos.process_faults import Strike
from rekindle.cli.ports import free_ports
from rekindle.cli.stack import ClusterKind, Machine, Ports, running
from rekindle.model.mode import Mode
from tests.end_to_end.conftest import Product
from tests.end_to_end.test_hot_switch import tried

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "monitoring" / "rules.yaml"
DASHBOARDS = sorted((ROOT / "deploy" / "monitoring" / "dashboards").glob("*.json"))

WITHOUT = {
    "control-plane: Age of Temporal's backlog": "the embedded Temporal server is not scraped",
    "control-plane: Replays, 95%": "no control worker is replaced, so that nothing is replayed",
    "job: Escalations since the start": "no mode is followed by another one",
}
"""Panels that may have no data here, and why."""

WITHOUT_API_SERVER = {
    "control-plane: Requests to the API server",
    "control-plane: API server, 95%",
    "control-plane: Complete lists",
}
"""Panels that may have no data on the local cluster, which has no API server."""

PATIENCE = 60.0


def queries() -> dict[str, str]:
    """Returns the query of each panel, as Grafana sends it."""
    found = {
        f"{path.stem}: {panel['title']}": target["expr"]
        for path in DASHBOARDS
        for panel in json.loads(path.read_text())["panels"]
        for target in panel["targets"]
    }
    return {panel: query.replace("$__rate_interval", "1m") for panel, query in found.items()}


@dataclass
class Prometheus:
    url: str
    session: aiohttp.ClientSession
    began: float

    async def ask(self, path: str, **given: str) -> Any:
        async with self.session.get(f"{self.url}/api/v1/{path}", params=given) as answer:
            said = await answer.json()
        assert said["status"] == "success", said
        return said["data"]

    async def has_data(self, query: str) -> bool:
        """Returns whether a panel shows a number at any time since the start."""
        found = await self.ask("query_range", query=query, start=f"{self.began}", end=f"{time.time()}", step="1")
        return any(not math.isnan(float(value)) for series in found["result"] for _, value in series["values"])

    async def empty(self, cluster: ClusterKind) -> set[str]:
        """Returns the panels without data that should have some."""
        empty = {panel for panel, query in queries().items() if not await self.has_data(query)} - WITHOUT.keys()
        return empty - WITHOUT_API_SERVER if cluster is ClusterKind.LOCAL else empty

    async def until_up(self, targets: int) -> None:
        """Waits until so many processes are scraped."""
        async with asyncio.timeout(PATIENCE):
            while await self._up() < targets:
                await asyncio.sleep(0.2)

    async def _up(self) -> int:
        try:
            return len((await self.ask("query", query="up == 1"))["result"])
        except (aiohttp.ClientError, AssertionError):  # it starts
            return 0


@asynccontextmanager
async def prometheus(folder: Path, targets: dict[str, str]) -> AsyncIterator[Prometheus]:
    """Runs Prometheus on a free port with our rules.

    Args:
        targets: URL of the metrics of each process.
    """
    (port,) = free_ports(1)
    scraped = [{"targets": [urlsplit(url).netloc], "labels": {"component": name, "pod": name}} for name, url in targets.items()]
    configuration = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "rekindle", "static_configs": scraped}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    options = (f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn")
    process = await asyncio.create_subprocess_exec("prometheus", *options, f"--web.listen-address=127.0.0.1:{port}")
    try:
        async with aiohttp.ClientSession() as session:
            there = Prometheus(f"http://127.0.0.1:{port}", session, time.time())
            await there.until_up(len(targets))
            yield there
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("cluster", ClusterKind)
@pytest.mark.costly
@pytest.mark.timeout(600)
async def test_panels_have_data_after_recoveries(cluster: ClusterKind) -> None:
    """A hot switch and a repair in place are seen in every panel but some, and all rules are evaluated."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is missing: apt-get install prometheus")
    with tempfile.TemporaryDirectory(prefix="rekindle-e2e-") as name:
        folder = Path(name)
        async with (
            running(folder, Machine(3, 2, cluster), ports=Ports(metrics=0)) as stack,
            prometheus(folder, stack.addresses.metrics) as there,
        ):
            product = Product(stack, folder)
            assert tried(await product.run()) == [("hot switch", "recovered")]
            await product.struck(Mode.IN_PLACE, Strike.KILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    while without := await there.empty(cluster):
                        await asyncio.sleep(1)
            rules = [rule for group in (await there.ask("rules"))["groups"] for rule in group["rules"]]
    assert not without
    assert {rule["name"]: (rule["health"], rule.get("lastError", "")) for rule in rules} == {
        rule["name"]: ("ok", "") for rule in rules
    }
    assert {rule["name"] for rule in rules if rule["state"] == "firing"} == set()
