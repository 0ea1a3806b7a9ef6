"""Workflow in place of `TrainingJob` that stores what the watcher sends, and refuses what a test names."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from rekindle.ids import CONTROL_QUEUE, ErrorTypes, Updates, Workflows
from rekindle.model.fault import Sighting
from rekindle.model.state import JobState, Registration

HELD = "held"
"""Query of everything that it accepted, in order."""


@workflow.defn(name=Workflows.TRAINING_JOB)
class ScriptedJob:
    @workflow.init
    def __init__(self, state: JobState) -> None:
        self.held: list[Registration | Sighting] = []
        self.ended = ""

    @workflow.run
    async def run(self, state: JobState) -> str:
        await workflow.wait_condition(lambda: bool(self.ended) and workflow.all_handlers_finished())
        return self.ended

    @workflow.update(name=Updates.REGISTER)
    def register(self, registration: Registration) -> None:
        self.held.append(registration)

    @workflow.update(name=Updates.SIGHTING)
    def sighting(self, sighting: Sighting) -> None:
        self.held.append(sighting)

    @sighting.validator
    def _refuses(self, sighting: Sighting) -> None:
        if "refuse" in sighting.problems:
            raise ApplicationError("holders: two are too many", type=ErrorTypes.REQUEST_INVALID)

    @workflow.update(name=Updates.END)
    def end(self, reason: str) -> None:
        self.ended = reason

    @workflow.query(name=HELD)
    def what_is_held(self) -> list[Registration | Sighting]:
        return self.held


@asynccontextmanager
async def scripted_jobs(client: Client) -> AsyncIterator[None]:
    """Runs a worker for these workflows until the block ends."""
    async with Worker(client, task_queue=CONTROL_QUEUE, workflows=[ScriptedJob], workflow_runner=UnsandboxedWorkflowRunner()):
        yield
