"""Authenticates callers: only the pods of a job may speak for it. The gateway checks each call that names a job.

Pods of our training side are identified by their tokens, which `tokens.py` has confirmed. Other clients send none and are
identified by their addresses, which nothing proves.
"""

import asyncio
import ipaddress
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import unquote

from rekindle.errors import NotFound, Refused, RekindleError, Unavailable
from rekindle.model.cluster import ClusterEvent
from rekindle.model.senders import Caller, Problem, Proof, Speakers
from rekindle.model.training_side import TrainingSide
from rekindle.policy.caller_proof import WANTED, caller_of, problem_of
from rekindle.settings import Settings
from workers.clusters import row_of
from workers.gateway.concurrency import Admission
from workers.gateway.jobs_of_pods import Directory as PodDirectory
from workers.gateway.jobs_of_pods import JobsOfPods
from workers.gateway.tokens import Tokens

LOOKUPS = 16
"""Largest number of concurrent look-ups: when a gateway starts, all jobs call it within a second."""

MAX_JOBS = 10_000
"""Number of jobs in the cache, and as many ids without a known job, since anybody can invent those. The least recently named
are dropped. Source: ClusterD's MaxServeJobs."""

REST = 4.0
"""Pause between two look-ups of a job, as a multiple of the time that the last one took: large jobs have megabytes of pods."""

SAY_AGAIN = 60.0
"""Seconds between two log messages about the same address and job."""

TELL_AGAIN = 3600.0
"""Seconds between two events about the same job."""

Rules = Mapping[TrainingSide, Proof]


class Directory(PodDirectory, Protocol):
    """Queries that the gateway sends to the cluster."""

    async def locate(self, job_id: str) -> None:
        """Waits, together with other callers, until it is known where the job is. Raises NotFound if it is nowhere."""
        ...

    async def speakers(self, job_id: str) -> Speakers:
        """Returns the pods that may speak for the job. Raises NotFound if there is no such job."""
        ...

    async def record(self, job_id: str, event: ClusterEvent) -> None: ...


logger = logging.getLogger("gateway")


@dataclass(frozen=True)
class Times:
    """Time limits in seconds."""

    gap: float = 1.0
    """Shortest time between two look-ups of a job, regardless of who calls."""

    patience: float = 5.0
    """Time that an unknown caller waits until it is refused. A kubelet reports the address of a new pod a moment after its
    processes have started. Some clients never repeat a refused Init, and others repeat a call without a pause."""

    fresh: float = 60.0
    """Time after which the data of a job is looked up again, in the background of a call. An address that a pod has released may
    next belong to another job."""


USUAL = Times()


@dataclass
class _Known:
    """Cached data of one job."""

    speakers: Speakers | None = None
    asked: float = float("-inf")
    """Time at which the last look-up began."""
    took: float = 0.0
    """Duration of the last look-up in seconds."""
    told: float = float("-inf")
    """Time at which the last look-up that was answered began."""
    event: float = float("-inf")
    """Time of the last event on the job that a caller was refused."""
    problem: str = "the cluster does not answer"
    looking: asyncio.Task[None] | None = None


