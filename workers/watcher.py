"""The watcher: tells jobs' workflows what the cluster shows. `python -P -m workers.watcher`, one for each cluster.

Registers jobs, tells faults once an episode, and ends what ended. Every answer follows from the world as it is: it is listed
again whenever a watch breaks and once a minute, and nothing is lost while Temporal, the cluster or the watcher itself is away.
"""

import asyncio
import logging
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Protocol

from activities.cluster import Cluster, Snapshot
from rekindle.errors import BadInput, ClusterError, ClusterUnavailable, Refused, Unavailable, WatchExpired
from rekindle.model.cluster import ClusterEvent, JobObject, ObjectMeta, Pod, WatchEvent
from rekindle.policy.intake import Tell, TellKind, Told, after, declined, due, observe
from rekindle.settings import read_settings
from rekindle.telemetry import configure_logging
from rekindle.temporal import connect
from workers.clusters import cluster_of
from workers.process import Process, run, temporal_answers
from workers.telling import JobUnknown, Memory, TemporalTeller
from workers.world import World

RELIST = 600.0
"""Seconds after which everything is listed again, whether or not the watch broke: a net under the watch, which shows all."""

REWATCH = 0.2
"""Seconds before a broken watch is opened again; doubles up to `LONGEST`."""

LONGEST = 5.0

logger = logging.getLogger("watcher")


class Teller(Protocol):
    async def tell(self, job_id: str, tell: Tell, job: JobObject | None) -> None:
        """Returns when the job's workflow has taken it.

        Raises:
            Unavailable: try again.
            JobUnknown: the job has no workflow.
            BadInput: the job object is wrong; Refused: the workflow does not want it.
        """
        ...


