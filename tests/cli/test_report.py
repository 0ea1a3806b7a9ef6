"""Forms in which `rekindle report` and `rekindle top` show what they know."""

from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from rekindle.cli import report, report_page, top
from rekindle.cli.terminal import console
from rekindle.cli.top import Line, Sort
from rekindle.client import Accounted, JobRow, Rekindle
from rekindle.errors import BadInput
from rekindle.model.elastic import Small
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.state import Downgrade, JobState
from rekindle.policy.account import ledger, summary
from rekindle.policy.account.summary import Summary
from tests.policy.test_account import ZERO, restarted_job

HOSTILE = "<script>alert(1)</script>[bold]"


class Page(HTMLParser):
    """Tags, links and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture
def job() -> Summary:
    account = ledger.as_of(restarted_job(), ZERO + 500, None)
    (row,) = account.rows
    return summary.of_job(
        HOSTILE, "id", account.model_copy(update={"rows": (row.model_copy(update={"node": HOSTILE}),)}), price=1
    )


def test_a_page_is_one_file_without_scripts(job: Summary) -> None:
    """Names that a tenant has chosen are text, and nothing is loaded from elsewhere."""
    page = Page(report_page.page([job, job]))
    assert "script" not in page.tags
    assert page.addresses == []
    assert page.tags.count("svg") == 2
    assert page.text.count(HOSTILE) == 4, "its name twice in headings, in the list of jobs, and its node in two tables"


def test_text_and_page_have_the_same_numbers(job: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    """Buckets, times to recovery and costs are printed in both."""
    report._print([job], report.Shape.TEXT)
    text, page = capsys.readouterr().out, "".join(Page(report_page.page([job])).text)
    assert HOSTILE in text
    for share in job.buckets:
        assert f"{share.seconds:.3f} s" in text
        assert f"{share.seconds:.3f} s" in page
    for words in ("67.50%", "35.000 s", "26.000 s", "50.000", "With restarts alone goodput would be 67.50%"):
        assert words.lower() in text.lower()
        assert words in page


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"price": 1e300}, r"--price: 1e\+300 is not accepted: a number from 0 to 1000000000"),
        ({"price": float("nan")}, "--price: nan is not accepted"),
        ({"price": -1.0}, "--price: -1.0 is not accepted"),
    ],
    ids=str,
)
async def test_prices_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    """A price of which no sum could be printed is refused before anything is asked."""
    with pytest.raises(BadInput, match=words):
        await report.report("gpt", **options)


def test_the_live_view_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Long names and notes are cut; markup and line breaks in them are text."""
    monkeypatch.setattr(console, "width", 80)
    lines = [
        Line(
            name="n" * 60, id="1", state="recovering", recovery=f"hot switch: {HOSTILE}" + "x" * 90, step=10**9, step_seconds=0.25
        ),
        Line(name="gpt", id="2", state="training", goodput=0.987, standbys="1/1", note="two\nlines"),
    ]
    top._show(lines, 3)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 6
    assert max(map(len, printed)) <= 80
    assert "1000000000" in printed[1]
    assert "250 ms" in printed[1]
    assert printed[2].strip().startswith(f"hot switch: {HOSTILE}x")
    assert "98.7%" in printed[3]
    assert "1/1" in printed[3]
    assert printed[4].strip() == "two lines"
    assert printed[5] == "3 further jobs are not shown"


def test_the_live_view_is_one_line_for_a_name_and_tells_jobs_of_one_name_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """A name with line breaks is one line. Jobs of one name are shown with the ids that other commands accept."""
    lines = [Line(name="a\nb\u2028c", id="1", state="training"), *(Line(name="gpt", id=one, state="training") for one in "23")]
    top._show(lines, 0)
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert printed[1].startswith("a b c  training")
    assert [printed[3], printed[5]] == ["id 2", "id 3"]
    assert len(printed) == 6


