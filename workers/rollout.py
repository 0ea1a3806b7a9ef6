"""Finds out whether a control worker is what its Deployment rolls out now. Used by `workers.versions` to decide who takes over.

An upgrade, `helm rollback` and `kubectl rollout undo` all end in the Deployment's latest revision, also where that has an older
version. The workers of such pods take over (docs/decisions/0116).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rekindle.errors import MALFORMED, ClusterError
from rekindle.settings import Settings

if TYPE_CHECKING:  # over 2 s and 190 MB, for Kubernetes only
    from activities.clusters.api_server import Api, Object

DEPLOYMENT = "rekindle-control"
REVISION = "deployment.kubernetes.io/revision"
"""Annotation that the Deployment's controller writes on the Deployment, and on the ReplicaSet of each revision."""

LIMIT = 5.0
"""Seconds for a look at the Deployment. Versions are cared for without it."""

logger = logging.getLogger("versions")


@dataclass(frozen=True)
class Rollout:
    """Revision of this worker's pod, and the one that its Deployment rolls out."""

    own: str
    latest: str

    @property
    def is_own(self) -> bool:
        return self.own == self.latest


LookAtRollout = Callable[[], Awaitable[Rollout | None]]
"""Function that reads the revisions. None: they are not known."""


async def unknown() -> Rollout | None:
    """Stands for the look of a worker that no Deployment has made."""
    return None


@asynccontextmanager
async def rollouts(settings: Settings) -> AsyncIterator[LookAtRollout]:
    """Yields the function that reads the revisions of this worker."""
    if not settings.pod_template_hash:
        yield unknown
        return
    from activities.clusters.api_server import Api

    async with Api(settings.kubeconfig) as api:
        yield _Revisions(api, settings).look


class _Revisions:
    def __init__(self, api: "Api", settings: Settings) -> None:
        apps = f"/apis/apps/v1/namespaces/{settings.namespace}"
        self._api = api
        self._paths = f"{apps}/deployments/{DEPLOYMENT}", f"{apps}/replicasets/{DEPLOYMENT}-{settings.pod_template_hash}"
        self._told = ""
        """Reason that was logged last. It is logged once, as it is asked for every few seconds."""

    async def look(self) -> Rollout | None:
        try:
            async with asyncio.timeout(LIMIT):
                latest, own = [_revision(await self._api.get(path)) for path in self._paths]
        except (ClusterError, TimeoutError, *MALFORMED) as error:
            self._tell(f"{type(error).__name__}: {error}")
            return None
        if not (latest and own):
            self._tell(f"no annotation {REVISION}")
            return None
        self._told = ""
        return Rollout(own=own, latest=latest)

    def _tell(self, reason: str) -> None:
        if reason != self._told:
            self._told = reason
            logger.warning("revision of the Deployment not read", extra={"reason": reason})


def _revision(thing: "Object") -> str:
    return str((thing["metadata"].get("annotations") or {}).get(REVISION) or "")
