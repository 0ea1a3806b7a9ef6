"""Delivers orders to the training side. Runs in the gateway that holds the job's stream, on that gateway's own task queue."""

from typing import Protocol

from temporalio import activity

from activities.error_mapping import translating_errors
from rekindle.model.activities.jobs import EndSession
from rekindle.model.dialogue import Order


class Streams(Protocol):
    async def deliver(self, order: Order, recovery: str) -> None:
        """Puts an order of a recovery's workflow on the job's stream; raises NotAttached if there is none."""
        ...

    def end_session(self, job_id: str, session: str, reason: str) -> None:
        """Ends exactly this subscription, if it is still here."""
        ...


class OrderActivities:
    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    @activity.defn
    async def deliver_order(self, order: Order) -> None:
        """Delivers one order. The training side answers it with a report.

        Raises:
            `training_side.not_attached`, retryable, when the job's stream is not here.
        """
        with translating_errors():
            await self._streams.deliver(order, activity.info().workflow_id or "")

    @activity.defn
    async def end_session(self, request: EndSession) -> None:
        """Ends a stream whose client has subscribed at another gateway."""
        self._streams.end_session(request.job_id, request.session, request.reason)
