"""Programs ask by Python functions, updates and workflows: each checks at its door, and names what it does not accept."""

from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.client import Rekindle
from rekindle.errors import BadInput
from rekindle.maintenances import Maintenances
from rekindle.model.base import sent
from rekindle.model.incident import ModeRequest
from rekindle.model.links import NodeLinks
from rekindle.model.maintenance import FailoverRequest, Maintenance, Stage, SwitchBack
from rekindle.model.mode import Mode, Outcome
from rekindle.model.plan import Control, Word
from rekindle.nodes import Nodes
from rekindle.plans import Plans
from rekindle.policy.modes import requests
from tests.support.harness import Harness, a_job, training

Call = Callable[[Rekindle], Coroutine[Any, Any, object]]

CALLS: dict[str, tuple[Call, str]] = {
    "mode": (lambda client: client.recover("gpt", mode="in-plaace"), "did you mean in-place? (accepted: hot-switch, "),
    "pod rank": (
        lambda client: client.hot_switch("gpt", pod_rank=cast("int", "first")),
        "pod_rank: input should be a valid integer",
    ),
    "job": (lambda client: client.reschedule(cast("str", 7)), "job: must be a string"),
    "stress": (
        lambda client: client.stress_test("gpt", cast("Any", {"all_node": [0]})),
        "stress.all_node: unknown field, did you mean all_nodes?",
    ),
    "links": (lambda client: client.move_links("gpt", cast("Any", ["node-1"])), "links.0: "),
    "fault": (lambda client: client.report_fault("gpt", cast("Any", {"node": "node-1"})), "faults.0.kind: missing"),
    "maintenance": (
        lambda client: Maintenances(client).fail_over("gpt", cast("Any", [{"node": "node-1", "device": ["0"]}])),
        "links.0.device: unknown field, did you mean devices?",
    ),
    "switchback": (lambda client: Maintenances(client).switch_back("gpt", cast("Any", [1])), "links.0: "),
    "plan": (lambda client: Plans(client).start(cast("Any", {"switch": "tor-7", "leafs": []})), "leafs: unknown field"),
    "word": (lambda client: Plans(client).tell("tor-7", cast("Word", "go")), "word: input should be 'proceed'"),
    "mark": (lambda client: Nodes(client).mark("node-1", cast("Any", "ill")), "mark: 'ill' is not accepted, accepted are sick"),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_public_function_names_what_it_does_not_accept(temporal: WorkflowEnvironment, call: str) -> None:
    """The call raises the error of wrong input, and no error of Python's or of a library."""
    function, words = CALLS[call]
    with pytest.raises(BadInput) as raised:
        await function(Rekindle(temporal.client))
    assert words in str(raised.value)


@pytest.mark.parametrize("given", ["in-place", "in-place recovery", "IN_PLACE", Mode.IN_PLACE])
def test_a_mode_is_named_by_its_value_or_as_on_the_command_line(given: str) -> None:
    """The names of the command line, of the update and of Python mean the same mode."""
    assert requests.mode_named(given) is Mode.IN_PLACE


async def test_a_recovery_in_a_mode_that_is_named_by_text_is_judged_by_the_job(temporal: WorkflowEnvironment) -> None:
    """The job answers that nothing is faulty; the call ended in an error of Python's."""
    async with training(temporal, a_job()) as (world, _peer):
        verdict = await (await Rekindle(world.client).start("in-place", world.job.id)).result()
        assert (verdict.mode, verdict.outcome) == (Mode.IN_PLACE, Outcome.REFUSED)


UNKNOWN = {"pod_rank": 1, "forced": True, "requestedBy": "ada"}


async def _begun(world: Harness) -> None:
    await world.client.execute_workflow(
        ids.Workflows.HOT_SWITCH, {"job": world.job.id, **UNKNOWN}, id=f"hs-{world.job.id}", task_queue=ids.CONTROL_QUEUE
    )


async def _updated(world: Harness) -> None:
    await world.entity.execute_update(ids.Updates.RECOVER, {"mode": "hot switch", **UNKNOWN})


@pytest.mark.parametrize("ask", [_begun, _updated])
async def test_a_request_with_an_unknown_field_is_refused(
    temporal: WorkflowEnvironment, ask: Callable[[Harness], Coroutine[Any, Any, None]]
) -> None:
    """All unknown fields are named, with those that are close, and training is not touched."""
    async with training(temporal, a_job()) as (world, peer):
        with pytest.raises((WorkflowFailureError, WorkflowUpdateFailedError)) as raised:
            await ask(world)
        cause = raised.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == ids.ErrorTypes.REQUEST_INVALID
        assert "forced: unknown field, did you mean force?" in cause.message
        assert "requestedBy: unknown field, did you mean requested_by?" in cause.message
        assert peer.orders == []


def test_what_an_earlier_run_knew_may_have_fields_of_newer_code() -> None:
    """A workflow that continues as new on older code is not refused by it."""
    given = {"job": "gpt", "colour": "red", "known": {"job": "gpt", "stage": "on the backup link", "shape": "round"}}
    assert requests.read_as(FailoverRequest, given, "").known == Maintenance(job="gpt", stage=Stage.ON_BACKUP)


def test_a_request_is_sent_without_what_it_does_not_use() -> None:
    """A worker of before refuses fields that it does not know: newer clients send them only where they are used."""
    assert sent(ModeRequest(job="gpt", pod_rank=1)) == {"job": "gpt", "pod_rank": 1}
    asked = sent(FailoverRequest(job="gpt", links=(NodeLinks(node="node-1", devices=("0",), backup=True),)))
    assert asked == {"job": "gpt", "links": [{"node": "node-1", "devices": ["0"], "backup": True}]}


@pytest.mark.parametrize(
    ("kind", "given"),
    [(SwitchBack, {"link": [{"node": "node-1", "devices": ["0"]}]}), (Control, {"word": "proceed", "leef": "leaf-1"})],
)
def test_a_word_to_a_running_workflow_with_an_unknown_field_says_nothing(kind: type[Any], given: object) -> None:
    """A switchback of one device would have been one of all, and `proceed` one of any leaf."""
    with pytest.raises(ValueError, match="extra_forbidden"):
        kind.model_validate(given)
