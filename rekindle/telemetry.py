"""Logging of our own processes: stdlib logging everywhere, structlog only as the formatter.

Configured once by each entry point.
"""

import logging
import sys

import structlog

from rekindle.settings import Settings
from rekindle.spans import here


def _for_people() -> structlog.typing.Processor:
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)


def _with_span(_logger: object, _method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Adds the ids of the span in which a line is logged. Without traces there is no span."""
    if place := here():
        line["trace_id"], line["span_id"] = f"{place.trace:032x}", f"{place.span:016x}"
    return line


def configure_logging(process: str, settings: Settings) -> None:
    """Writes logs to stderr: text for people, or JSON lines with the fields of `extra`."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        _with_span,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer() if settings.log_json else _for_people()
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    logging.getLogger("temporalio").setLevel(logging.WARNING)
    logging.getLogger(process).info("starts")
