"""Payloads that cross Temporal stay below 384 KiB, for the largest jobs that the product serves.

Every model that a workflow or an activity takes or answers has its largest examples in
`tests/workflows/support/largest`. A model without an example fails the test.
"""

import inspect
from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from unittest.mock import Mock

import pytest
from temporalio.activity import _Definition as ActivityDefinition
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.workflow import _Definition as WorkflowDefinition

from activities.training import OrderActivities
from rekindle.model.job import Job, JobId
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.workflows.support.largest.common import FAILED_PODS, JOBS
from tests.workflows.support.largest.payloads import examples
from workers.control import MODES, activities_of
from workflows.link_failover import LinkFailover
from workflows.nodes import Nodes
from workflows.spares import Spares
from workflows.switch_upgrade import SwitchUpgrade
from workflows.training_job import TrainingJob

LARGEST = 384 * 1024
"""Bytes. The server warns of a payload of 512 KiB, and rejects one of 2 MiB."""


def _functions() -> Iterator[Callable[..., Any]]:
    """Everything that takes or answers a payload: runs, updates, signals, queries, activities."""
    for workflow in (TrainingJob, LinkFailover, SwitchUpgrade, Nodes, Spares, *MODES):
        definition = WorkflowDefinition.must_from_class(workflow)
        yield definition.run_fn
        for group in (definition.signals, definition.queries, definition.updates):
            yield from (handler.fn for handler in group.values())
    orders = OrderActivities.__new__(OrderActivities)
    activities: list[Callable[..., Any]] = [
        *activities_of(Mock(spec=Client), ScriptedCluster(Job(id=JobId("j"), name="gpt", pods=1))),
        orders.deliver_order,
        orders.end_session,
    ]
    yield from (ActivityDefinition.must_from_callable(activity).fn for activity in activities)


def _payload_types() -> set[Any]:
    found: set[Any] = set()
    for function in _functions():
        hints = get_type_hints(inspect.unwrap(getattr(function, "__func__", function)))
        for hint in hints.values():
            found |= set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
    return found - {NoneType, object}  # what a client wrote is read by ourselves


async def test_every_payload_has_an_example() -> None:
    """A model that is added to a workflow or an activity is listed here until its largest example exists."""
    known = {type(example) for example in await examples(Job(id=JobId("j"), name="gpt", pods=FAILED_PODS))}
    missing = sorted(str(kind) for kind in _payload_types() if (get_origin(kind) or kind) not in known)
    assert not missing, f"give the largest example of: {', '.join(missing)}"


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
@pytest.mark.same_path("every payload of a largest job")
@pytest.mark.timeout(600)  # a minute of computing
async def test_every_payload_of_the_largest_jobs_is_small(job: Job) -> None:
    """The job has a quarter of its pods failed, or all of them Pending. Names and texts are as long as they may be."""
    converter = pydantic_data_converter.payload_converter
    sizes: dict[str, int] = {}
    for example in await examples(job):
        (payload,) = converter.to_payloads([example])
        name = type(example).__name__
        sizes[name] = max(payload.ByteSize(), sizes.get(name, 0))
    assert {name: size for name, size in sizes.items() if size > LARGEST} == {}
