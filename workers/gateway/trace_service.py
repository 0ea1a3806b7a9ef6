"""Service `TrainingDataTrace` of the wire contract: platforms configure what a job's ranks measure of themselves.

The job's workflow keeps the switch, and sends it on the stream on which the job's manager waits for it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
from temporalio.client import Client

from rekindle.client import Rekindle
from rekindle.errors import BadInput, Unavailable
from rekindle.ids import Updates
from rekindle.model.state import JobState
from rekindle.model.trace import Trace
from rekindle_wire import profiling_pb2 as wire
from rekindle_wire import profiling_pb2_grpc
from workers.gateway.access import Context
from workers.gateway.job_workflows import Jobs, Rejected
from workers.gateway.messages import SWITCHES, switched_on, switches
from workers.gateway.platforms import Platforms
from workers.gateway.registration_cache import Introductions
from workers.gateway.secondary_streams import Side, SideStreams

DONE, INVALID, UNKNOWN, REFUSED = 200, 300, 404, 500

LONGEST_NAME = 253

Answer = TypeVar("Answer", wire.DataTypeRes, wire.DataStatusRes)

logger = logging.getLogger("gateway")


class NotFound(Exception):
    """The job does not exist, or its tracing was never switched."""


class TraceService(profiling_pb2_grpc.TrainingDataTraceServicer):
    def __init__(
        self, client: Client, jobs: Jobs, introductions: Introductions, sides: SideStreams, platforms: Platforms
    ) -> None:
        self._rekindle, self._jobs, self._introductions = Rekindle(client), jobs, introductions
        self._sides, self._platforms = sides, platforms

    async def ModifyTrainingDataTraceSwitch(self, request: wire.DataTypeReq, context: Context) -> wire.DataTypeRes:
        async def modified() -> wire.DataTypeRes:
            trace = _read(request)
            state = await self._job(request.jobNsName)
            await self._jobs.ask(state.job.id, Updates.TRACE, trace)
            logger.info("tracing switched", extra={"job": state.job.id, "on": sorted(switched_on(trace))})
            return wire.DataTypeRes(message="successfully changed profiling marker enable status", code=DONE)

        return await self._answered(context, modified, wire.DataTypeRes)

    async def GetTrainingDataTraceSwitch(self, request: wire.DataStatusReq, context: Context) -> wire.DataStatusRes:
        async def found() -> wire.DataStatusRes:
            state = await self._job(request.jobNsName)
            if state.trace is None:
                raise NotFound(f"tracing was never switched for job {request.jobNsName}")
            return switches(state.trace, f"successfully get the status of job[{request.jobNsName}]")

        return await self._answered(context, found, wire.DataStatusRes)

    async def SubscribeDataTraceSwitch(self, request: wire.ProfilingClientInfo, context: Context) -> None:  # type: ignore[override]
        """Serves the stream of the job's manager, which receives the current tracing settings, if any, and each change."""

        async def now() -> wire.DataStatusRes | None:
            trace = await self._introductions.trace(request.jobId)
            return switches(trace) if trace else None

        await self._sides.hold(context, request.jobId, Side.DATA_TRACE, now)

    async def _answered(self, context: Context, work: Callable[[], Awaitable[Answer]], kind: type[Answer]) -> Answer:
        await self._platforms.admit(context)
        try:
            return await work()
        except BadInput as error:
            return kind(message=str(error), code=INVALID)
        except NotFound as error:
            return kind(message=str(error), code=UNKNOWN)
        except Rejected as error:
            return kind(message=str(error), code=REFUSED)
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise

    async def _job(self, named: str) -> JobState:
        """Returns the state of a job that lives, by `namespace/name`.

        Raises:
            BadInput: the name is malformed.
            NotFound: no job of this namespace and name lives.
            Unavailable: a job that does not answer may be it.
        """
        namespace, _, name = named.partition("/")
        if not namespace or not name or "/" in name or len(named) > 2 * LONGEST_NAME:
            raise BadInput(f"jobNsName: {named[:80]!r} is not accepted: namespace/name, such as default/gpt")
        rows = [row for row in await self._rekindle.jobs(name=name) if row.name == name]  # of an odd name it lists all
        asking = [asyncio.create_task(self._state(row.id)) for row in rows]  # one that does not answer keeps no other waiting
        silent: Unavailable | None = None
        try:
            for answer in asyncio.as_completed(asking):
                state = await answer
                if isinstance(state, Unavailable):
                    silent = state
                elif state and (state.job.namespace, state.job.name) == (namespace, name) and not state.ended:
                    return state
        finally:
            for task in asking:
                task.cancel()
        if silent:
            raise silent
        raise NotFound(f"no job {named} is registered")

    async def _state(self, job_id: str) -> JobState | Unavailable | None:
        """State of a job, or why it is not known; None: there is no such job any more."""
        try:
            return (await self._jobs.status(job_id)).state
        except Unavailable as error:
            return error
        except Rejected:
            return None


def _read(request: wire.DataTypeReq) -> Trace:
    if not request.HasField("profilingSwitch"):
        raise BadInput(f"profilingSwitch: missing, accepted are {', '.join(SWITCHES)}, each on or off")
    said = {field: getattr(request.profilingSwitch, field) for field in SWITCHES}
    if wrong := next((field for field, word in said.items() if word not in ("on", "off", "")), None):
        raise BadInput(f"profilingSwitch.{wrong}: {said[wrong][:40]!r} is not accepted: on or off")
    return Trace.model_validate({name: said[field] == "on" for field, name in SWITCHES.items()})
