"""The page on starting recoveries: each of its ways is run as it is written there, beside a real Temporal server."""

import ast
import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.client import Rekindle
from rekindle.errors import BadInput, Refused
from rekindle.ids import CONTROL_QUEUE, ErrorTypes
from rekindle.model.mode import Mode, Outcome
from rekindle.policy.modes.mode_table import LADDER, OPERATIONS
from rekindle.temporal import ATTRIBUTES
from tests.fakes.peer import Script
from tests.support.harness import Harness, a_job, training

PAGE = (Path(__file__).parents[2] / "docs" / "start-a-recovery.md").read_text()
ROWS = (*LADDER, *OPERATIONS)
"""Rows of the page, in its order."""
PROGRAMS = Path(sys.executable).parent
LIMIT = 60.0


def section(title: str) -> str:
    """Returns the text below a heading."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(title: str, language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", section(title), re.DOTALL)
    assert found, f"no {language} below {title!r}"
    return found


def lines(title: str) -> list[str]:
    return [line for block in blocks(title, "sh") for line in block.splitlines()]


def rows(title: str) -> list[list[str]]:
    """Returns the cells of the page's table, without the head."""
    table = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def about(world: Harness, text: str) -> str:
    """Returns a text of the page with this test's job, and with ids of its own."""
    return text.replace("gpt", world.job.name).replace("maintenance-", f"maintenance-of-{world.job.id}-")


def environment(world: Harness) -> dict[str, str]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("TEMPORAL_", "REKINDLE_"))}
    address = world.client.service_client.config.target_host
    return {**plain, "TEMPORAL_ADDRESS": address, "JOB_ID": world.job.id, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}


async def run(world: Harness, *command: str) -> tuple[int, str]:
    """Returns exit code and output of a command."""
    process = await asyncio.create_subprocess_exec(
        *command, env=environment(world), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(LIMIT):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def typed(world: Harness, line: str) -> tuple[int, str]:
    """Runs a line of the page as a shell does."""
    return await run(world, "bash", "-c", about(world, line))


def switched(output: str) -> bool:
    return "recovered" in output and "pod rank 1 moved from node-1 to node-2" in output


@pytest.mark.parametrize("title", ["From Python, with Rekindle installed", "From Python, with `temporalio` alone"])
async def test_a_python_program_starts_a_hot_switch(temporal: WorkflowEnvironment, title: str) -> None:
    """The program of the page prints the verdict of the hot switch that it asked for."""
    async with training(temporal, a_job()) as (world, _peer):
        (program,) = blocks(title, "python")
        flag = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compiled = f"compile({about(world, program)!r}, 'page', 'exec', {flag})"
        # Without the end of the interpreter, which crashes below temporalio's threads where nothing of ours waits for them.
        run_it = f"import asyncio, os, sys; asyncio.run(eval({compiled})); sys.stdout.flush(); os._exit(0)"
        code, output = await run(world, sys.executable, "-c", run_it)
        assert (code, switched(output)) == (0, True), output
        assert "requested by ada" in (await world.incident()).summary


async def test_the_temporal_command_starts_a_hot_switch(temporal: WorkflowEnvironment) -> None:
    """`temporal workflow execute` waits for the verdict and prints it."""
    async with training(temporal, a_job()) as (world, _peer):
        code, output = await typed(world, lines("With the `temporal` command")[0])
        assert (code, switched(output)) == (0, True), output


async def test_the_temporal_command_starts_a_job_rescheduling_which_another_one_cancels(temporal: WorkflowEnvironment) -> None:
    """`temporal workflow start` does not wait; what it started is cancelled by the page's line, and that request has an end."""
    async with training(temporal, a_job()) as (world, _peer):
        code, output = await typed(world, lines("With the `temporal` command")[1])
        assert code == 0, output
        await world.settled(lambda status: status.running is Mode.JOB_RESCHEDULING)
        code, output = await typed(world, lines("Cancelling")[0])
        assert code == 0, output
        await world.restarted()
        verdict: Any = await world.client.get_workflow_handle(about(world, "maintenance-2")).result()
        assert verdict["outcome"] == Outcome.RECOVERED, verdict  # it must not stop half-way


async def test_the_update_is_found_sent_and_repeated(temporal: WorkflowEnvironment) -> None:
    """The job is found by its name; the update answers with the verdict; sent again, it answers alike and begins nothing."""
    async with training(temporal, a_job()) as (world, peer):
        _, _, find, ask = lines("With the `temporal` command")
        assert f"job/{world.job.id}" in (await typed(world, find))[1]
        again = lines("Asking again under the same id")[1]
        for line in (ask, again):
            code, output = await typed(world, line)
            assert (code, switched(output)) == (0, True), output
        assert (await world.status()).state.incidents == 1
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]


