"""Switch of the traces: reads and checks the standard variables `OTEL_*`, and holds the exporter of this process.

Nothing of OpenTelemetry is imported as long as no endpoint is set.
"""

import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from rekindle.errors import BadInput

if TYPE_CHECKING:
    from rekindle.span_exporter import SpanExporter

ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
COMPRESSION, TRACES_COMPRESSION = "OTEL_EXPORTER_OTLP_COMPRESSION", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION"
PROTOCOL, TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
HTTP, GRPC = "http/protobuf", "grpc"
SWITCHES = ("OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER")
"""Variables that switch traces off. Nothing else is checked then."""

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

LIMITS = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
)
"""Largest numbers of what a span may have, and lengths of its texts."""

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
    return "" if is_one and not re.search(r"\s", value) else "a URL such as http://collector:4318"


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


def _are_headers(value: str) -> str:
    """Accepts what the exporter accepts. It writes a header that it leaves out into the log, with its value."""
    key = r"[\x21\x23-\x27\x2a\x2b\x2d\x2e\x30-\x39\x41-\x5a\x5e-\x7a\x7c\x7e]+"
    pair = rf"[ \t]*{key}[ \t]*=[\x20\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*"
    is_right = re.fullmatch(rf"{pair}(,{pair})*,?[ \t]*", value)
    decoded = unquote(value)
    if is_right and decoded.isascii() and decoded.isprintable():
        return ""
    return 'key=value in ASCII, several of them with commas between; the characters ,;"\\ in a value are percent-encoded'


def _is_file(value: str) -> str:
    try:
        with Path(value).open("rb"):
            return ""
    except (OSError, ValueError):
        return "the path of a file that can be read"


def _has_certificates(value: str) -> str:
    try:
        ssl.create_default_context(cafile=value)
    except (OSError, ValueError):
        return "the path of a file with certificates in PEM"
    return ""


_is_positive = _is_number(1e-3, 1e9, "a number of seconds above 0")


def _is_whole(least: int, most: int) -> Check:
    def check(value: str) -> str:
        is_one = value.isdecimal() and len(value) < 20 and least <= int(value) <= most
        return "" if is_one else f"a whole number from {least} to {most}"

    return check


_is_count, _is_milliseconds, _is_limit = _is_whole(1, 1_000_000), _is_whole(1, 86_400_000), _is_whole(0, 1_000_000_000)


def _of_both(name: str, check: Check) -> dict[str, Check]:
    """Returns the check of a variable of the exporter, and of the one that concerns traces only."""
    return {f"OTEL_EXPORTER_OTLP_{name}": check, f"OTEL_EXPORTER_OTLP_TRACES_{name}": check}


CHECKS: Mapping[str, Check] = {
    SWITCHES[0]: _one_of("true", "false"),
    SWITCHES[1]: _one_of("otlp", "none"),
    **_of_both("ENDPOINT", _is_url),
    **_of_both("PROTOCOL", _is_protocol),
    **_of_both("TIMEOUT", _is_positive),
    **_of_both("HEADERS", _are_headers),
    **_of_both("COMPRESSION", _one_of("gzip", "deflate", "none")),
    **_of_both("INSECURE", _one_of("true", "false")),
    **_of_both("CERTIFICATE", _has_certificates),
    **_of_both("CLIENT_KEY", _is_file),
    **_of_both("CLIENT_CERTIFICATE", _is_file),
    "OTEL_RESOURCE_ATTRIBUTES": _are_pairs,
    "OTEL_TRACES_SAMPLER": _one_of(*SAMPLERS),
    "OTEL_TRACES_SAMPLER_ARG": _is_number(0, 1, "a number from 0 to 1"),
    "OTEL_BSP_SCHEDULE_DELAY": _is_milliseconds,
    "OTEL_BSP_MAX_QUEUE_SIZE": _is_count,
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": _is_count,
    "OTEL_BSP_EXPORT_TIMEOUT": _is_milliseconds,
    **dict.fromkeys(LIMITS, _is_limit),
}
"""Checks of the values that are read, by variable. The libraries of OpenTelemetry log a wrong value and use another one."""


