"""Answers `Init` and `Register` from the state of the job's workflow; the gateway stores no introductions.

What a gateway has learnt of a job is cached for a moment, since a client makes three calls in a row. A client that reaches
another gateway between two of its calls is refused as unknown, and begins again, as the contract demands.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from rekindle.errors import Unavailable
from rekindle.ids import ErrorTypes
from rekindle.model.attachment import Progress
from rekindle.model.dialogue import Receipt
from rekindle.model.state import Contact
from rekindle.model.trace import Trace
from rekindle.policy.modes.eligibility import RECOVERY_OFF
from workers.gateway.concurrency import Admission
from workers.gateway.job_workflows import SLOW, Jobs, Rejected

FRESH = 60.0
"""Seconds for which an answer of the job's workflow is cached."""

QUESTIONS = 32
"""Largest number of concurrent queries to jobs' workflows: clients of a gateway that died reconnect all at once."""

MAX_JOBS = 10_000
"""Number of jobs in the cache; the least recently named are dropped. Source: ClusterD's MaxServeJobs."""


@dataclass
class _Known:
    """Cached data of one job."""

    contact: Contact | None = None
    asked: float = float("-inf")
    listed: bool = False
    """True if the entry comes from the list of jobs, which does not contain the job's progress."""
    initialized: bool = False
    registered: bool = False
    progress: Progress | None = None
    """Last progress that this gateway received, or read from the job's workflow."""


class Introductions:
    def __init__(self, jobs: Jobs, patience: float, wanted: Collection[str]) -> None:
        """Args:
        patience: seconds that a client waits for its turn. wanted: jobs whose clients come first.
        """
        self._jobs = jobs
        self._questions = Admission(QUESTIONS, patience, wanted, SLOW)
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def learn(self) -> None:
        """Lists the jobs that train with one query when the gateway starts, so that returning clients cause no query each.

        The list may be slightly outdated: the job's workflow decides when the stream is attached.
        """
        now = asyncio.get_running_loop().time()
        for job_id in await self._jobs.training():
            known = self._of(job_id)
            known.contact, known.asked, known.listed = Contact(recovery_on=True, introduced=True), now, True

    async def complete(self, job_id: str) -> None:
        """Queries the job's workflow for what the list of jobs does not contain. Called when the job's stream is here.

        Raises:
            Rejected: there is no such job. Unavailable: Temporal did not answer.
        """
        if (known := self._known.get(job_id)) and known.listed:
            self.forget(job_id)
            await self._ask(job_id)

    async def initialize(self, job_id: str) -> Receipt:
        """Returns the answer to `Init`.

        Raises:
            Rejected: there is no such job, or nothing of it may be recovered. Unavailable: Temporal did not answer.
        """
        known, contact = await self._ask(job_id)
        if not contact.recovery_on:
            self.forget(job_id)  # so that a change by the owner takes effect at once
            raise Rejected(ErrorTypes.RECOVERY_OFF, RECOVERY_OFF)
        known.initialized = True
        return Receipt(info=f"job(uid={job_id}) init success")

    async def register(self, job_id: str) -> Receipt:
        """Returns the answer to `Register`.

        Raises:
            Rejected: there is no such job, or Init was left out. Unavailable: Temporal did not answer.
        """
        known, contact = await self._ask(job_id)
        if not (known.initialized or contact.introduced):
            raise Rejected(ErrorTypes.NOT_INITIALIZED, "Init comes before Register")
        known.registered = True
        return Receipt(info="register success")

    async def subscriber(self, job_id: str) -> Contact:
        """Returns what is known of the job for a client that subscribes.

        Raises:
            Rejected: there is no such job, or Register was left out. Unavailable: Temporal did not answer.
        """
        known, contact = await self._ask(job_id)
        if not (known.registered or contact.introduced):
            raise Rejected(ErrorTypes.NOT_REGISTERED, f"jobId={job_id} not registed")
        return contact

    async def trace(self, job_id: str) -> Trace | None:
        """Returns the tracing settings of a job; None: it has none, or the workflow does not answer."""
        try:
            async with self._questions.place(job_id):
                return (await self._jobs.contact(job_id)).trace
        except (Rejected, Unavailable):
            return None

    def forget(self, job_id: str) -> None:
        """Invalidates the cached answer, because the job's workflow contradicted it; the workflow is queried again."""
        if known := self._known.get(job_id):
            known.asked = float("-inf")

    def progress(self, job_id: str) -> Progress | None:
        known = self._known.get(job_id)
        return known.progress if known else None

    def progressed(self, job_id: str, progress: Progress) -> None:
        self._of(job_id).progress = progress

    async def _ask(self, job_id: str) -> tuple[_Known, Contact]:
        now = asyncio.get_running_loop().time()
        known = self._known.get(job_id)
        if known is None or known.contact is None or now - known.asked > FRESH:
            async with self._questions.place(job_id):
                contact = await self._jobs.contact(job_id)
            old = known or _Known()
            known = self._of(job_id)  # only for existing jobs
            known.contact, known.asked, known.listed = contact, now, False
            known.progress = contact.progress or old.progress
        assert known.contact
        return known, known.contact

    def _of(self, job_id: str) -> _Known:
        known = self._known.setdefault(job_id, _Known())
        self._known.move_to_end(job_id)
        if len(self._known) > MAX_JOBS:
            self._known.popitem(last=False)
        return known
