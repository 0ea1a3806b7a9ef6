"""Request parsing and responses of the cluster's HTTP API. Objects are those of `rekindle.model.cluster` in camelCase."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from rekindle.errors import ClusterError, Conflict, Invalid, NotFound, WatchExpired
from rekindle.model.cluster import Status
from rekindle.model.problems import problems

PIECE = 256 * 1024
MOST_LINES = 20
"""Largest number of invalid fields of a body that an error names."""

CODES: dict[type[ClusterError], int] = {NotFound: 404, Conflict: 409, WatchExpired: 410, Invalid: 422}

logger = logging.getLogger("cluster")
Body = TypeVar("Body", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def body_of(request: web.Request, kind: type[Body]) -> Body:
    """Returns the body as a model. Raises Invalid, also for an unknown field."""
    return read(await request.read(), kind)


def read(content: bytes, kind: type[Body]) -> Body:
    try:
        return kind.model_validate_json(content, extra="forbid")
    except ValidationError as error:
        raise Invalid("; ".join(problems(error, kind)[:MOST_LINES])) from error


def number_of(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) > 86400:
        raise Invalid(f"{name}: {text!r} is not accepted (accepted: whole numbers from 0 to 86400)")
    return int(text)


def one(thing: BaseModel, code: int = 200) -> web.Response:
    return web.Response(text=thing.model_dump_json(by_alias=True), status=code, content_type="application/json")


def list_of(things: Sequence[BaseModel]) -> web.Response:
    items = ",".join(thing.model_dump_json(by_alias=True) for thing in things)
    return web.Response(text=f"[{items}]", content_type="application/json")


def status_of(code: int, error: Exception) -> Status:
    return Status(code=code, reason=type(error).__name__, message=str(error))


@web.middleware
async def refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns every exception into a `Status`."""
    try:
        return await handler(request)
    except ClusterError as error:
        code = CODES.get(type(error), 500)
        return one(status_of(code, error), code)
    except web.HTTPException as error:
        words = f"{request.method} {request.path}: {error.reason}"
        return one(Status(code=error.status, reason=type(error).__name__, message=words), error.status)
    except Exception as error:
        logger.exception("request failed", extra={"path": request.path})
        return one(status_of(500, error), 500)


# ---- logs


def piece_of(log: Path, start: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(start)
            return file.read(PIECE)
    except FileNotFoundError:
        return b""


def start_of_tail(log: Path, lines: int | None) -> int:
    """Returns the position in the file at which the last lines begin."""
    if lines is None or not log.exists():
        return 0
    content = log.read_bytes()
    kept = content.splitlines(keepends=True)[-lines:] if lines else []
    return len(content) - sum(len(line) for line in kept)
