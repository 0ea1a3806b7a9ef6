"""The variables `OTEL_*`: what switches traces on, and what a wrong value gets."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rekindle.errors import BadInput
from rekindle.otlp import CHECKS, LIMITS, dropped, exporter, exporting, wanted
from rekindle.spans import Place, Span

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
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "gzip"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file", "the path of a file"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", __file__, "with certificates in PEM"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/no/such/file", "the path of a file"),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", __file__, "a certificate in PEM, with its key"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "from 0 to 1"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp, none"),
        ("OTEL_RESOURCE_ATTRIBUTES", "env:prod", "key=value"),
        ("OTEL_SDK_DISABLED", "maybe", "true, false"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://two words", "a URL"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", "a whole number from 1 to 1000000"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1" + 20 * "0", "a whole number from 1 to 1000000"),
        ("OTEL_BSP_SCHEDULE_DELAY", "1" + 20 * "0", "a whole number from 1 to 86400000"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many", "a whole number from 0"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096", "a number up to 2048"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str, accepted: str) -> None:
    """The error names the variable, its value and what is accepted, instead of a default that nobody chose."""
    with pytest.raises(BadInput) as caught:
        wanted({**HERE, name: value})
    assert str(caught.value).startswith(f"{name}: {value!r} is not accepted, accepted is ")
    assert accepted in str(caught.value)


@pytest.mark.parametrize(
    "value", ["Authorization: Bearer SECRET", "api/key=SECRET", "api-key=SEC;RET", "api-key=SECRET%0a", "api-key=SECRET%c3%a9"]
)
@pytest.mark.parametrize("kind", ["", "TRACES_"])
def test_a_header_that_cannot_be_sent_is_an_error_without_its_value(kind: str, value: str) -> None:
    """The exporter would leave the header out, and write its secret into the log."""
    with pytest.raises(BadInput) as caught:
        wanted({**HERE, f"OTEL_EXPORTER_OTLP_{kind}HEADERS": value})
    assert str(caught.value).startswith(f"OTEL_EXPORTER_OTLP_{kind}HEADERS: its value is not accepted, accepted is key=value")
    assert "SEC" not in str(caught.value)


def test_a_password_in_a_url_is_not_shown() -> None:
    """A wrong endpoint is shown without the name and the password in it."""
    with pytest.raises(BadInput, match=re.escape("'ftp://...@collector' is not accepted")):
        wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://me:SECRET@collector"})


def test_a_key_without_its_certificate_is_an_error() -> None:
    """The exporter would leave the key out."""
    with pytest.raises(BadInput, match=r"^OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: missing"):
        wanted({**HERE, "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": __file__})


def test_a_compression_that_grpc_has_not_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter by gRPC knows gzip only."""
    monkeypatch.setattr("rekindle.otlp.find_spec", lambda _: True)
    by_grpc = {**HERE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert wanted({**by_grpc, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"})
    assert wanted({**by_grpc, "OTEL_EXPORTER_OTLP_COMPRESSION": "deflate", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip"})
    with pytest.raises(BadInput, match=r"^OTEL_EXPORTER_OTLP_COMPRESSION: 'deflate' is not accepted, accepted is gzip, none"):
        wanted({**by_grpc, "OTEL_EXPORTER_OTLP_COMPRESSION": "deflate"})


def test_values_are_not_read_where_traces_are_off() -> None:
    """A value that is wrong stops no process that exports nothing."""
    wrong = {**HERE, "OTEL_TRACES_SAMPLER": "banana"}
    assert not wanted({**wrong, "OTEL_SDK_DISABLED": "true"})
    assert not wanted({**wrong, "OTEL_TRACES_EXPORTER": "none"})


def test_the_exporter_reads_what_was_checked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Blanks around a value do not make it another one, and an empty value counts as not set."""
    given = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": " http://127.0.0.1:9 ",
        "OTEL_TRACES_SAMPLER": " Always_Off ",
        "OTEL_BSP_SCHEDULE_DELAY": "",
        "OTEL_SPAN_EVENT_COUNT_LIMIT": " ",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with exporting("control"):
        export = exporter()
        assert export
        place = Place(1, 1)
        export.export([Span("a span", place, None, datetime.now(UTC), datetime.now(UTC))])
        assert dropped() == 0, "nothing was queued"
        assert "OTEL_EXPORTER_OTLP_COMPRESSION" not in os.environ, "the exporter by gRPC does not know it"
    assert not caplog.records


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """File with a certificate and its key."""
    key, found = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=collector"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(found)], capture_output=True, check=True)
    found.write_text(found.read_text() + key.read_text())
    return found


def test_each_right_value_is_accepted(certificate: Path) -> None:
    """Values of the specification pass, with spaces and several pairs."""
    accepted = {
        "ENDPOINT": "https://collector.example:4318/base",
        "PROTOCOL": "http/protobuf",
        "TIMEOUT": "2.5",
        "HEADERS": "api-key=a b=c,x-tenant=t,Authorization=Bearer%20x",
        "COMPRESSION": "gzip",
        "INSECURE": "false",
        "CERTIFICATE": str(certificate),
        "CLIENT_KEY": str(certificate),
        "CLIENT_CERTIFICATE": str(certificate),
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
        **dict.fromkeys(LIMITS, "0"),
    }
    assert given.keys() == CHECKS.keys()
    assert wanted(given)


IMPORTS = """
import importlib, sys
importlib.import_module(sys.argv[1])
from rekindle.otlp import exporting
from rekindle.worker_plugin import plugin
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
