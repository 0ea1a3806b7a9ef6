"""Shows on the Deployment or StatefulSet of a process whether it serves: by the condition `Serving`, and by an event if not.

Kubernetes itself shows neither the body of a probe nor the log of a process that waits. The controller of a StatefulSet removes
conditions that it does not know, so they are written again at intervals.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, NoReturn

from rekindle.errors import MALFORMED, NotFound, RekindleError
from rekindle.model.bounds import cut
from rekindle.model.cluster import ClusterEvent
from rekindle.model.examined import Problem
from rekindle.settings import Settings

if TYPE_CHECKING:  # over 2 s and 190 MB, for Kubernetes only
    from activities.clusters.api_server import Api

CONDITION = "Serving"

SERVES, ENDED = "Serves", "NotStarted"
"""Reasons of the condition: nothing is wrong, and an error without a reason of its own."""

EVERY = 15.0
"""Seconds between two looks at a process that runs."""

HELD = 60.0
"""Seconds for which pods that serve leave alone what another pod said. It says so again at each look, while it lives."""

TIME = "%Y-%m-%dT%H:%M:%SZ"

LIMIT = 5.0
"""Seconds for telling. A process that ends does not wait for longer."""

AGAIN = 300.0
"""Seconds in which a reason leads to one event only. A service that comes and goes would fill the list of events."""

LONGEST = 1_000
"""Bytes of a message. An event has at most 1,024 characters."""

Look = Callable[[], Awaitable[Problem | None]]
"""Function that returns why the process does not serve; None: it does."""

logger = logging.getLogger("process")


class OwnWorkload:
    """Workload of this process. Without an API server, and where there is no such workload, nothing is shown."""

    def __init__(self, api: "Api | None", namespace: str, process: str) -> None:
        """Args:
        namespace: of the installation.
        process: name of the process, such as `control`.
        """
        self._api, self._namespace, self._process = api, namespace, process
        self._shown: str | None = None
        """Reason that was shown last. None: nothing was."""
        self._told: dict[str, float] = {}
        """Time of the last event of each reason."""
        self._failure = ""
        """Reason for which nothing could be shown, as it was logged."""
        self._heard = ("", -inf)
        """Condition that another pod wrote last, and the time at which this pod saw it first. Clocks of nodes may differ."""

    @asynccontextmanager
    async def explaining(self) -> AsyncIterator[None]:
        """Shows the error with which the block ends, as far as it is one that a user can fix."""
        try:
            yield
        except RekindleError as error:
            await self.show(Problem(reason=getattr(error, "reason", "") or ENDED, words=str(error)))
            raise

    async def keep(self, look: Look) -> NoReturn:
        """Shows the state of the process again and again, until it is cancelled."""
        while True:
            await self.show(await look())
            await asyncio.sleep(EVERY)

    async def show(self, problem: Problem | None) -> None:
        """Shows why the process does not serve; None: it does. A failure to show it is logged, and no reason to end."""
        if self._api is None:
            return
        try:
            async with asyncio.timeout(LIMIT):
                await self._show(self._api, problem)
            self._failure = ""
        except NotFound as error:
            logger.debug("own workload not found", extra={"reason": str(error)})
        except (TimeoutError, RekindleError, *MALFORMED) as error:
            failure = f"{type(error).__name__}: {error}"
            if failure != self._failure:  # it is tried every few seconds
                logger.warning("condition not written", extra={"error": failure})
            self._failure = failure

    @property
    def _pod(self) -> str:
        """Beginning of the messages of this pod."""
        return f"{os.environ.get('HOSTNAME', self._process)}: "

    def _is_said(self, workload: dict[str, Any]) -> bool:
        """Returns whether nothing is to be written by a pod that serves: it is said, or another pod does not serve."""
        conditions = (workload.get("status") or {}).get("conditions") or ()
        there: dict[str, Any] = next((one for one in conditions if one["type"] == CONDITION), {})
        if there.get("status") != "False":
            return bool(there)
        if not there.get("lastTransitionTime") or str(there.get("message")).startswith(self._pod):
            return False
        said, now = f"{there['lastTransitionTime']} {there['message']}", time.monotonic()
        if said != self._heard[0]:
            self._heard = said, now
        return now - self._heard[1] < HELD

    async def _show(self, api: "Api", problem: Problem | None) -> None:
        from activities.clusters.kubernetes.events import About, record
        from activities.clusters.kubernetes.rights import workload_of

        reason = problem.reason if problem else SERVES
        path = f"/apis/apps/v1/namespaces/{self._namespace}/{workload_of(self._process)}/rekindle-{self._process}/status"
        if problem is None and self._is_said(await api.patch_items(path, {})):  # a read: the account may patch the status only
            self._shown = reason
            return
        message = cut(f"{self._pod}{problem}", LONGEST) if problem else "all pods serve"
        condition: dict[str, Any] = {"type": CONDITION, "status": "False" if problem else "True"}
        condition |= {"reason": reason, "message": message, "lastTransitionTime": datetime.now(UTC).strftime(TIME)}
        thing = await api.patch_items(path, {"status": {"conditions": [condition]}})
        if problem and reason != self._shown and time.monotonic() - self._told.get(reason, -inf) >= AGAIN:
            name, uid = thing["metadata"]["name"], thing["metadata"]["uid"]
            about = About(thing["kind"], thing["apiVersion"], self._namespace, name, uid, thing["kind"])
            event = ClusterEvent(name=name, kind=thing["kind"], reason=reason, message=message, type="Warning")
            await record(api, about, event)
            self._told[reason] = time.monotonic()
        self._shown = reason


@asynccontextmanager
async def own_workload(settings: Settings, process: str) -> AsyncIterator[OwnWorkload]:
    """Yields the workload of a process."""
    if settings.cluster != "kubernetes":
        yield OwnWorkload(None, settings.namespace, process)
        return
    from activities.clusters.api_server import Api

    async with Api(settings.kubeconfig) as api:
        yield OwnWorkload(api, settings.namespace, process)


def check_of(look: Look) -> Callable[[], Awaitable[str]]:
    """Returns the same look as a check of readiness."""

    async def check() -> str:
        return str(await look() or "")

    return check
