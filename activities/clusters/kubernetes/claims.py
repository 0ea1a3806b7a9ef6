"""Claims of installations to recover a job.

The job's annotation names the Lease of its installation, which shows whether the installation is alive.

Used by the watch, which claims jobs; by the driver, which checks the claim before it changes a job; and by the control worker,
which renews the Lease.
"""

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from typing import NoReturn

from activities.clusters.api_server import Api, Object, lean
from activities.clusters.kubernetes.kind import Workload
from rekindle.errors import ClusterError, Conflict, Forbidden, Invalid, NotFound
from rekindle.model import keys
from rekindle.model.bounds import cut

LASTS = 60
"""Seconds after its last renewal in which an installation counts as alive."""

RENEWED = 10.0
"""Seconds between two renewals."""

TRIES = 3
"""Number of tries to claim a job that is changed by others meanwhile."""

MOST_HOLDERS = 100
"""Leases that are read in one round. Tenants may write any name on their jobs."""

HOLDER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/rekindle-[0-9a-f]{12}")

Identify = Callable[[], Awaitable[str]]

logger = logging.getLogger("cluster")


class Claims:
    def __init__(self, api: Api, namespace: str, identify: Identify, lasts: float = LASTS) -> None:
        """Args:
        namespace: of this installation, where its Lease is.
        identify: returns the Temporal namespace of the jobs' workflows; waits until that is known.
        lasts: seconds without a renewal after which another installation counts as gone.
        """
        self._api, self._namespace, self._identify, self._lasts = api, namespace, identify, lasts
        self._identity = ""
        self._renewals: dict[str, tuple[str, float]] = {}
        """Last renewal of each holder, and the time at which it was first seen by our own clock."""
        self._looked: dict[str, float] = {}
        """Time at which each holder was last checked, or first named. The one that waits longest is checked next."""
        self._told = ""

    async def own(self) -> str:
        """Names this installation in annotations: the namespace and the name of its Lease."""
        if not self._identity:
            self._identity = await self._identify()
        return f"{self._namespace}/{self._lease}"

    @property
    def _lease(self) -> str:
        return f"rekindle-{hashlib.sha256(self._identity.encode()).hexdigest()[:12]}"

    def others(self, job: Workload) -> str:
        """Returns the other installation that recovers the job; empty: this one does, or none yet.

        `own` must have been called before.
        """
        holder = job.annotation(keys.RECOVERED_BY)
        return "" if holder.rpartition("/")[2] == self._lease else holder

    async def are_others(self, job: Workload) -> bool:
        await self.own()
        return bool(self.others(job))

    # ---- jobs

    async def claim(self, job: Workload, *, over: bool = False) -> Workload:
        """Claims the job and returns its current state. A job that another installation has claimed first stays with it.

        Args:
            over: the installation that it names is gone.
        """
        own, before = await self.own(), job.annotation(keys.RECOVERED_BY)
        if not job.kind.has_object:  # the control worker claims its pods, as it may change them
            return job
        for _ in range(TRIES):
            if (holder := job.annotation(keys.RECOVERED_BY)) and not (over and holder == before):
                return job
            try:
                version = {"resourceVersion": job.metadata["resourceVersion"]}
                return Workload(job.kind, lean(await self._write(job, own, version)))
            except Conflict:
                with suppress(NotFound):
                    job = Workload(job.kind, lean(await self._api.get(job.path)))
            except NotFound:
                return job
            except (Forbidden, Invalid) as error:
                self._tell(str(error))
                return job
        return job

    async def ensure(self, job: Workload) -> None:
        """Returns when the job is ours.

        Raises:
            Forbidden: another installation recovers it.
        """
        own, has_object = await self.own(), job.kind.has_object
        for tries_left in reversed(range(TRIES)):
            if others := self.others(job):
                raise Forbidden(elsewhere(others))
            if job.annotation(keys.RECOVERED_BY):
                return
            try:
                await self._write(job, own, {"resourceVersion": job.metadata["resourceVersion"]} if has_object else {})
            except Conflict:
                if not (tries_left and has_object):
                    raise
                job = Workload(job.kind, lean(await self._api.get(job.path)))
            else:
                return

    async def _write(self, job: Workload, own: str, version: Object) -> Object:
        path, uid = job.kind.written_to(job)[-1]
        same = {**({"uid": uid} if uid else {}), **version}
        return await self._api.patch(path, {"metadata": {**same, "annotations": {keys.RECOVERED_BY: own}}})

    # ---- other installations

    async def over(self, holders: Collection[str]) -> set[str]:
        """Returns the installations that have not renewed their Lease for long, or have none."""
        self._renewals = {holder: seen for holder, seen in self._renewals.items() if holder in holders}
        self._looked = {holder: since for holder, since in self._looked.items() if holder in holders}
        found = {holder for holder in holders if not HOLDER.fullmatch(holder)}
        for holder in sorted(set(holders) - found):
            self._looked.setdefault(holder, time.monotonic())
        for holder in sorted(self._looked, key=lambda one: self._looked[one])[:MOST_HOLDERS]:
            self._looked[holder] = time.monotonic()
            if await self._is_over(holder):
                found.add(holder)
        return found

    async def _is_over(self, holder: str) -> bool:
        """Returns whether a holder is gone.

        As clocks of machines differ, the time without an observed renewal counts, not the time that is written in the Lease.
        """
        namespace, _, name = holder.partition("/")
        try:
            renewed = str((await self._api.get(_lease(namespace, name)))["spec"].get("renewTime"))
        except NotFound:
            return True
        except Forbidden as error:
            self._tell(str(error))
            return False
        now = time.monotonic()
        if self._renewals.get(holder, ("", 0.0))[0] != renewed:
            self._renewals[holder] = renewed, now
        return now - self._renewals[holder][1] >= self._lasts

    # ---- our own life

    async def keep(self) -> NoReturn:
        """Renews our Lease until it is cancelled."""
        await self.own()
        while True:
            try:
                await self.renew()
            except ClusterError as error:
                self._tell(str(error))
            await asyncio.sleep(RENEWED)

    async def renew(self) -> None:
        """Creates or renews our Lease."""
        await self.own()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": cut(self._identity, 200), "leaseDurationSeconds": LASTS, "renewTime": now}
        try:
            await self._api.patch(_lease(self._namespace, self._lease), {"spec": spec})
        except NotFound:
            labels = {"app.kubernetes.io/part-of": "rekindle"}
            body = {"metadata": {"name": self._lease, "labels": labels}, "spec": spec}
            with suppress(Conflict):
                await self._api.create(_lease(self._namespace), body)

    def _tell(self, why: str) -> None:
        if why != self._told:
            self._told = why
            logger.warning("claims not restored", extra={"error": why})


def elsewhere(holder: str) -> str:
    """Describes which installation recovers a job, and what to do about it."""
    return (
        f"metadata.annotations.{keys.RECOVERED_BY}: another installation recovers this job, of which {cut(holder, 80)} is the "
        f"Lease; this one does so when that Lease is not renewed for {LASTS} s, or when the annotation is removed"
    )


def _lease(namespace: str, name: str = "") -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases" + (f"/{name}" if name else "")