async def test_a_workflow_that_is_started_again_is_not_begun_again(temporal: WorkflowEnvironment) -> None:
    """A workflow that is started again under the same id is not begun again. A running one is waited for, and the verdict of one
    that has ended is printed again."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        first = asyncio.create_task(typed(world, lines("With the `temporal` command")[0]))
        await peer.until(lambda: "new pod running" in peer.orders)
        second = asyncio.create_task(typed(world, lines("Asking again under the same id")[0]))
        await peer.pause()
        answers = [await first, await second]
        answers.append(await typed(world, lines("Asking again under the same id")[0]))
        for code, output in answers:
            assert (code, switched(output)) == (0, True), output
        assert (await world.status()).state.incidents == 1


async def test_an_update_is_withdrawn_by_its_id(temporal: WorkflowEnvironment) -> None:
    """An update is withdrawn by its id: its recovery is cancelled before training pauses, and the update's caller receives that
    answer."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        asking = asyncio.create_task(typed(world, lines("With the `temporal` command")[3]))
        await peer.until(lambda: "new pod running" in peer.orders)
        code, output = await typed(world, lines("Cancelling")[1])
        assert code == 0, output
        code, output = await asking
        assert (code, "cancelled" in output) == (0, True), output
        assert (await world.incident()).verdict is Outcome.CANCELLED


async def test_the_form_of_the_temporal_ui_starts_a_hot_switch(temporal: WorkflowEnvironment) -> None:
    """The server receives the values of the form as the form sends them."""
    async with training(temporal, a_job()) as (world, _peer):
        form = {field: re.findall(r"`(.*?)`", value)[0] for field, value in rows("From the Temporal UI")}
        assert form["Encoding"] == "json/plain"
        (given,) = blocks("From the Temporal UI", "json")
        verdict: Any = await world.client.execute_workflow(
            form["Workflow Type"],
            json.loads(about(world, given)),
            id=about(world, form["Workflow ID"]),
            task_queue=form["Task Queue"],
        )
        assert verdict["outcome"] == Outcome.RECOVERED, verdict
        assert set(verdict) >= {field.strip("`") for field, _ in rows("What comes back")} - {"tested"}


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (ErrorTypes.JOB_UNKNOWN, '"job": "gpt"', '"job": "nobody"'),
        (ErrorTypes.REQUEST_INVALID, '"pod_rank": 1', '"pod_rank": 9'),
        (ErrorTypes.REQUEST_INVALID, '"pod_rank": 1', '"pod_rank": "one"'),
        (ErrorTypes.REQUEST_INVALID, """'{"job": "gpt", "pod_rank": 1, "force": true, "requested_by": "ada"}'""", "'\"gpt\"'"),
        (ErrorTypes.JOB_UNKNOWN, """--input '{"job": "gpt", "pod_rank": 1, "force": true, "requested_by": "ada"}'""", ""),
    ],
)
async def test_a_wrong_input_fails_the_workflow_with_its_type(
    temporal: WorkflowEnvironment, kind: str, before: str, after: str
) -> None:
    """The `temporal` command shows the type of the error, and what is accepted; nothing is touched."""
    async with training(temporal, a_job()) as (world, peer):
        line = lines("With the `temporal` command")[0].replace(before, after)
        code, output = await typed(world, f"{line} --output json")
        assert code != 0
        assert f'"type": "{kind}"' in output, output
        assert peer.orders == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('"hot switch"', '"hotswitch"', "mode: input should be 'hot switch', 'online retry'"),
        ('"pod_rank": 1', '"pod_rank": "one"', "pod_rank: "),
        ('"pod_rank": 1', '"pod_rank": 9', "pod_rank: 9"),
        ("""'{"mode": "hot switch", "pod_rank": 1, "force": true, "requested_by": "ada"}'""", "'5'", "one JSON object"),
    ],
)
async def test_a_wrong_input_fails_the_update_with_its_type(
    temporal: WorkflowEnvironment, before: str, after: str, words: str
) -> None:
    """The update is refused with the type of the table, and the field is named; nothing is touched."""
    async with training(temporal, a_job()) as (world, peer):
        line = lines("With the `temporal` command")[3]
        assert before in line
        code, output = await typed(world, line.replace(before, after))
        assert (code, f"type: {ErrorTypes.REQUEST_INVALID}" in output, words in output) == (1, True, True), output
        assert peer.orders == []