class Watcher:
    def __init__(self, cluster: Cluster, teller: Teller, memory: Memory) -> None:
        self._cluster = cluster
        self._teller = teller
        self._memory = memory
        self._world = World()
        self._told = memory.load()
        self._telling = asyncio.TaskGroup()
        self._busy: set[str] = set()
        self.problem = ""
        """Why nothing is seen; empty: the watch is open, or breaks for a moment."""
        self._wrong: dict[str, ObjectMeta] = {}
        """Jobs that cannot be registered, as they are written."""

    async def run(self) -> None:
        """Until it is cancelled."""
        pause = REWATCH
        try:
            async with self._telling:
                while True:
                    try:
                        await self._watch_for_a_while()
                        pause = REWATCH
                        continue
                    except (WatchExpired, ClusterUnavailable) as broken:
                        logger.warning("the watch broke, everything is listed again", extra={"reason": str(broken)})
                    except ClusterError as refused:
                        self.problem = str(refused)
                        logger.exception("the cluster cannot be watched, trying again", extra={"reason": str(refused)})
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST)
        finally:
            self._memory.save(self._told)

    async def _watch_for_a_while(self) -> None:
        try:
            async with asyncio.timeout(RELIST), aclosing(self._cluster.watch()) as news:
                async for one in news:
                    if isinstance(one, Snapshot):
                        self._begin_anew(one)
                    else:
                        self._take(one)
        except TimeoutError:
            return

    def _begin_anew(self, everything: Snapshot) -> None:
        self.problem = ""
        self._world = World(everything.jobs, everything.pods, everything.nodes)
        for job_id in {*self._world.jobs, *self._told}:
            self._look(job_id)

    def _take(self, event: WatchEvent) -> None:
        thing = event.object
        if event.type == "DELETED" and isinstance(thing, Pod) and thing.metadata.deletion_timestamp:
            self._world.put(thing)  # it was told to end, even if that very change was not seen
            self._look(thing.metadata.owner_uid)
        changed = self._world.remove(thing) if event.type == "DELETED" else self._world.put(thing)
        for job_id in changed:
            self._look(job_id)

    def _look(self, job_id: str) -> None:
        """Notes what is seen of a job, and makes sure that what is due is told."""
        told = self._told.get(job_id, Told())
        self._told[job_id] = observe(told, self._world.view(job_id, told))
        if job_id not in self._busy and self._next(job_id):
            self._busy.add(job_id)
            self._telling.create_task(self._tell_all(job_id))

    # ---- one update in flight for each job

    async def _tell_all(self, job_id: str) -> None:
        pause = REWATCH
        try:
            while tell := self._next(job_id):
                if await self._told_to(job_id, tell):
                    pause = REWATCH
                else:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST)
        finally:
            self._busy.discard(job_id)
            self._memory.save_soon(self._told)

    def _next(self, job_id: str) -> Tell | None:
        """From the world as it is now: what waits for Temporal may have become old news."""
        told = self._told[job_id]
        view = self._world.view(job_id, told)
        tells = due(told, view, datetime.now(UTC))
        if not tells:
            if view.job is None and not told.known:
                del self._told[job_id]
                self._wrong.pop(job_id, None)
            return None
        hopeless = view.job is not None and self._wrong.get(job_id) == _written(view.job)
        return next((tell for tell in tells if not (hopeless and tell.kind is TellKind.REGISTER)), None)

    async def _told_to(self, job_id: str, tell: Tell) -> bool:
        """Whether there is no need to wait before the next one."""
        job = self._world.jobs.get(job_id)
        words = {"job": job_id, "job_name": job.metadata.name if job else "", "news": tell.kind, "what": _what(tell)}
        try:
            await self._teller.tell(job_id, tell, job)
        except Unavailable as error:
            logger.warning("not told yet, trying again", extra={**words, "error": str(error)})
            return False
        except JobUnknown:
            return self._unknown(job_id, tell, words)
        except (BadInput, Refused) as error:
            logger.warning("refused", extra={**words, "error": str(error)})
            if tell.kind is TellKind.REGISTER and job:
                self._wrong[job_id] = _written(job)
                told = self._told[job_id] = declined(self._told[job_id])
                why = f"{error}; until then what it said before holds" if told.registered else str(error)
                self._telling.create_task(self._say_refused(job, why))
                return True
        else:
            logger.info("told", extra=words)
        self._note(job_id, tell)
        return True

    async def _say_refused(self, job: JobObject, why: str) -> None:
        """On the job, where its owner looks."""
        event = ClusterEvent(name=job.metadata.name, kind=job.kind, reason="JobRefused", message=why, type="Warning")
        try:
            await self._cluster.record(job.metadata.uid, event)
        except ClusterError as error:
            logger.warning("not recorded", extra={"job": job.metadata.uid, "error": str(error)})

    def _unknown(self, job_id: str, tell: Tell, words: dict[str, str]) -> bool:
        """Its workflow is gone: well, if the job is over too; otherwise the job is registered again."""
        if tell.kind is TellKind.END:
            self._note(job_id, tell)
            return True
        logger.warning("refused: no workflow knows the job, it is registered again", extra=words)
        self._told[job_id] = Told(pods=self._told[job_id].pods)
        return False

    def _note(self, job_id: str, tell: Tell) -> None:
        told = self._told[job_id]
        self._told[job_id] = after(told, tell, self._world.view(job_id, told))
        self._memory.save_soon(self._told)


def _written(job: JobObject) -> ObjectMeta:
    """What a person may change of a job; its status changes by itself."""
    return job.metadata.model_copy(update={"resource_version": 0})


def _what(tell: Tell) -> str:
    if tell.fault is None:
        return tell.episode or tell.reason
    return f"{tell.fault.kind} of {tell.fault.node or tell.fault.pod} {tell.fault.code} {tell.fault.message}".rstrip()


async def main() -> None:
    settings = read_settings()
    configure_logging("watcher", settings)
    async with Process(settings) as process, cluster_of(settings) as cluster:
        client = await connect(lazy=True)
        watcher = Watcher(cluster, TemporalTeller(client, settings.limits), Memory(settings.state_dir / "watcher.json"))
        answers = temporal_answers(client)

        async def well() -> str:
            return watcher.problem or await answers()

        process.ready("watcher", well)
        await process.until_stopped(watcher.run())
    logger.info("stopped")


if __name__ == "__main__":
    run(main)
