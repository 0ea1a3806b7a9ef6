"""Writes what MindCluster's contract says of a job, and asks the platform that decides about it."""

import asyncio
from datetime import timedelta

from temporalio import activity

from activities.clusters.port import Cluster, Contract
from activities.error_mapping import translating_errors
from activities.heartbeat import heartbeating
from rekindle.errors import BadInput, NotFound
from rekindle.model.contract import PlatformAnswer, PlatformRequest, WordsRequest, WordsWritten
from rekindle.model.keys import PLATFORM_CONFIRM, PLATFORM_RESULT
from rekindle.policy.modes import platform_answers

LOOKS_EVERY = 1.0
"""Seconds between two looks at the annotations of a job whose platform is to answer."""

NO_PLATFORM = PlatformAnswer(problem="this cluster has no platform")


class ContractActivities:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @activity.defn
    async def write_words(self, request: WordsRequest) -> WordsWritten:
        """Writes what the contract says of a job now. A job that is gone has no words."""
        contract = self._cluster.contract
        if contract is None:
            return WordsWritten()
        with translating_errors():
            async with heartbeating():
                try:
                    return WordsWritten(restarts=await contract.ensure_words(request.job_id, request.words))
                except NotFound:
                    return WordsWritten()

    @activity.defn
    async def ask_platform(self, request: PlatformRequest) -> PlatformAnswer:
        """Returns the platform's answer, as soon as it is there, or that there is none within the limit."""
        contract = self._cluster.contract
        if contract is None:
            return NO_PLATFORM
        with translating_errors():
            async with heartbeating():
                if problem := await self._confirmed(contract, request):
                    return PlatformAnswer(problem=problem)
                value = await _answer(contract, request.job_id, request.key, request.within)
        if value is None:
            return PlatformAnswer()
        if request.key != PLATFORM_RESULT:
            return PlatformAnswer(answered=True, value=value)
        try:
            return PlatformAnswer(answered=True, value=value, faults=platform_answers.read(value))
        except BadInput as error:
            return PlatformAnswer(answered=True, value=value, problem=f"{PLATFORM_RESULT}: {error}")

    @staticmethod
    async def _confirmed(contract: Contract, request: PlatformRequest) -> str:
        """Writes the faults that the platform has to confirm. Returns why that is not possible; empty: it was done."""
        if not request.confirm:
            return ""
        ours = platform_answers.written(request.confirm)
        before = (await contract.said_by_platform(request.job_id)).get(PLATFORM_CONFIRM, "")
        if before not in ("", ours):
            return f"it has not cleared {PLATFORM_CONFIRM} of an earlier recovery: {before}"
        if not before:
            await contract.tell_platform(request.job_id, {PLATFORM_CONFIRM: ours})
        return ""


async def _answer(contract: Contract, job_id: str, key: str, within: timedelta) -> str | None:
    """Returns the value of an annotation when the platform has written it. None: it has not done so within the limit."""
    until = asyncio.get_running_loop().time() + within.total_seconds()
    while True:
        said = await contract.said_by_platform(job_id)
        if said.get(key) or (key in said and key == PLATFORM_RESULT):  # a result may be empty
            return said[key]
        if asyncio.get_running_loop().time() + LOOKS_EVERY > until:
            return None
        await asyncio.sleep(LOOKS_EVERY)
