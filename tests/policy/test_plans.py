"""Problems of an upgrade plan, its forecast, and commands that a person may give it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.errors import BadInput
from rekindle.model.job import Job, JobId
from rekindle.model.links import NodeLinks, OnBackup
from rekindle.model.plan import (
    ENDS,
    MOST_JOBS,
    Control,
    JobMove,
    JobOnLeaf,
    Leaf,
    LeafView,
    Stage,
    SwitchPlan,
    Upgrade,
    Where,
    Word,
)
from rekindle.model.plan_file import parse
from rekindle.model.state import JobState, JobStatus
from rekindle.policy.detection.devices import DeviceOfRank
from rekindle.policy.operations import switch_upgrade

JOB = Job(id=JobId("job"), name="gpt", pods=2, ranks_per_pod=2)
ROWS = [DeviceOfRank(rank, rank // 2, f"node-{rank // 2}", str(rank % 2), "holder") for rank in range(4)]
FILE = """
apiVersion: rekindle.io/v1
kind: SwitchUpgrade
metadata: {name: tor-7}
spec:
  carries:
    first: {node-0: [0, 1], node-1: [0]}
    backup: {node-2: ["0"]}
  leaves:
    - {name: a, first: {node-0: [0, 1]}}
    - {name: b, first: {node-1: [0]}, backup: {node-2: [0]}}
