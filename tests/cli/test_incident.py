"""`rekindle incident`: the picture of an incident fits a terminal and a page, whatever names and texts it has."""

import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.cli import incident_page, incident_text
from rekindle.model.approval import Unanswered
from rekindle.model.mode import Mode, Outcome
from rekindle.model.picture import Item, Lane, Part, Pause, Picture
from tests.cli.test_recover import ended, environment, typed
from tests.support.commands import begun
from tests.support.harness import Harness, a_job, sub_health, training

HOSTILE = "<script>alert(1)</script> [bold red]x[/] \x1b[31m & \"quoted\" 'single'"


def item(since: float, until: float, text: str, **more: bool) -> Item:
    return Item(since=1000.0 + since, until=1000.0 + until, text=text, **more)


def picture(*lanes: Lane, until: float = 1.0) -> Picture:
    pause = Pause(seconds=0.2141, ranks=512, source="the job's account")
    return Picture(
        job="gpt",
        number=3,
        summary="sub-health node-1",
        outcome=Outcome.RECOVERED,
        began=1000.0,
        since=1000.0,
        until=1000.0 + until,
        seconds=until,
        pause=pause,
        steps_lost=0,
        lanes=lanes,
        missing=("no step log of the job is visible from here: times of ranks are those that the control plane knows",),
    )


USUAL = picture(
    Lane(
        part=Part.CLUSTER, name="cluster", items=(item(0.0, 0.0, "fault seen", failed=True), item(0.1, 0.4, "start backup pod"))
    ),
    Lane(part=Part.CONTROL, name="mode", items=(item(0.05, 1.0, "hot switch: recovered, moved"),)),
    Lane(part=Part.CONTROL, name="order", items=(item(0.05, 0.1, "order hot switch"), item(0.5, 0.6, "order migration"))),
    Lane(part=Part.MANAGER, name="manager", items=(item(0.6, 0.6, "reports status"),)),
    Lane(part=Part.RANKS, name="ranks 2-3", items=(item(0.5, 0.75, "moved: gpt-1 on node-1 -> gpt-2 on node-2"),)),
)


