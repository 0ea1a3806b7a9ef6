"""Printed output is complete: nothing is cut or swallowed, and no wrong cause is given."""

from unittest.mock import AsyncMock

import pytest

from rekindle.cli import versions
from rekindle.cli.jobs import health
from rekindle.cli.output import hint, print_columns, show_status, show_verdict
from rekindle.cli.terminal import complain, console, problems
from rekindle.deployment import Deployment, Version
from rekindle.model.cluster import Condition, Node, NodeSpec, NodeStatus, ObjectMeta
from rekindle.model.job import Job, JobId
from rekindle.model.keys import HEALTH
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Phase
from rekindle.model.state import JobState, JobStatus
from rekindle.model.verdict import Verdict

STUCK = "resuming fails: the training side reports 406 no step was completed within 60 s"


def verdict(reason: str, mode: Mode = Mode.HOT_SWITCH) -> Verdict:
    return Verdict(
        mode=mode, outcome=Outcome.ESCALATE, reason=reason, phases=(Phase(name="p", seconds=1.0, note="offers [exit]"),)
    )


def test_names_in_a_table_are_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of 60 letters is printed whole, in one line, on a terminal of 20 columns: it is typed in the next command."""
    monkeypatch.setattr(console, "_width", 20)
    name = "gpt-worker-1-hot-0001-hot-0002-and-some-more-letters-of-it"
    with console.capture() as page:
        print_columns(("node", "pods"), [("node-0", name)])
    assert page.get().splitlines() == ["node    pods", f"node-0  {name}"]


def test_a_row_of_a_table_is_one_line() -> None:
    """A person's note on a node may have several lines, which looked like other nodes; Chinese characters are twice as wide."""
    with console.capture() as page:
        print_columns(("node", "says", "pods"), [("node-0", "well\nnode-1  sick", "-"), ("node-2", "风扇", "-")])
    assert page.get().splitlines() == [
        "node    says               pods",
        "node-0  well node-1  sick  -",
        "node-2  风扇               -",
    ]


async def test_versions_are_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are printed whole: they are typed in `rekindle versions use`, and an installation may give them long names.
    Records of nodes and the like are not counted as recoveries."""
    monkeypatch.setattr(console, "_width", 20)
    version = Version(build_id="rekindle-control-plane-0.1.0-5eb5607ce6a8", current=True)
    monkeypatch.setattr(versions, "control_plane", AsyncMock())
    monkeypatch.setattr(versions, "read_deployment", AsyncMock(return_value=Deployment(versions=(version,))))
    monkeypatch.setattr(
        versions, "count_open", AsyncMock(side_effect=lambda *asked: {"job/": 3, "recovery/": 1}.get(asked[-1], 6))
    )
    with console.capture() as page:
        await versions.show()
    assert page.get().splitlines()[1].split() == [version.build_id, "current", "none", "3", "1", "2"]


def test_brackets_in_a_message_are_no_markup() -> None:
    """An extra of a distribution, a list or a key in brackets is printed."""
    with problems.capture() as said:
        complain(ValueError('pip install "rekindle-recovery[demo]"'))
    assert 'error: pip install "rekindle-recovery[demo]"' in said.get()
    with console.capture() as page:
        show_verdict(verdict("the training side offers [exit]"))
    assert page.get().count("offers [exit]") == 2


def test_what_a_pod_has_said_gives_the_terminal_no_orders() -> None:
    """A pod's last message clears no screen, fills no clipboard, asks for no answer, and turns no text of ours round."""
    words = "\x1b[2J\x1b]52;c;cm0gLXJm\x07\x9b2J\x05\x0e\u202e"
    state = JobState.of(Job(id=JobId("j"), name="gpt", pods=2)).with_(problems=(words,))
    with console.capture() as page, problems.capture() as said:
        show_status(JobStatus(state=state))
        print_columns(("node", "says"), [("node-0", words)])
        show_verdict(verdict(words))
        complain(ValueError(words))
    for text in (page.get(), said.get()):
        assert "2J" in text
        assert not {"\x1b", "\x07", "\x9b", "\x05", "\x0e", "\u202e"} & set(text)


def test_a_lost_manager_is_shown_on_the_page_of_its_job() -> None:
    """Training continues without it, and nothing else shows that no fault of a rank would be reported."""
    state = JobState.of(Job(id=JobId("j"), name="gpt", pods=2))
    for lost, lines in (("", 0), ("manager [2] is another process", 1)):
        with console.capture() as page:
            show_status(JobStatus(state=state.with_(manager_lost=lost)))
        assert page.get().count(f"its manager was lost: {lost}") == lines


def test_a_resumption_without_a_step_hints_at_what_was_not_made_again() -> None:
    """A hot switch whose ranks never completed a step is shown with the usual cause. Other ends are shown without it."""
    with console.capture() as page:
        show_verdict(verdict(STUCK))
    assert "on_rebuild" in page.get()
    assert "between session() and its loop" in " ".join(page.get().split())
    assert not hint(verdict("resuming fails: the training side reports 406 not all ranks are there"))
    assert not hint(verdict(STUCK, Mode.JOB_RESCHEDULING))


@pytest.mark.parametrize(
    ("marks", "sick", "cordoned", "words"),
    [
        ({}, False, False, "healthy"),
        ({HEALTH: "sick: fan 3"}, False, False, "a person says: sick: fan 3"),
        ({HEALTH: "well"}, True, True, "sub-healthy: XID79 a card fell off; a person says: well; cordoned"),
    ],
)
def test_a_node_of_the_local_cluster_is_shown_with_all_that_is_said_of_it(
    marks: dict[str, str], sick: bool, cordoned: bool, words: str
) -> None:
    """A node is shown with its conditions, with the mark that a person has set on it, and with its cordon."""
    conditions = (Condition(type="SubHealthy", status="True", reason="XID79", message="a card fell off"),) if sick else ()
    metadata = ObjectMeta(name="node-1", annotations=marks)
    status = NodeStatus(accelerators=8, conditions=conditions)
    assert health(Node(metadata=metadata, spec=NodeSpec(unschedulable=cordoned), status=status)) == words
