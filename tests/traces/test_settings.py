"""The variables `OTEL_*`: what switches traces on, and what a wrong value gets."""

import os
import subprocess
import sys

import pytest

from rekindle.errors import BadInput
from rekindle.otlp import CHECKS, wanted

HERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


def test_traces_are_on_where_an_endpoint_is_set() -> None:
    """An endpoint for all signals or for traces switches them on. `OTEL_SDK_DISABLED` and the exporter `none` switch them off."""
    assert wanted(HERE)
    assert wanted({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/v1/traces"})
    assert not wanted({})
    assert not wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_TRACES_SAMPLER": "banana"})
    assert not wanted({**HERE, "OTEL_SDK_DISABLED": "true"})
    assert not wanted({**HERE, "OTEL_TRACES_EXPORTER": "none"})


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "a URL such as http://collector:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://", "a URL"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:port", "a URL"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "thrift", "grpc where opentelemetry-exporter-otlp-proto-grpc is installed"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "a number of seconds above 0"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0", "a number of seconds above 0"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key", "key=value"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "gzip"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file", "the path of a file"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "from 0 to 1"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp, none"),
        ("OTEL_RESOURCE_ATTRIBUTES", "env:prod", "key=value"),
        ("OTEL_SDK_DISABLED", "maybe", "true, false"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", "a whole number above 0"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096", "a number up to 2048"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str, accepted: str) -> None:
    """The error names the variable, its value and what is accepted, instead of a default that nobody chose."""
    with pytest.raises(BadInput) as caught:
        wanted({**HERE, name: value})
    assert str(caught.value).startswith(f"{name}: {value!r} is not accepted, accepted is ")
    assert accepted in str(caught.value)


def test_each_right_value_is_accepted(tmp_path: os.PathLike[str]) -> None:
    """Values of the specification pass, with spaces and several pairs."""
    accepted = {
        "ENDPOINT": "https://collector.example:4318/base",
        "PROTOCOL": "http/protobuf",
        "TIMEOUT": "2.5",
        "HEADERS": "api-key=a b=c,x-tenant=t",
        "COMPRESSION": "gzip",
        "CERTIFICATE": __file__,
        "CLIENT_KEY": __file__,
        "CLIENT_CERTIFICATE": __file__,
    }
    given = {f"OTEL_EXPORTER_OTLP_{kind}{name}": value for name, value in accepted.items() for kind in ("", "TRACES_")}
    given |= {
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod, team=a",
        "OTEL_BSP_SCHEDULE_DELAY": "1000",
        "OTEL_BSP_MAX_QUEUE_SIZE": "10",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10",
        "OTEL_BSP_EXPORT_TIMEOUT": "1000",
        "OTEL_SDK_DISABLED": "false",
        "OTEL_TRACES_EXPORTER": "otlp",
    }
    assert given.keys() == CHECKS.keys()
    assert wanted(given)


IMPORTS = """
import importlib, sys
importlib.import_module(sys.argv[1])
from rekindle.otlp import exporting
from rekindle.temporal import plugin
with exporting("control"):
    plugin()
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


@pytest.mark.parametrize("process", ["workers.control", "workers.gateway.__main__", "workers.watcher.__main__"])
def test_a_process_without_an_endpoint_imports_nothing_of_opentelemetry(process: str) -> None:
    """A process that exports no spans pays nothing for them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    run = subprocess.run([sys.executable, "-c", IMPORTS, process], env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr


def test_a_process_with_a_wrong_value_ends_at_its_start() -> None:
    """The control worker prints one sentence and ends with code 1, before it asks Temporal for anything."""
    environment = {**os.environ, **HERE, "OTEL_TRACES_SAMPLER": "sometimes"}
    command = [sys.executable, "-P", "-m", "workers.control"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "error: OTEL_TRACES_SAMPLER: 'sometimes' is not accepted" in run.stderr
