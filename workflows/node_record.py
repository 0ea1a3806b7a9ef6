"""Record of one node over all jobs: two incidents within a time set the node aside, until that time is over.

Started with the first incident of a node, and over when none counts any more. The mark on the node is the one of stress tests,
with another reason. A person may remove it at any time.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

from rekindle.ids import Queries, Signals, Workflows
from rekindle.model import bounds, stored
from rekindle.model.node_record import Aside, AsideRequest, NodeIncident, NodeRecord
from rekindle.policy.placement import node_records
from rekindle.policy.placement.node_records import words
from rekindle.temporal import Attributes
from workflows import steps
from workflows.shown import Shown

WATCHED, SET_ASIDE = "watched", "set aside"

AGAIN = timedelta(minutes=5)
"""Pause before a change of the node, which the cluster did not answer, is tried again."""


@workflow.defn(name=Workflows.NODE_RECORD)
class NodeRecordWorkflow:
    @workflow.init
    def __init__(self, given: object) -> None:
        record, _ = stored.read(NodeRecord, given, needed=("node",))
        self.record = record or NodeRecord(node="unreadable")
        self._new: list[NodeIncident] = []
        self._shown = Shown({})

    @workflow.run
    async def run(self, given: object) -> NodeRecord:
        """Args:
        given: a `NodeRecord`, as this version or an earlier one has written it.
        """
        while True:
            await self._take()
            self._show()
            if self._new:
                continue
            if not self.record.incidents and self.record.aside is None:
                return self.record
            if self._moves_on():
                workflow.continue_as_new(
                    self.record, initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
                )
            await self._wait()

    async def _take(self) -> None:
        """Takes new incidents, and sets the node aside or releases it."""
        while self._new:
            self.record = node_records.with_incident(self.record, self._new.pop(0))
        self.record = node_records.without_old(self.record, workflow.now())
        if self.record.aside and self.record.aside.until <= workflow.now():
            await self._release(self.record.aside)
        if reason := node_records.why_aside(self.record):
            await self._set_aside(bounds.note(reason))

    async def _set_aside(self, reason: str) -> None:
        last = self.record.incidents[-1]
        request = AsideRequest(node=self.record.node, reason=reason, job_id=last.job_id)
        refused = await self._refusal(request)
        if refused:
            workflow.logger.warning("node not set aside", extra={"node": self.record.node, "reason": refused})
            self.record = self.record.model_copy(update={"incidents": self.record.incidents[1:]})
            return
        # The incidents are used up: a node that a person releases is not set aside for them again.
        aside = Aside(reason=reason, until=workflow.now() + last.aside)
        self.record = self.record.model_copy(update={"incidents": (), "aside": aside})

    async def _refusal(self, request: AsideRequest) -> str:
        """Sets the node aside, however long the cluster does not answer. Returns why it may not be; empty: it is set aside."""
        while True:
            try:
                return (await steps.set_aside(request)).refused
            except ActivityError as error:
                workflow.logger.warning("node not set aside yet", extra={"node": self.record.node, "error": str(error.cause)})
                await workflow.sleep(AGAIN, summary="before the cluster is asked again")

    async def _release(self, aside: Aside) -> None:
        try:
            await steps.release_node(AsideRequest(node=self.record.node, reason=aside.reason))
        except ActivityError as error:
            workflow.logger.warning("node not released", extra={"node": self.record.node, "reason": str(error.cause)})
            again = aside.model_copy(update={"until": workflow.now() + AGAIN})
            self.record = self.record.model_copy(update={"aside": again})
            return
        self.record = self.record.model_copy(update={"aside": None})

    async def _wait(self) -> None:
        due = node_records.next_due(self.record)
        assert due, "a record without incidents has ended"
        try:
            await workflow.wait_condition(
                lambda: bool(self._new) or self._moves_on(),
                timeout=max(due - workflow.now(), timedelta(0)),
                timeout_summary="release the node" if self.record.aside else "forget its incidents",
            )
        except TimeoutError:
            pass

    @staticmethod
    def _moves_on() -> bool:
        info = workflow.info()
        return info.is_continue_as_new_suggested() or info.is_target_worker_deployment_version_changed()

    def _show(self) -> None:
        phase = SET_ASIDE if self.record.aside else WATCHED
        self._shown.tell({Attributes.PHASE: phase, Attributes.NODE: [self.record.node]})
        lines = [f"**{self.record.node}**: {phase}"]
        if aside := self.record.aside:
            lines.append(f"- until {aside.until:%Y-%m-%d %H:%M:%S} UTC: {aside.reason}")
        lines.extend(f"- {one.at:%Y-%m-%d %H:%M:%S} UTC: {words(one)}" for one in self.record.incidents)
        workflow.set_current_details(bounds.details("\n".join(lines)))

    @workflow.signal(name=Signals.INCIDENT)
    def incident(self, new: NodeIncident) -> None:
        self._new.append(new)

    @workflow.signal(name=Signals.UPGRADED)
    def upgraded(self) -> None:
        """Causes a workflow task, by which the server reports whether another version is current."""

    @workflow.query(name=Queries.STATUS)
    def status(self) -> NodeRecord:
        return self.record
