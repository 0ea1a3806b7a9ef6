"""Finds the job of a pod whose template could not name it, as the UID of a job is not known before the job is created.

Used by `caller_auth.py`, for tokens that the API server has confirmed.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from rekindle.errors import NotFound, Refused
from rekindle.model.senders import Claims

MAX_PODS = 10_000
"""Number of pods in the cache. Source: ClusterD's MaxServeJobs."""

FRESH = 60.0
"""Seconds for which a job that was found is cached. A manager asks on each of its connections."""

FRESH_REFUSAL = 2.0
"""Seconds for which a refusal is cached: the client calls every second, and its job may be created after the pod."""


class Directory(Protocol):
    async def job_of_pod(self, namespace: str, name: str, uid: str) -> str:
        """Returns the UID of the pod's job.

        Raises:
            NotFound: the pod does not exist. Refused: it belongs to no job, or its job cannot be determined.
        """
        ...


@dataclass(frozen=True)
class _Found:
    until: float
    job_id: str = ""
    problem: str = ""


class JobsOfPods:
    def __init__(self, cluster: Directory) -> None:
        self._cluster = cluster
        self._found: OrderedDict[str, _Found] = OrderedDict()
        """Cached results, keyed by the pod's UID."""

    async def of(self, claims: Claims) -> str:
        """Returns the UID of the job of a pod.

        Raises:
            Refused: it has none. Unavailable: the cluster did not answer.
        """
        found = self._found.get(claims.pod)
        if found is None or found.until < _now():
            found = await self._look(claims)
            self._found[claims.pod] = found
            self._found.move_to_end(claims.pod)
            if len(self._found) > MAX_PODS:
                self._found.popitem(last=False)
        if found.problem:
            raise Refused(found.problem)
        return found.job_id

    async def _look(self, claims: Claims) -> _Found:
        try:
            job_id = await self._cluster.job_of_pod(claims.namespace, claims.name, claims.pod)
        except (NotFound, Refused) as error:
            return _Found(_now() + FRESH_REFUSAL, problem=str(error))
        return _Found(_now() + FRESH, job_id)


def _now() -> float:
    return asyncio.get_running_loop().time()
