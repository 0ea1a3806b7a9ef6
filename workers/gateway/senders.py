"""Who may speak for a job: the pods of the job, known by their addresses. Asked by the gateway at each call that names a job."""

import asyncio
import ipaddress
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import unquote

from rekindle.errors import NotFound, Refused, RekindleError, Unavailable
from rekindle.settings import Settings

GAP = 1.0
"""Seconds between two look-ups of a job, whoever calls."""

PATIENCE = 5.0
"""Seconds that a stranger waits for its refusal. A kubelet tells the address of a new pod a moment after its processes have
started, some clients never repeat a refused Init, and others repeat a call without a pause."""

FRESH = 60.0
"""Seconds after which what is known of a job is looked up again, behind a call that need not wait for it: an address that a pod
has left may be another job's next."""

LOOKUPS = 16
"""Look-ups in flight: a gateway that starts is called by all jobs in one second."""

MAX_JOBS = 10_000
"""Jobs that are remembered, the last ones that were named. Source: ClusterD's MaxServeJobs."""

SAY_AGAIN = 60.0
"""Seconds between two lines of the log about one address and one job."""

Lookup = Callable[[str], Awaitable[Collection[str]]]

logger = logging.getLogger("gateway")


@dataclass
class _Known:
    """What is known of one job."""

    addresses: frozenset[str] = frozenset()
    asked: float = float("-inf")
    """When the last look-up began."""
    told: float = float("-inf")
    """When the last one that was answered began."""
    problem: str = "the cluster does not answer"
    looking: asyncio.Task[None] | None = None


class Senders:
    """Remembers the addresses of each job's pods. An address that is known needs no look-up, and no API server."""

    def __init__(self, lookup: Lookup, gap: float = GAP, patience: float = PATIENCE, fresh: float = FRESH) -> None:
        """Args:
        lookup: all addresses of a job's pods; NotFound when there is no such job.
        """
        self._lookup = lookup
        self._gap, self._patience, self._fresh = gap, patience, fresh
        self._jobs: OrderedDict[str, _Known] = OrderedDict()
        self._looking: set[asyncio.Task[None]] = set()
        self._few = asyncio.Semaphore(LOOKUPS)
        self._said: dict[tuple[str, str], float] = {}

    async def check(self, job_id: str, peer: str) -> None:
        """Returns when a pod of the job calls.

        Args:
            peer: as gRPC names it.

        Raises:
            Refused: somebody else calls. Unavailable: the cluster did not answer; try again.
        """
        address, job, now = address_of(peer), self._known(job_id), _now()
        if address in job.addresses:
            if now - job.told > self._fresh:
                self._look(job_id, job)
            return
        try:
            async with asyncio.timeout(self._patience):
                while address not in job.addresses:
                    await asyncio.shield(self._look(job_id, job))
        except TimeoutError:
            if job.told < now:
                raise Unavailable(f"jobId={job_id}: whether {address} is one of its pods is not known: {job.problem}") from None
            if self._may_say(job_id, address):
                logger.warning("refused: no pod of the job has this address", extra={"job": job_id, "address": address})
            raise Refused(f"jobId={job_id}: no pod of this job has the address {address}") from None

    async def close(self) -> None:
        looking = list(self._looking)
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)

    def _known(self, job_id: str) -> _Known:
        job = self._jobs.setdefault(job_id, _Known())
        self._jobs.move_to_end(job_id)
        if len(self._jobs) > MAX_JOBS:
            self._jobs.popitem(last=False)
        return job

    def _look(self, job_id: str, job: _Known) -> asyncio.Task[None]:
        """The next look-up of a job, which all share who wait for it."""
        if job.looking is None or job.looking.done():
            job.looking = asyncio.create_task(self._look_up(job_id, job))
            self._looking.add(job.looking)
            job.looking.add_done_callback(self._looking.discard)
        return job.looking

    async def _look_up(self, job_id: str, job: _Known) -> None:
        """What was known stays known when there is no answer."""
        await asyncio.sleep(job.asked + self._gap - _now())
        async with self._few:
            job.asked = asked = _now()
            try:
                found = await self._lookup(job_id)
            except NotFound:
                found = ()
            except RekindleError as error:
                job.problem = str(error)
                if self._may_say(job_id, ""):
                    logger.warning("the pods of a job cannot be looked up", extra={"job": job_id, "error": str(error)})
                return
        job.addresses, job.told = frozenset(map(_normal, found)), asked

    def _may_say(self, job_id: str, address: str) -> bool:
        now = _now()
        if now - self._said.get((job_id, address), float("-inf")) < SAY_AGAIN:
            return False
        if len(self._said) >= MAX_JOBS:
            self._said.clear()
        self._said[job_id, address] = now
        return True


def address_of(peer: str) -> str:
    """The bare address of a gRPC peer (`ipv4:10.0.0.1:5`, `ipv6:%5B::1%5D:5`, `unix:`), without port and scope."""
    family, _, rest = unquote(peer).partition(":")
    if family in ("ipv4", "ipv6"):
        return _normal(rest.rpartition(":")[0].strip("[]"))
    return peer


def _normal(address: str) -> str:
    """One spelling for each address; an IPv4 address that came by IPv6 is an IPv4 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def _now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def senders_of(settings: Settings) -> AsyncIterator[Senders | None]:
    """Who may speak on this cluster, until the block ends. None: all; the local cluster's pods share one address."""
    if settings.cluster == "local" or not settings.check_senders:
        yield None
        return

    from activities.clusters.api_server import Api  # over 2 s and 190 MB
    from activities.clusters.kubernetes.driver import KubernetesCluster

    async with Api(settings.kubeconfig) as api:
        senders = Senders(KubernetesCluster(api, settings).addresses)
        try:
            yield senders
        finally:
            await senders.close()
