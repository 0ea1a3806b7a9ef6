"""Values of the chart: generated files are those of the rows, and the product reads what a value sets."""

import re
from ipaddress import IPv6Network
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given as given_by
from hypothesis import strategies as st

import rekindle
from deploy import manifests
from deploy.chart_values import NETWORK, ROWS, Row, names
from rekindle.model.limits import Limits
from rekindle.settings import Settings
from tests.kubernetes.world.manifests import container, named, settings, workloads
from tests.support.charts import CHART, CRDS_CHART, Object, given, objects
from tests.support.charts import names as names_of

ROOT = Path(__file__).parents[2]

SETTINGS = {
    "observe": "observe",
    "takeOver": "take_over",
    "rankKeys": "rank_keys",
    "jobKeys": "job_keys",
    "accelerators": "accelerators",
    "drainHeld": "drain_held",
    "storm.nodes": "storm_nodes",
    "storm.recoveries": "storm_recoveries",
    "senders": "senders",
    "mindioSenders": "mindio_senders",
    "platforms": "platforms",
    "namespaces": "namespaces",
    "temporal.ui": "temporal_ui",
    "log.level": "log_level",
    "log.json": "log_json",
}
"""Settings of the product, by the value that gives them."""

OF_THE_MANIFESTS = {
    "gateway_host",
    "gateway_port",
    "gateway_instance",
    "gateways",
    "cluster",
    "namespace",
    "gateway_address",
    "health_port",
    "rules",
    "limits",
    "webhook_certificates",
    "pod_template_hash",
}
"""Settings that templates give."""

NOT_OF_AN_INSTALLATION = {"state_dir", "cluster_socket", "kubeconfig", "health_host", "build_id", "only_worker", "webhook_port"}
"""Settings of one machine, or of one process: `control.env` and its like give them where they are needed."""


@pytest.mark.parametrize("generator", [manifests.of_values, manifests.of_templates])
def test_generated_files_are_what_they_are_made_from(generator: Any) -> None:
    """Committed files are what `make manifests` writes: values, schema, table, monitoring, CRDs and the base of kustomize."""
    for path, text in generator():
        assert path.read_text() == text, f"{path.relative_to(ROOT)}: run `make manifests`"


def test_every_row_is_a_default_and_no_other_value_is() -> None:
    """`values.yaml` has the rows with their defaults."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for row in ROWS:
        assert at(values, row.name) == row.default, row.name
    leaves = {name for name in names() if not any(other.startswith(f"{name}.") for other in names())}
    assert {name.removesuffix(".*") for name in leaves} == {row.name for row in ROWS}


def at(values: Any, name: str) -> Any:
    for part in name.split("."):
        values = values[part]
    return values


def test_every_setting_of_an_installation_is_a_value() -> None:
    """A new setting of the product gets a value, or a reason here why it has none."""
    assert {*SETTINGS.values(), *OF_THE_MANIFESTS, *NOT_OF_AN_INSTALLATION} == set(Settings.model_fields)
    assert {row.name.removeprefix("limits.") for row in ROWS if row.name.startswith("limits.")} == {
        field.alias for field in Limits.model_fields.values()
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_a_default_is_that_of_the_product_or_of_an_installation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes read the product's own defaults, except for logs, which collectors read as JSON."""
    found = objects(given())
    read = settings(found, named(found, "Deployment", "rekindle-control"), monkeypatch)
    default = Settings.model_fields[SETTINGS[name]].get_default(call_default_factory=True)
    assert getattr(read, SETTINGS[name]) == (True if name == "log.json" else default)


READ = (
    ({"observe": True}, {"observe": True}),
    ({"takeOver": True, "service__name": "rekindle"}, {"take_over": True, "gateway_address": "rekindle.mindx-dl.svc:8899"}),
    ({"namespaces": ["training", "other"]}, {"namespaces": ("training", "other")}),
    ({"rankKeys": ["example.com/rank"]}, {"rank_keys": ("example.com/rank",)}),
    ({"jobKeys": {"PyTorchJob": "job-name"}}, {"job_keys": {"PyTorchJob": "job-name"}}),
    ({"accelerators": ["example.com/npu"]}, {"accelerators": ("example.com/npu",)}),
    ({"storm__nodes": 0, "storm__recoveries": 100_000}, {"storm_nodes": 0, "storm_recoveries": 100_000}),
    ({"senders": "address", "mindioSenders": "nobody"}, {"senders": "address", "mindio_senders": "nobody"}),
    ({"temporal__ui": "https://temporal.example.com"}, {"temporal_ui": "https://temporal.example.com"}),
    ({"log__level": "DEBUG", "log__json": False}, {"log_level": "DEBUG", "log_json": False}),
    ({"rules__set": "nvidia"}, {"rules": "nvidia"}),
)