class Senders:
    """Caches the pods of each job. A known caller needs no look-up and no API server."""

    def __init__(self, cluster: Directory, tokens: Tokens, rules: Rules, times: Times = USUAL) -> None:
        self._cluster, self._tokens, self._rules = cluster, tokens, rules
        self._jobs_of_pods = JobsOfPods(cluster)
        self._times = times
        self._jobs: OrderedDict[str, _Known] = OrderedDict()
        self._strange: OrderedDict[str, _Known] = OrderedDict()
        """Ids for which no job is known, or not yet."""
        self._work: set[asyncio.Task[None]] = set()
        self._few = Admission(LOOKUPS, times.patience, ())
        """Limit of concurrent look-ups, with turns by calling address: an address that names many jobs does not delay the
        others."""
        self._said: dict[tuple[str, str], float] = {}
        self._held: Counter[tuple[str, str]] = Counter()
        """Number of open streams of admitted callers, keyed by job and connection."""

    async def check(self, job_id: str, peer: str, token: str = "") -> None:
        """Returns if the caller is a pod of the job.

        Args:
            peer: as gRPC names it.

        Raises:
            Refused: the caller is no pod of the job. Unavailable: the cluster did not answer; try again.
        """
        caller = caller_of(address_of(peer), token)
        try:
            job = await self._listed(job_id, caller)
            if job.speakers and caller.claims and self._proof(job.speakers) is Proof.TOKEN:
                await self._tokens.check(token, caller.claims, (job_id, caller.address))
        except Refused as error:
            if self._may_say(job_id, caller.address):
                said = {"job": job_id, "address": caller.address, "reason": str(error)}
                logger.warning("caller refused, not a pod of the job", extra=said)
            self._tell(job_id, caller.address, str(error))
            raise Refused(f"jobId={job_id}: {error}") from error
        except Unavailable as error:
            if not self._held[job_id, peer]:  # an admitted stream proves its connection, whatever the token
                raise Unavailable(f"jobId={job_id}: whether {caller.address} is one of its pods is not known: {error}") from error

    async def job_of(self, peer: str, token: str) -> str:
        """Returns the UID of the job of a calling pod that does not know it.

        Raises:
            Refused: the token is invalid, or its pod is of no job. Unavailable: the cluster did not answer; try again.
        """
        caller = caller_of(address_of(peer), token)
        if caller.claims is None:
            raise Refused(
                f"jobId: missing, and {caller.wrong}: accepted is the UID of the job (MINDX_TASK_ID), or a token; {WANTED}"
            )
        await self._tokens.check(token, caller.claims, ("", caller.address))
        return await self._jobs_of_pods.of(caller.claims)

    def _tell(self, job_id: str, address: str, reason: str) -> None:
        """Records an event on the job, since its owner reads events and not our log. Calls from foreign addresses are not
        recorded."""
        job = self._known(job_id)
        is_own = job.speakers is not None and address in job.speakers.addresses
        if not is_own or _now() - job.event < TELL_AGAIN:
            return
        job.event = _now()
        message = f"what calls from {address}, the address of a pod of this job, may not speak for it: {reason}"
        event = ClusterEvent(name=job_id, kind="Job", reason="SenderRefused", message=message, type="Warning")
        self._keep(asyncio.create_task(self._record(job_id, event)))

    async def _record(self, job_id: str, event: ClusterEvent) -> None:
        try:
            await self._cluster.record(job_id, event)
        except RekindleError as error:
            logger.warning("event about a refused caller not recorded", extra={"job": job_id, "error": str(error)})

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    @contextmanager
    def holding(self, job_id: str, peer: str) -> Iterator[None]:
        """Counts the stream of an admitted caller until the block ends."""
        self._held[job_id, peer] += 1
        try:
            yield
        finally:
            self._held[job_id, peer] -= 1
            if not self._held[job_id, peer]:
                del self._held[job_id, peer]

    async def _listed(self, job_id: str, caller: Caller) -> _Known:
        """Returns the job if the caller may be one of its pods. Raises Refused or Unavailable otherwise."""
        job, now = self._known(job_id), _now()
        if self._problem(job, caller) is None:
            if now - job.told > self._times.fresh:
                self._look(job_id, job, caller.address)
            return job
        with suppress(TimeoutError):
            async with asyncio.timeout(self._times.patience):
                while (problem := self._problem(job, caller)) and (problem.may_pass or job.told < self._since(problem, now)):
                    await asyncio.shield(self._look(job_id, job, caller.address))
        problem = self._problem(job, caller)
        if problem and job.told < self._since(problem, now):
            raise Unavailable(job.problem)
        if problem:
            raise Refused(problem.words)
        return job

    def _since(self, problem: Problem, now: float) -> float:
        """Returns the earliest start of a look-up on which a refusal may be based.

        For what the caller itself lacks an older look-up is enough: a manager without a token calls every second, for ever.
        """
        return now if problem.may_pass else now - self._times.fresh

    def _problem(self, job: _Known, caller: Caller) -> Problem | None:
        return problem_of(caller, job.speakers, self._proof(job.speakers))

    def _proof(self, speakers: Speakers | None) -> Proof:
        return self._rules[speakers.training_side] if speakers else Proof.ADDRESS

    async def close(self) -> None:
        work = list(self._work)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    def _known(self, job_id: str) -> _Known:
        table = self._jobs if job_id in self._jobs else self._strange
        job = table.get(job_id) or _Known()
        _put(table, job_id, job)
        return job

    def _look(self, job_id: str, job: _Known, address: str) -> asyncio.Task[None]:
        """Returns the next look-up of a job; all callers that wait for it share one task."""
        if job.looking is None or job.looking.done():
            job.looking = asyncio.create_task(self._look_up(job_id, job, address))
            self._keep(job.looking)
        return job.looking

    async def _look_up(self, job_id: str, job: _Known, address: str) -> None:
        """Looks up the pods of a job. If there is no answer, the cached data stays."""
        await asyncio.sleep(job.asked + max(self._times.gap, REST * job.took) - _now())
        job.asked = asked = _now()
        try:
            await self._cluster.locate(job_id)
            async with self._few.place(address):
                job.asked = began = _now()  # a wait before it is no part of the pause after it
                found = await self._cluster.speakers(job_id)
                job.took = _now() - began
        except NotFound:
            job.speakers, job.told = None, asked
            self._jobs.pop(job_id, None)
        except RekindleError as error:
            job.problem = str(error)
            if self._may_say(job_id, ""):
                logger.warning("pods of a job not listed", extra={"job": job_id, "error": str(error)})
        else:
            job.speakers, job.told = replace(found, addresses=frozenset(map(_normal, found.addresses))), asked
            self._strange.pop(job_id, None)
            _put(self._jobs, job_id, job)

    def _may_say(self, job_id: str, address: str) -> bool:
        now = _now()
        if now - self._said.get((job_id, address), float("-inf")) < SAY_AGAIN:
            return False
        if len(self._said) >= MAX_JOBS:
            self._said.clear()
        self._said[job_id, address] = now
        return True