"""


def links(node: str, *devices: str, backup: bool = False) -> NodeLinks:
    return NodeLinks(node=node, devices=devices, backup=backup)


def plan(*leaves: tuple[NodeLinks, ...], carries: tuple[NodeLinks, ...] | None = None) -> SwitchPlan:
    named = tuple(Leaf(name=name, links=leaf) for name, leaf in zip("abcd", leaves, strict=False))
    return SwitchPlan(switch="tor", leaves=named, carries=sum(leaves, ()) if carries is None else carries)


def status(*on_backup: OnBackup) -> JobStatus:
    return JobStatus(state=JobState.of(JOB).with_(links=on_backup))


def move(where: Where, job: str = "gpt", leaf: int = 0) -> JobMove:
    return JobMove(job_id=job, job=job, leaf=leaf, maintenance=f"link-failover/{job}", where=where)


def test_a_file_says_which_link_is_on_which_leaf() -> None:
    """Devices are numbers or texts."""
    read = parse(FILE)
    assert (read.switch, [leaf.name for leaf in read.leaves]) == ("tor-7", ["a", "b"])
    assert read.leaves[1].links == (links("node-1", "0"), links("node-2", "0", backup=True))
    assert switch_upgrade.problems(read) == ()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("kind: SwitchUpgrade", "kind: TrainingJob", "kind: "),
        ("carries:", "carriers:", "spec.carriers: unknown field, did you mean carries?"),
        ("{name: a, first:", "{first:", "spec.leaves.0.name: missing"),
        ("first: {node-0: [0, 1]}}", "first: {node-0: []}}", "spec.leaves.0.first.node-0: "),
        ("name: tor-7", "name: a b", "metadata.name: "),
        ("  leaves:", "  atOnce: 0\n  leaves:", "spec.atOnce: "),
        ("  leaves:", "  unmovable: perhaps\n  leaves:", "spec.unmovable: "),
        ("metadata: {", "metadata: [", "the plan is not YAML"),
        ("node-1: [0]}", "node-1: [0], node-1: [8]}", "line 7: 'node-1' is there twice, accepted is each key once"),
        ("node-1: [0]}", "node-1: [08]}", "spec.carries.first.node-1.0: is not accepted, write 8"),
    ],
)
def test_a_wrong_field_of_a_file_is_named(before: str, after: str, words: str) -> None:
    """The error names field or line, and what is accepted."""
    assert before in FILE
    with pytest.raises(BadInput) as refused:
        parse(FILE.replace(before, after, 1))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (plan(), "leaves: 0 leaves, accepted are 1 to 64"),
        (plan(()), "leaf a: empty"),
        (plan((links("n", "0"),), (links("n", "0"),)), "the first link of device 0 of n is on a and on b"),
        (plan((links("n", "0"), links("n", "0", backup=True))), "leaf a: carries both links of device 0 of n"),
        (plan((links("n", "0"),), carries=(links("n", "0", "1"),)), "the first link of device 1 of n is on no leaf"),
        (plan((links("n", "0"),), carries=()), "the first link of device 0 of n is on a, and `carries` has it not"),
        (plan(*[tuple(links(f"n{i}-{j}", "0") for j in range(80)) for i in range(4)]), "at most 192 entries"),
        (plan(tuple(links(f"n{i}", *map(str, range(32))) for i in range(33))), "at most 1024 links"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(wrong: SwitchPlan, words: str) -> None:
    """The problem names what is wrong, and where."""
    assert any(words in problem for problem in switch_upgrade.problems(wrong)), switch_upgrade.problems(wrong)


def test_both_links_of_a_device_may_be_on_two_leaves() -> None:
    """The two leaves are upgraded one after the other, so that the device always has a link."""
    assert switch_upgrade.problems(plan((links("n", "0"),), (links("n", "0", backup=True),))) == ()


def test_a_job_leaves_with_the_devices_whose_first_link_is_on_the_leaf() -> None:
    """Devices that are on their backup links already stay there, and the text names the maintenance that moved them."""
    away = OnBackup(ranks=(1,), maintenance="link-failover/other")
    found = switch_upgrade.on_leaf(status(away), ROWS, Leaf(name="a", links=(links("node-0", "0", "1"), links("node-8", "0"))))
    assert found
    assert [(one.node, one.devices, one.ranks, one.backup) for one in found.move] == [("node-0", ("0",), ((0,),), True)]
    assert found.info == "rank 1 on the backup link already, by link-failover/other"
    assert switch_upgrade.on_leaf(status(), ROWS, Leaf(name="b", links=(links("node-8", "0"),))) is None


def test_a_job_whose_devices_use_the_backup_links_of_a_leaf_stands_in_the_way() -> None:
    """The maintenance that moved the devices moves them back, since their first links may be under maintenance. Devices that do
    not use the backup links of the leaf have nothing to do."""
    leaf = Leaf(name="a", links=(links("node-0", "0", "1", backup=True),))
    found = switch_upgrade.on_leaf(status(OnBackup(ranks=(1,))), ROWS, leaf)
    assert found
    assert (found.move, found.problem) == ((), "rank 1 on backup links of this leaf, moved by a client: switch them back")
    idle = switch_upgrade.on_leaf(status(), ROWS, leaf)
    assert idle
    assert switch_upgrade.to_move(LeafView(jobs=(idle,)), Upgrade()) == []


def test_a_forecast_names_every_reason_unless_such_jobs_are_skipped() -> None:
    """The plan may say that unmovable jobs are skipped. Unknown nodes are refused all the same."""
    stuck = JobOnLeaf(job_id="job", job="gpt", problem="no training step was completed yet")
    seen = [switch_upgrade.view([stuck], ["node node-9"])]
    asked = plan((links("node-0", "0"),))
    assert switch_upgrade.forecast(asked, seen).refused == (
        "leaf a: node node-9 is not known",
        "leaf a: job gpt: no training step was completed yet",
    )
    skipping = asked.model_copy(update={"skip_unmovable": True})
    assert switch_upgrade.forecast(skipping, seen).refused == ("leaf a: node node-9 is not known",)


def test_a_leaf_with_too_many_jobs_is_refused() -> None:
    """The view of all jobs of a leaf has to fit into one answer."""
    crowd = [JobOnLeaf(job_id=f"job-{number}", job="gpt") for number in range(MOST_JOBS + 1)]
    assert switch_upgrade.view(crowd, ()).problems == ("65 jobs are on the leaf, accepted are at most 64: divide it",)


def test_a_rollback_returns_the_last_one_first_also_what_was_left_before() -> None:
    """A job that was never moved is not returned."""
    moves = (move(Where.LEFT, "one"), move(Where.ON_BACKUP, "two", 1), move(Where.NOT_MOVED, "three", 1))
    known = switch_upgrade.told(Upgrade(stage=Stage.FAILING_OVER, leaves=("a", "b"), leaf=1, moves=moves), Word.ROLLBACK)
    assert [one.job for one in switch_upgrade.to_return(known)] == ["two", "one"]


MOVES = st.lists(st.builds(move, st.sampled_from(Where), st.sampled_from("xyz"), st.integers(0, 1)), max_size=4)
KNOWN = st.builds(
    Upgrade,
    stage=st.sampled_from(Stage),
    leaf=st.integers(0, 1),
    leaves=st.just(("a", "b")),
    moves=MOVES.map(tuple),
    stopped=st.booleans(),
)


@given(known=KNOWN, word=st.sampled_from(Word))
def test_no_word_forgets_a_job_that_is_on_its_backup_link(known: Upgrade, word: Word) -> None:
    """Whatever a person says, and when: it is still switched back, or remembered as left."""
    if switch_upgrade.may_not(known, Control(word=word)):
        return
    there = {Where.ON_BACKUP, Where.NOT_RETURNED, Where.RETURNING, Where.LEFT}
    after = switch_upgrade.told(known, word)
    assert [one.job for one in after.moves if one.where in there] == [one.job for one in known.moves if one.where in there]


@given(known=KNOWN)
def test_whoever_stands_can_be_told_how_to_go_on(known: Upgrade) -> None:
    """At least one word is accepted, and the sentence that people read names it."""
    if known.stage in (*ENDS, Stage.CHECKING) or not (switch_upgrade.stands(known) or known.stage is Stage.FREE):
        return
    allowed = {word for word in Word if not switch_upgrade.may_not(known, Control(word=word))}
    named = {word for word in Word if word in switch_upgrade.now(known).split("waits for")[-1].replace(",", " ").split()}
    assert named
    assert named - {Word.ROLLBACK} <= allowed