@pytest.mark.parametrize(("values", "expected"), READ, ids=lambda one: next(iter(one)))
def test_a_value_reaches_every_process(values: Object, expected: Object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control worker, gateway, watcher and operator read the setting that a value gives."""
    found = objects(given(**values))
    for one in workloads(found):
        read = settings(found, one, monkeypatch)
        assert {name: getattr(read, name) for name in expected} == expected


def test_durations_and_networks_are_read_as_the_product_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit is a number of seconds or an ISO 8601 duration, by the name that it has in a job."""
    values = given(
        drainHeld=14_400,
        limits={"backupScheduled": 300, "pause": "PT15M", "nodeLost": "7", "nodeAside": 1_000_000, "cleanUp": "P1DT2H1.5S"},
        platforms=["10.0.7.0/24", "fd00::/64"],
    )
    found = objects(values)
    read = settings(found, named(found, "Deployment", "rekindle-control"), monkeypatch)
    assert read.drain_held.total_seconds() == 4 * 3600
    assert [str(network) for network in read.platforms] == ["10.0.7.0/24", "fd00::/64"]
    expected = {"backupScheduled": 300, "pause": "PT15M", "nodeLost": 7, "nodeAside": 1_000_000, "cleanUp": 93_601.5}
    assert read.limits == Limits.model_validate(expected)


@given_by(st.lists(st.sampled_from(["", "0", "1", "fd00", "abcde", "g"]), min_size=1, max_size=9), st.integers(0, 130))
def test_networks_of_ipv6_are_those_that_the_product_accepts(parts: list[str], bits: int) -> None:
    """The chart and the processes read the same addresses. Otherwise an installation would fail at its start."""
    network = f"{':'.join(parts)}/{bits}"
    try:
        IPv6Network(network, strict=False)
        is_one = True
    except ValueError:
        is_one = False
    assert bool(re.match(NETWORK, network)) == is_one


@pytest.mark.parametrize("row", [row for row in ROWS if row.pattern], ids=lambda row: row.name)
def test_a_default_fits_its_pattern(row: Row) -> None:
    """No default is refused by the chart itself."""
    for text in row.default if isinstance(row.default, list) else [row.default]:
        assert not text or re.search(row.pattern, text)


def test_the_values_of_the_page_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of docs/kubernetes.md render, and say what the page says of them."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    least, more = (yaml.safe_load(written) for written in re.findall(r"```yaml\n(image:.*?)```", page, re.DOTALL))
    assert names_of(objects(least)) == names_of(objects(given()))
    found = objects(more)
    one = named(found, "Deployment", "rekindle-control")
    assert container(one)["image"] == "my-registry/rekindle-control-plane:0.1.0"
    read = settings(found, one, monkeypatch)
    assert (read.observe, read.namespaces) == (True, ("training",))
    assert {"name": "temporal-tls", "mountPath": "/etc/rekindle/temporal", "readOnly": True} in container(one)["volumeMounts"]


def test_values_that_the_page_names_exist() -> None:
    """Names of values in the table of docs/kubernetes.md are those of rows."""
    page = (ROOT / "docs" / "kubernetes.md").read_text().split("## Values\n")[1].split("## Upgrade")[0]
    table = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    found = set(re.findall(r"`([a-z][A-Za-z]*(?:\.[A-Za-z]+)*)(?:=\w+)?`", table)) - {"tls.crt", "tls.key", "ca.crt"}
    assert found <= {row.name for row in ROWS}


@pytest.mark.parametrize("chart", [CHART, CRDS_CHART], ids=lambda path: path.name)
def test_a_chart_has_the_version_of_the_product(chart: Path) -> None:
    """Chart and application have one version, and both charts refuse a cluster that is too old."""
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == rekindle.__version__
    assert about["kubeVersion"] == ">=1.30.0-0"