def _put(table: OrderedDict[str, _Known], job_id: str, job: _Known) -> None:
    """Adds an entry to a table and drops the least recently named one if the table is full."""
    table[job_id] = job
    table.move_to_end(job_id)
    if len(table) > MAX_JOBS:
        table.popitem(last=False)


def address_of(peer: str) -> str:
    """Returns the bare address of a gRPC peer (`ipv4:10.0.0.1:5`, `ipv6:%5B::1%5D:5`, `unix:`), without port and scope."""
    family, _, rest = unquote(peer).partition(":")
    if family in ("ipv4", "ipv6"):
        return _normal(rest.rpartition(":")[0].strip("[]"))
    return peer


def _normal(address: str) -> str:
    """Returns the canonical spelling of an address; an IPv4 address mapped into IPv6 becomes an IPv4 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def _now() -> float:
    return asyncio.get_running_loop().time()


def rules_of(settings: Settings) -> Rules:
    return {TrainingSide(side): Proof(word) for side, word in settings.proofs.items()}


IN_WORDS = {
    Proof.TOKEN: "by the token of its pod, which the API server confirms",
    Proof.ADDRESS: "by its address: plain text, which nothing proves",
    Proof.ANYBODY: "not at all: anybody may speak for any job",
    Proof.NOBODY: "never: no such job is served",
}


@asynccontextmanager
async def senders_of(settings: Settings) -> AsyncIterator[Senders | None]:
    """Yields the checker of callers for this cluster; None: every caller is accepted."""
    rules, row = rules_of(settings), row_of(settings)
    if row.callers is None:
        yield None
        return
    for side, proof in rules.items():
        logger.info("caller identified", extra={"training_side": side.value, "proof": IN_WORDS[proof]})
    if set(rules.values()) == {Proof.ANYBODY}:
        yield None
        return
    async with AsyncExitStack() as ends:
        cluster = await row.callers(settings, ends)
        senders = Senders(cluster, Tokens(cluster.pod_of_token), rules)
        ends.push_async_callback(senders.close)
        yield senders