async def test_a_request_that_is_refused_or_comes_too_much_says_so(temporal: WorkflowEnvironment) -> None:
    """A healthy pod is not moved without force; a second request during a recovery is answered with the running one."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        start, _, _, ask = lines("With the `temporal` command")
        _, output = await typed(world, ask.replace("true", "false").replace("maintenance-3", "maintenance-5"))
        assert "is healthy" in output
        code, output = await typed(world, start.replace("true", "false"))
        assert (code, "refused" in output) == (0, True), output
        asking = asyncio.create_task(typed(world, ask))
        await peer.until(lambda: "new pod running" in peer.orders)
        _, output = await typed(world, f"{start} --output json")
        assert '"outcome": "refused"' in output, output
        assert '"passing": true' in output, output
        await peer.pause()
        assert (await asking)[0] == 0


async def test_the_queries_of_the_saved_views_are_understood(temporal: WorkflowEnvironment) -> None:
    """The server accepts each query as it is written, and one of them finds the job's history."""
    async with training(temporal, a_job()) as (world, _peer):
        await typed(world, lines("With the `temporal` command")[0])
        await world.incident()
        (views,) = blocks("Finding jobs and recoveries in the Temporal UI", "sql")
        for query in views.splitlines():
            found = [one.id async for one in world.client.list_workflows(about(world, query))]
            if "RekindleJob" in query:
                assert found == [world.recovery.id]


def test_the_page_has_every_mode_every_refusal_and_every_search_attribute() -> None:
    """A new mode has its row there, and each named item exists."""
    named = [tuple(cell.strip("`") for cell in cells[:3]) for cells in rows("What is asked for")[: len(ROWS)]]
    assert named == [(row.mode.value, row.workflow, row.mode.value) for row in ROWS]
    assert f"The task queue is `{CONTROL_QUEUE}`" in PAGE
    types = {kind.strip("`") for kind, _, _ in rows("What is refused")}
    assert types <= {value for name, value in vars(ErrorTypes).items() if name.isupper()}
    attributes = [cells[0].strip("`") for cells in rows("Finding jobs and recoveries in the Temporal UI")]
    assert attributes[: len(ATTRIBUTES)] == [key.name for key in ATTRIBUTES]


async def test_a_program_is_told_of_a_refusal_by_its_error(temporal: WorkflowEnvironment) -> None:
    """`hot_switch` raises what the page says: it returns only verdicts of recoveries that were begun."""
    async with training(temporal, a_job()) as (world, peer):
        rekindle = Rekindle(world.client)
        with pytest.raises(Refused, match="pod rank 1 is healthy"):
            await rekindle.hot_switch(world.job.id, pod_rank=1)
        with pytest.raises(BadInput, match="pod_rank: 9"):
            await rekindle.hot_switch(world.job.id, pod_rank=9)
        assert peer.orders == []
        assert (await rekindle.hot_switch(world.job.id, pod_rank=1, force=True)).outcome is Outcome.RECOVERED