class Reader(HTMLParser):
    """Reads a page, and notes its tags, the addresses it names, and tags that are not closed in their order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href") or name.startswith("on")]
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


def test_a_terminal_shows_each_lane_over_one_axis() -> None:
    """Letters in the lanes are explained below, with times in milliseconds since the beginning."""
    lines = incident_text.lines(USUAL, 80)
    assert lines[0] == "incident 3 of gpt: recovered, 1.000 s"
    assert "training stood 214 ms: 109.619 accelerator seconds on 512 ranks" in " ".join(lines[3:5])
    rows = {line[:16].strip(): line[16:] for line in lines if line.strip()}
    assert [name for name in rows if name in ("cluster", "control plane", "mode", "order", "manager", "ranks 2-3")] == [
        "cluster",
        "control plane",
        "mode",
        "order",
        "manager",
        "ranks 2-3",
    ]
    assert rows["ranks 2-3"].strip("=").strip(".") == "f"
    assert rows["order"].index("e") == rows["ranks 2-3"].index("f")
    listed = [line.split() for line in lines if line[:3] in ("e  ", "f  ")]
    assert [one[:5] for one in listed] == [["e", "500", "100", "order:", "order"], ["f", "500", "250", "ranks", "2-3:"]]


@pytest.mark.parametrize("width", [40, 70, 80, 300])
def test_the_picture_of_a_long_incident_is_as_wide_as_the_terminal(width: int) -> None:
    """Hundreds of calls, names of hundreds of letters and 200 lanes of ranks fit; not more than 60 entries are listed."""
    calls = tuple(item(number, number + 0.7, f"wait until {'pod-' * 60}{number} runs") for number in range(500))
    ranks = [Lane(part=Part.RANKS, name=f"ranks {'1,3,' * 40}{rank}", items=(item(3.0, 9.0, "stood"),)) for rank in range(200)]
    lines = incident_text.lines(picture(Lane(part=Part.CLUSTER, name="cluster", items=calls), *ranks, until=500.0), width)
    assert max(cell_len(line) for line in lines) < width
    assert len([line for line in lines if line.startswith(" " * 16) and "*" in line]) <= incident_text.MOST_ROWS
    assert "more, which --html and --output json show" in " ".join(lines)


def test_wide_characters_take_two_columns() -> None:
    """Names and texts of other scripts do not make the terminal break lines."""
    wide = "\u7bc0\u70b9" * 500
    shown = picture(Lane(part=Part.CLUSTER, name="cluster", items=(item(0.0, 0.5, wide),)))
    lines = incident_text.lines(shown.model_copy(update={"job": wide, "summary": wide, "missing": (wide,)}), 80)
    assert max(map(cell_len, lines)) < 80
    assert sum(line.count("\u7bc0") for line in lines) == 4 * 500


def test_steps_that_were_done_again_are_part_of_the_price() -> None:
    """Text and page have the time of these steps, and a price that contains it, as the report of the job has."""
    assert USUAL.pause
    again = USUAL.model_copy(update={"pause": USUAL.pause.model_copy(update={"again": 0.5})})
    text = " ".join(incident_text.lines(again, 80))
    assert "training stood 214 ms, and did steps again for 500 ms: 365.619 accelerator seconds on 512 ranks" in text
    page = Reader(incident_page.page(again)).words
    assert "did steps again for500 ms" in page
    assert "365.619 accelerator seconds" in page


def test_a_cost_that_is_not_known_is_not_called_none() -> None:
    """Training may stand now, or still after a recovery that was given up."""
    said = [
        incident_text.lines(USUAL.model_copy(update={"outcome": outcome, "pause": None, "steps_lost": None}), 80)[3]
        for outcome in (None, Outcome.GIVEN_UP, Outcome.RECOVERED)
    ]
    assert said == [
        "what it costs is known when it has ended",
        "it is not known how long training stood",
        "training did not stand, as far as it is known",
    ]


def test_a_page_is_one_file_without_scripts() -> None:
    """Lanes are drawn inside it, and it names no other address."""
    page = Reader(incident_page.page(USUAL))
    assert "svg" in page.tags
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert page.addresses == []
    for words in ("recovered", "214 ms", "109.619 accelerator seconds", "order migration", "-> gpt-2 on node-2", "no step log"):
        assert words in page.words
    assert page.tags.count("tr") == 1 + 7


def test_hostile_names_are_text() -> None:
    """Names of jobs, pods and lanes and all notes may contain HTML and markup; they are shown as they are."""
    hostile = picture(
        Lane(part=Part.CLUSTER, name=HOSTILE, items=(item(0.0, 0.5, HOSTILE),)),
        Lane(part=Part.RANKS, name=HOSTILE, items=(item(0.1, 0.6, HOSTILE),)),
    ).model_copy(update={"job": HOSTILE, "summary": HOSTILE, "missing": (HOSTILE,)})
    written = incident_page.page(hostile)
    page = Reader(written)
    assert "<script" not in written
    assert "alert(1)" in page.words
    assert not {"script", "bold"} & set(page.tags)
    assert "[bold red]x[/]" in " ".join(incident_text.lines(hostile, 80))


def test_a_page_is_ascii_without_control_characters() -> None:
    """A page reads the same from a pipe of any encoding, and a terminal obeys none of its texts."""
    strange = "\x1b[2J \x9b2J \r \x05 \u202egnihton\u2069 \u7bc0\u70b9 \U0001f600 \ud800"
    shown = USUAL.model_copy(update={"job": strange, "summary": strange})
    page = incident_page.page(shown)
    assert page.isascii()
    assert not set(map(chr, range(0x20))) - {"\n"} & set(page)
    assert "?[2J ?2J ? ? ?gnihton? \u7bc0\u70b9 \U0001f600 " in Reader(page).words


def test_thousands_of_ranks_have_a_short_name() -> None:
    """Every second rank of 10,000 makes a name of many thousand letters, which a list cuts."""
    name = f"ranks {','.join(map(str, range(0, 10_000, 2)))}"
    shown = picture(Lane(part=Part.RANKS, name=name, items=(item(0.1, 0.6, "stood"),)))
    assert len(incident_text.lines(shown, 80)) < 20
    rows = incident_page.page(shown).partition("<table>")[2]
    assert len(rows) < 1_000
    assert "ranks 0,2,4" in rows


async def test_the_newest_incident_is_shown_or_the_one_with_a_number(temporal: WorkflowEnvironment, tmp_path: Path) -> None:
    """A picture without the step logs of the ranks says so; wrong names, numbers and files are refused by name."""
    async with training(temporal, a_job()) as (world, _peer):
        code, words = await ended(await typed(world, "incident", world.job.id))
        assert (code, "has had no incident" in words) == (2, True), words
        await world.fault(sub_health())
        await world.incident()
        code, words = await ended(await typed(world, "incident", world.job.name, "--output", "json"))
        assert code == 0, words
        found = Picture.model_validate(json.loads(words))
        assert (found.number, found.outcome) == (1, Outcome.RECOVERED)
        assert "no step log" in found.missing[0]
        assert [one.name for one in found.lanes if one.part is Part.RANKS] == ["ranks 2-3", "other ranks"]
        plain = await begun(("incident", world.job.id, "1"), {**environment(world), "COLUMNS": "80", "NO_COLOR": "1"})
        code, words = await ended(plain)
        assert code == 0, words
        assert "\x1b" not in words
        assert "order: order hot switch" in words
        file = tmp_path / "incident.html"
        code, words = await ended(await typed(world, "incident", world.job.id, "--html", str(file)))
        assert code == 0, words
        assert "order hot switch" in Reader(file.read_text()).words
        for arguments, said in (
            (("nobody",), "'nobody' is not a registered job"),
            ((world.job.id, "7"), "has no incident 7, known are: 1"),
            ((world.job.id, "--html", str(tmp_path / "none" / "x.html")), "x.html cannot be written"),
        ):
            code, words = await ended(await typed(world, "incident", *arguments))
            assert (code, said in words) == (2, True), words
        await forget(world, ids.recovery_workflow(world.job, 1, Mode.HOT_SWITCH))
        code, words = await ended(await typed(world, "incident", world.job.id, "--output", "json"))
        assert code == 0, words
        left = Picture.model_validate(json.loads(words))
        assert left.missing[0].startswith("Temporal has no history of hot switch")
        assert {one.name for one in left.lanes} == {"decision", "mode", "phase", "ranks 2-3", "other ranks"}
        assert left.pause == found.pause


async def test_an_incident_that_waits_for_a_person_is_the_newest(temporal: WorkflowEnvironment) -> None:
    """An incident is shown before its first mode has begun. If the workflow of the job was terminated, it is not running."""
    job = a_job(approvals={Mode.HOT_SWITCH: Unanswered.DENY})
    async with training(temporal, job) as (world, _peer):
        await world.fault(sub_health())
        await world.settled(lambda status: status.state.question is not None)
        code, words = await ended(await typed(world, "incident", world.job.id, "--output", "json"))
        assert code == 0, words
        found = Picture.model_validate(json.loads(words))
        assert (found.number, found.outcome, found.pause) == (1, None, None)
        (decision,) = (one for one in found.lanes if one.name == "decision")
        running = [one.text for one in decision.items if one.running]
        assert sorted(running) == ["decides", "waits for a person (hot switch)"]
        await world.entity.terminate()
        code, words = await ended(await typed(world, "incident", world.job.id))
        assert (code, "keeps no record of incident 1 any more" in words) == (2, True), words


async def forget(world: Harness, workflow_id: str) -> None:
    """Deletes a workflow's history, as the end of its retention does, and waits until it is gone."""
    execution = WorkflowExecution(workflow_id=workflow_id)
    asked = DeleteWorkflowExecutionRequest(namespace=world.client.namespace, workflow_execution=execution)
    await world.client.workflow_service.delete_workflow_execution(asked)
    with pytest.raises(RPCError, match="not found"):
        await _described(world.client.get_workflow_handle(workflow_id))


async def _described(handle: WorkflowHandle[Any, Any]) -> None:
    """Describes a workflow again and again."""
    while True:
        await handle.describe()