def wanted(environment: Mapping[str, str]) -> bool:
    """Returns whether these variables ask for traces.

    Raises:
        BadInput: a value cannot be used; the message names the variable and what is accepted, and the value if it is no secret.
    """
    given = _given(environment)
    if not (given.get(ENDPOINT) or given.get(TRACES_ENDPOINT)):
        return False
    for name in SWITCHES:
        _check(name, given)
    if given.get(SWITCHES[0], "").lower() == "true" or given.get(SWITCHES[1], "otlp").lower() == "none":
        return False
    for name in given:
        _check(name, given)
    _check_batch(given)
    _check_client_certificate(given)
    _check_compression(given)
    return True


def _check(name: str, given: Mapping[str, str]) -> None:
    if name in given and (accepted := CHECKS[name](given[name])):
        raise BadInput(f"{name}: {_shown(name, given[name])} is not accepted, accepted is {accepted}")


def _given(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that are set. An empty one counts as not set. Source: OpenTelemetry's specification."""
    return {name: value for name in CHECKS if (value := environment.get(name, "").strip())}


def _shown(name: str, value: str) -> str:
    """Returns a value for a message, without secrets."""
    return "its value" if name.endswith("HEADERS") else repr(re.sub(r"//[^/]*@", "//...@", value))


def _check_batch(given: Mapping[str, str]) -> None:
    queue, batch = int(given.get("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE)), int(given.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH))
    if batch > queue:
        raise BadInput(
            f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE: '{batch}' is not accepted, accepted is a number up to {queue}, the queue's"
        )


def _is_by_grpc(given: Mapping[str, str]) -> bool:
    return (given.get(TRACES_PROTOCOL) or given.get(PROTOCOL)) == GRPC


def _compression(given: Mapping[str, str]) -> tuple[str, str]:
    """Returns the compression, and the variable that names it."""
    name = TRACES_COMPRESSION if TRACES_COMPRESSION in given else COMPRESSION
    return given.get(name, "none").lower(), name


def _check_compression(given: Mapping[str, str]) -> None:
    value, name = _compression(given)
    if value == "deflate" and _is_by_grpc(given):
        raise BadInput(f"{name}: {value!r} is not accepted, accepted is gzip, none by {GRPC}")


def _check_client_certificate(given: Mapping[str, str]) -> None:
    """Loads the certificate as the exporter does, which otherwise fails with each batch."""
    names = [f"OTEL_EXPORTER_OTLP_{kind}CLIENT_CERTIFICATE" for kind in ("TRACES_", "")]
    keys = [name.replace("CERTIFICATE", "KEY") for name in names]
    name, key = (next((one for one in some if one in given), "") for some in (names, keys))
    if key and not name:
        raise BadInput(f"{names[1]}: missing, accepted is the path of the certificate of {key}")
    try:
        if name:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_cert_chain(given[name], given.get(key), password=str)  # it asks nobody for the password of a key
    except (OSError, ValueError) as error:
        words = "the path of a certificate in PEM, with its key in it or in CLIENT_KEY, without a password"
        raise BadInput(f"{name}: {given[name]!r} is not accepted, accepted is {words}") from error


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
    given = _given(os.environ)
    for name in CHECKS:  # the libraries read again what was checked, and take blanks and empty values for wrong ones
        os.environ.pop(name, None)
    is_plain = _compression(given)[0] == "none"  # which the exporter by gRPC does not know
    os.environ.update({name: value for name, value in given.items() if not (is_plain and name.endswith("COMPRESSION"))})
    from rekindle.span_exporter import SpanExporter

    _exporter = SpanExporter(process, int(given.get("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE)), grpc=_is_by_grpc(given))
    try:
        yield
    finally:
        _exporter.shutdown(END_WITHIN)
        _exporter = None