@pytest.mark.parametrize(("room", "jobs", "hidden"), [(4, 2, "5"), (5, 3, "4"), (6, 4, "3"), (100, 5, "2")])
def test_the_live_view_is_no_higher_than_the_terminal(
    capsys: pytest.CaptureFixture[str], room: int, jobs: int, hidden: str
) -> None:
    """Jobs that need attention come first, and would be the ones that are out of sight."""
    lines = [Line(name=f"job-{number}", id="1", state="training", note="" if number % 2 else "slow") for number in range(5)]
    top._show(lines, 2, room)
    printed = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("job-") for line in printed) == jobs
    assert printed[-1] == f"{hidden} further jobs are not shown"
    assert len(printed) - 2 <= room


class Known(Rekindle):
    """Knows one job, whose first workflow was lost."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    async def jobs(self, *, ended: bool = False, name: str = "") -> list[JobRow]:
        row = JobRow(id="1", run="new", name="gpt", phase="training", since=datetime.fromtimestamp(ZERO, UTC))
        return [row, row.model_copy(update={"run": "lost", "phase": "ended", "until": row.since})]

    async def account(self, job: str, run: str | None = None) -> Accounted:
        self.asked.append(run)
        return Accounted(name="gpt", id=job, account=restarted_job())


async def test_each_run_of_a_job_is_asked_for_its_own_time() -> None:
    """Temporal keeps a lost workflow beside the newer one, which has the same id and does not know its time."""
    rekindle = Known()
    assert [one.id for one in await report._of_all_jobs(rekindle, 0.0)] == ["1", "1"]
    assert rekindle.asked == ["new", "lost"]
    assert len(await report._of_all_jobs(rekindle, ZERO + 1.0)) == 1


async def test_a_name_that_is_empty_is_that_of_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of the shell is not set: a report of all jobs would pass for one of that job."""
    rekindle = Known()

    async def control_plane() -> Known:
        return rekindle

    monkeypatch.setattr(report, "control_plane", control_plane)
    await report.report("")
    assert rekindle.asked == [None]


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1_800), ("1h30m", 5_400), ("0.5d", 43_200), ("800000d", 69_120_000_000)])
def test_times_before_now_are_read(text: str, seconds: float) -> None:
    """A time may have several units, and may be longer than there are calendars."""
    assert report._seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "0s", "-1d", "1d ", "1d,2h", "1e9d", "\u0663d", "soon", "9" * 5_000 + "d"])
def test_other_times_are_refused_with_what_is_accepted(text: str) -> None:
    """The message names the option, and says what it accepts."""
    with pytest.raises(BadInput, match=r"--since: .* is not accepted: a time before now, such as 7d, 12h or 30m"):
        report._seconds(text)


def test_the_live_view_is_sorted_as_asked() -> None:
    """Jobs of which the value is unknown come last."""
    lines = [
        Line(name="b", id="1", state="training", goodput=0.5, step_seconds=1),
        Line(name="c", id="2", state="starting"),
        Line(name="a", id="3", state="training", goodput=0.9, step_seconds=2),
    ]
    names = {sort: "".join(line.name for line in top._sorted(lines, sort)) for sort in Sort}
    assert names == {Sort.STATE: "bca", Sort.NAME: "abc", Sort.GOODPUT: "bac", Sort.STEP_TIME: "abc"}


def test_a_small_job_shows_its_problem_as_well() -> None:
    """The size of a job is no reason to hide that its cluster cannot be read, or that sub-health is ignored."""
    job = Job(id=JobId("gpt"), name="gpt", pods=4, ranks_per_pod=1)
    small = Small(since=datetime(2026, 11, 30, tzinfo=UTC), missing=(2,))
    state = JobState(job=job, small=small, problems=("the cluster cannot be read", "and more"))
    size, problem = top._note(state).split("; ")
    assert (size.startswith("3 of 4 replicas, since "), problem) == (True, "the cluster cannot be read")
    ignored = state.with_(downgrade=Downgrade(reason="no spare", since=small.since, before=SubHealthStrategy.HOT_SWITCH))
    assert top._note(ignored).endswith("; sub-health ignored: no spare")
    assert top._note(ignored.with_(small=None)) == "sub-health ignored: no spare"
