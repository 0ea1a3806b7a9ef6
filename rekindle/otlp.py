"""Switch of the traces: reads and checks the standard variables `OTEL_*`, and holds the exporter of this process.

Nothing of OpenTelemetry is imported as long as no endpoint is set.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rekindle.errors import BadInput

if TYPE_CHECKING:
    from rekindle.span_exporter import SpanExporter

ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PROTOCOL, TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
HTTP, GRPC = "http/protobuf", "grpc"

END_WITHIN = 2.0
"""Seconds in which spans that still wait are sent when a process ends."""

QUEUE, BATCH = 2048, 512
"""Largest number of spans that wait, and that are sent together, unless `OTEL_BSP_MAX_QUEUE_SIZE` and
`OTEL_BSP_MAX_EXPORT_BATCH_SIZE` say others. Source: OpenTelemetry's specification."""

SAMPLERS = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)

Check = Callable[[str], str]
"""Function that returns what is accepted instead of a value; empty: the value is accepted."""


def _one_of(*accepted: str) -> Check:
    return lambda value: "" if value.strip().lower() in accepted else ", ".join(accepted)


def _is_url(value: str) -> str:
    try:
        url = urlsplit(value)
        is_one = url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        is_one = False
    return "" if is_one else "a URL such as http://collector:4318"


def _is_number(least: float, most: float, words: str) -> Check:
    def check(value: str) -> str:
        try:
            return "" if least <= float(value) <= most else words
        except ValueError:
            return words

    return check


def _is_protocol(value: str) -> str:
    if value == HTTP or (value == GRPC and find_spec("opentelemetry.exporter.otlp.proto.grpc")):
        return ""
    return f"{HTTP}, and {GRPC} where opentelemetry-exporter-otlp-proto-grpc is installed"


def _are_pairs(value: str) -> str:
    pair = r"\s*[^=,\s]+\s*=[^,]*"
    return "" if re.fullmatch(rf"({pair}(,{pair})*)?,?\s*", value) else "key=value, several of them with commas between"


def _is_file(value: str) -> str:
    return "" if Path(value).is_file() else "the path of a file that can be read"


_is_positive = _is_number(1e-3, 1e9, "a number of seconds above 0")


def _is_count(value: str) -> str:
    return "" if value.isdecimal() and int(value) > 0 else "a whole number above 0"


def _of_both(name: str, check: Check) -> dict[str, Check]:
    """Returns the check of a variable of the exporter, and of the one that concerns traces only."""
    return {f"OTEL_EXPORTER_OTLP_{name}": check, f"OTEL_EXPORTER_OTLP_TRACES_{name}": check}


CHECKS: Mapping[str, Check] = {
    "OTEL_SDK_DISABLED": _one_of("true", "false"),
    "OTEL_TRACES_EXPORTER": _one_of("otlp", "none"),
    **_of_both("ENDPOINT", _is_url),
    **_of_both("PROTOCOL", _is_protocol),
    **_of_both("TIMEOUT", _is_positive),
    **_of_both("HEADERS", _are_pairs),
    **_of_both("COMPRESSION", _one_of("gzip", "deflate", "none")),
    **_of_both("CERTIFICATE", _is_file),
    **_of_both("CLIENT_KEY", _is_file),
    **_of_both("CLIENT_CERTIFICATE", _is_file),
    "OTEL_RESOURCE_ATTRIBUTES": _are_pairs,
    "OTEL_TRACES_SAMPLER": _one_of(*SAMPLERS),
    "OTEL_TRACES_SAMPLER_ARG": _is_number(0, 1, "a number from 0 to 1"),
    "OTEL_BSP_SCHEDULE_DELAY": _is_count,
    "OTEL_BSP_MAX_QUEUE_SIZE": _is_count,
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": _is_count,
    "OTEL_BSP_EXPORT_TIMEOUT": _is_count,
}
"""Checks of the values that are read, by variable. The libraries of OpenTelemetry log a wrong value and use another one."""


def wanted(environment: Mapping[str, str]) -> bool:
    """Returns whether these variables ask for traces.

    Raises:
        BadInput: a value cannot be used; the message names the variable, its value and what is accepted.
    """
    given = {name: value for name, value in environment.items() if value}
    if not (given.get(ENDPOINT) or given.get(TRACES_ENDPOINT)):
        return False
    for name, check in CHECKS.items():
        if name in given and (accepted := check(given[name])):
            raise BadInput(f"{name}: {given[name]!r} is not accepted, accepted is {accepted}")
    queue, batch = int(given.get("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE)), int(given.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH))
    if batch > queue:
        raise BadInput(
            f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE: '{batch}' is not accepted, accepted is a number up to {queue}, the queue's"
        )
    is_off = given.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not is_off and given.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "otlp"


_exporter: "SpanExporter | None" = None


def exporter() -> "SpanExporter | None":
    """Returns the exporter of this process; None: traces are off."""
    return _exporter


def dropped() -> int:
    """Returns the number of spans of this process that were not exported (`rekindle_spans_dropped_total`)."""
    return _exporter.dropped if _exporter else 0


@contextmanager
def exporting(process: str) -> Iterator[None]:
    """Exports the spans of a process while the block runs, if its environment asks for traces.

    Raises:
        BadInput: a variable cannot be used; the message names it.
    """
    global _exporter
    if not wanted(os.environ):
        yield
        return
    from rekindle.span_exporter import SpanExporter

    protocol = os.environ.get(TRACES_PROTOCOL) or os.environ.get(PROTOCOL)
    _exporter = SpanExporter(process, int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") or QUEUE), grpc=protocol == GRPC)
    try:
        yield
    finally:
        _exporter.shutdown(END_WITHIN)
        _exporter = None
