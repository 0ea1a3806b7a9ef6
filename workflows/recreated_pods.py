"""Process rescheduling of a job whose controller recreates its pods, and whose scheduler places them.

Its training side waits 30 s for its strategy and ten minutes for its ranks. So `recover` is ordered first, and the pods are
replaced meanwhile. Source: the recorded dialogues. A second fault waits until the training side has answered, as it accepts no
order before that.
"""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

from rekindle.model.activities.recreation import Held
from rekindle.model.bounds import few, numbered
from rekindle.model.dialogue import Report, Strategy
from rekindle.model.situation import Switched
from rekindle.policy.dialogue import orders
from rekindle.policy.modes import faulty_ranks, recovery_opening
from rekindle.policy.modes.mode_table import RESCHEDULING_TRIES
from rekindle.policy.placement import avoided_nodes
from workflows import steps
from workflows.mode import CAUGHT, seconds
from workflows.new_pods import NOBODY, NewPods
from workflows.opening import holders_now
from workflows.process_level import answer

SEEN = timedelta(seconds=5)
"""Time between the training side's report that its new ranks train and the sighting of their pods by us."""


class RecreatedPods(NewPods):
    """Part of process rescheduling in which other components replace the pods."""

    replacing: "asyncio.Task[None] | None" = None
    """Task that replaces the pods. It ends only by an error."""

    anew: tuple[Switched, ...] = ()
    """Pods that were replaced, with their successors, by pod rank."""

    async def replaced_by_others(self) -> str:
        """Replaces the pods and describes what was done.

        Raises:
            Ends: the job is restarted, as no other mode is possible after `recover`.
        """
        await self.open(Strategy.RECOVER)
        self.pods_to_replace()
        async with self.phase("new pods take over the ranks"):
            late = await self._found_late()
            pods = faulty_ranks.pods_of(self.context.job, self.situation.announced)
            report = await self._recover(late, self._held(pods))
        if report.code:
            raise self.fails(f"the new pods could not take over: {answer(report)}", report.code)
        where = few([f"{one.pod_rank} on {one.after.node}" for one in self.anew])
        return f"pod ranks recovered in other pods: {where}; {report.info}"

    async def _found_late(self) -> tuple[int, ...]:
        """Returns the pods that leave only by this order, as their faults were found after the announcement."""
        job, here = self.context.job, self.situation
        is_late = set(faulty_ranks.pods_of(job, here.faulty)) - set(faulty_ranks.pods_of(job, here.announced))
        late = recovery_opening.leaving(job, here, self.context.holders, await holders_now(self)) if is_late else ()
        announced = recovery_opening.announcement(job, here, leave=True)
        self.situation = here.with_(announced=announced, leaving=tuple(sorted((*here.leaving, *late))))
        return late

    async def _recover(self, late: tuple[int, ...], held: tuple[Held, ...]) -> Report:
        job, here = self.context.job, self.situation
        order = orders.change_strategy(job.id, here.attempt, Strategy.RECOVER, here.announced, late)
        self.replacing = asyncio.create_task(self._replace(held))
        self.replacing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            report = await self.carry_out(order, job.limits.repair)
            if not report.code:
                await self.until(lambda: len(self.anew) == len(held) or self._in_vain, SEEN, "see the new pods")
        except CAUGHT:
            self.replacing.cancel()
            raise
        self.replacing.cancel()
        return report

    def is_answered(self) -> bool:
        """Returns whether the order was answered, or can no longer be because the pods cannot be replaced."""
        return super().is_answered() or self._in_vain

    def no_answer(self, order: str, within: timedelta) -> Exception:
        why = self.replacing.exception() if self.replacing and self._in_vain else None
        return why if isinstance(why, Exception) else super().no_answer(order, within)

    @property
    def _in_vain(self) -> bool:
        return bool(self.replacing and self.replacing.done())

    # ---- the pods

    def _held(self, pods: tuple[int, ...]) -> tuple[Held, ...]:
        """Returns the pods that must leave, by their UIDs. A pod that already replaced one of them stays."""
        known = {rank: uid for rank, uid in enumerate(self.context.holders) if uid not in NOBODY}
        if unknown := [rank for rank in pods if rank not in known]:
            raise self.ends_all(f"it is not known which pods held {numbered('pod rank', unknown)}")
        return tuple(Held(pod_rank=rank, holder=known[rank], told=rank in self.situation.leaving) for rank in pods)

    async def _replace(self, held: tuple[Held, ...]) -> None:
        """Waits for new pods of these ranks. Pods that die before they have taken over are replaced once more."""
        for _ in range(RESCHEDULING_TRIES):
            try:
                await self._come(held)
                if await self._run():
                    await workflow.wait_condition(self._died)
            except ActivityError as error:
                raise self.ends_all(f"the pods could not be replaced: {error.cause}") from error
        raise self.ends_all("new pods fail again and again")

    async def _come(self, held: tuple[Held, ...]) -> None:
        limit, lost = self.context.job.limits.replacement_scheduled, (*self.context.lost_nodes, *avoided_nodes.lost(self.faults))
        made = await steps.make_anew(self.context.job.id, held, tuple(dict.fromkeys(lost)), workflow.now() + limit)
        if made.missing:
            raise self.ends_all(f"no spare: {made.missing} within {seconds(limit)}")
        seen = {one.pod_rank: one.before for one in self.anew}
        self.anew = tuple(one.model_copy(update={"before": seen.get(one.pod_rank, one.before)}) for one in made.moved)

    async def _run(self) -> bool:
        job, pods = self.context.job, tuple(one.after for one in self.anew)
        return (await steps.await_running(job.id, pods, workflow.now() + job.limits.backup_start)).running

    def _died(self) -> bool:
        new = {one.after.uid for one in self.anew}
        return any(new & set(fault.pod_uids) for fault in self.faults)
