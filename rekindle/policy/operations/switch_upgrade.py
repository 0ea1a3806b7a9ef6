"""Upgrade of a switch: errors of a plan, its forecast, the jobs to move next, and the commands that are accepted. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rekindle.model.bounds import few, note, numbered
from rekindle.model.incident import ModeRequest
from rekindle.model.links import MOST_NODES, NodeLinks, Placed, describe
from rekindle.model.mode import Mode
from rekindle.model.plan import (
    ASKING,
    ENDS,
    KEPT_ROWS,
    MOST_ENTRIES,
    MOST_JOBS,
    MOST_LEAVES,
    MOST_LEFT,
    MOST_LINKS,
    Control,
    Forecast,
    ForecastRow,
    JobMove,
    JobOnLeaf,
    Leaf,
    LeafDone,
    LeafView,
    Stage,
    SwitchPlan,
    Upgrade,
    Where,
    Word,
)
from rekindle.model.state import JobStatus
from rekindle.policy.detection.devices import DeviceOfRank
from rekindle.policy.modes import requests
from rekindle.policy.operations import links

TOLD = 40
"""Maximum number of reasons in a refusal."""

Link = tuple[str, str, bool]
"""Node, device, and whether the link is the backup link."""


def _links(entries: Iterable[NodeLinks]) -> list[Link]:
    return [(one.node, device, one.backup) for one in entries for device in one.devices]


def _named(link: Link) -> str:
    node, device, backup = link
    return f"the {'backup' if backup else 'first'} link of device {device} of {node}"


# ---- errors of a plan, regardless of jobs


def problems(plan: SwitchPlan) -> tuple[str, ...]:
    """Returns the errors of a plan. Empty: its forecast can be computed."""
    return tuple([*_size(plan), *_leaves(plan), *_cabling(plan)][:TOLD])


def _size(plan: SwitchPlan) -> Iterator[str]:
    if not 1 <= len(plan.leaves) <= MOST_LEAVES:
        yield f"leaves: {len(plan.leaves)} leaves, accepted are 1 to {MOST_LEAVES}"
    if sum(len(leaf.links) for leaf in plan.leaves) > MOST_ENTRIES or len(plan.carries) > MOST_ENTRIES:
        yield f"leaves: at most {MOST_ENTRIES} entries of nodes are accepted in a plan: divide it"
    if max(sum(len(_links(leaf.links)) for leaf in plan.leaves), len(_links(plan.carries))) > MOST_LINKS:
        yield f"leaves: at most {MOST_LINKS} links are accepted in a plan: divide it"
    if len(plan.jobs) > MOST_JOBS:
        yield f"jobs: {len(plan.jobs)} jobs, accepted are at most {MOST_JOBS}, or none for all"


def _leaves(plan: SwitchPlan) -> Iterator[str]:
    for name, count in Counter(leaf.name for leaf in plan.leaves).items():
        if count > 1:
            yield f"leaves: {count} leaves are named {name}, accepted is each name once"
    for leaf in plan.leaves:
        if not leaf.links:
            yield f"leaf {leaf.name}: empty, it must carry a link"
        if len({one.node for one in leaf.links}) > MOST_NODES:
            yield f"leaf {leaf.name}: more than {MOST_NODES} nodes"
        own = set(_links(leaf.links))
        for node, device in sorted({(node, device) for node, device, _ in own}):
            if {(node, device, False), (node, device, True)} <= own:
                yield f"leaf {leaf.name}: carries both links of device {device} of {node}, which would have none meanwhile"


def _cabling(plan: SwitchPlan) -> Iterator[str]:
    where: dict[Link, list[str]] = {}
    for leaf in plan.leaves:
        for link in _links(leaf.links):
            where.setdefault(link, []).append(leaf.name)
    carried = dict.fromkeys(_links(plan.carries))
    for link, leaves in where.items():
        if len(leaves) > 1:
            yield f"{_named(link)} is on {' and on '.join(leaves)}, accepted is each link once"
        if link not in carried:
            yield f"{_named(link)} is on {leaves[0]}, and `carries` has it not"
    for link in carried:
        if link not in where:
            yield f"{_named(link)} is on no leaf: the leaves do not cover the switch"


# ---- jobs on a leaf


def on_leaf(status: JobStatus, rows: Sequence[DeviceOfRank], leaf: Leaf) -> JobOnLeaf | None:
    """Returns the present state of a job on a leaf. None: the job has no device there.

    Args:
        rows: all devices of the job.
    """
    state, on = status.state, set(_links(leaf.links))
    away = {rank: one.maintenance for one in state.links for rank in one.ranks}
    firsts = [row for row in rows if (row.node, row.device, False) in on]
    backups = [row for row in rows if (row.node, row.device, True) in on]
    if not (firsts or backups):
        return None
    move = _placed(row for row in firsts if row.rank not in away)
    gone = sorted({row.rank for row in firsts if row.rank in away})
    held = sorted({row.rank for row in backups if row.rank in away})
    request = ModeRequest(mode=Mode.LINK_SWITCH, links=move)
    problem = requests.refused(state, request) if move and not status.running else ""
    if held:
        problem = (
            f"{numbered('rank', held)} on backup links of this leaf, moved by {away[held[0]] or 'a client'}: switch them back"
        )
    return JobOnLeaf(
        job_id=state.job.id,
        job=state.job.name,
        move=move,
        busy=status.running or "",
        problem=problem,
        info=f"{numbered('rank', gone)} on the backup link already, by {away[gone[0]] or 'a client'}" if gone else "",
    )


def _placed(rows: Iterable[DeviceOfRank]) -> tuple[Placed, ...]:
    listed = sorted(rows, key=lambda row: (row.node, row.device, row.rank))
    found = []
    for node, here in groupby(listed, key=lambda row: row.node):
        devices = tuple(dict.fromkeys(row.device for row in here))
        found.append(NodeLinks(node=node, devices=devices, backup=True))
    return links.resolved(listed, found).links


def view(jobs: Sequence[JobOnLeaf], unknown: Iterable[str]) -> LeafView:
    """Returns the jobs on a leaf, as many as fit into one answer, and what is wrong."""
    wrong = [f"{name} is not known" for name in unknown]
    if len(jobs) > MOST_JOBS:
        wrong.append(f"{len(jobs)} jobs are on the leaf, accepted are at most {MOST_JOBS}: divide it")
    if sum(len(job.move) for job in jobs) > MOST_ENTRIES:
        wrong.append(f"its jobs have more than {MOST_ENTRIES} places on nodes: divide the leaf")
        jobs = ()
    return LeafView(jobs=tuple(jobs[:MOST_JOBS]), problems=tuple(wrong[:TOLD]))


# ---- forecast


def forecast(plan: SwitchPlan, views: Sequence[LeafView]) -> Forecast:
    """Returns what the plan would do with these leaves, and why it is refused."""
    rows = [_row(leaf, job) for leaf, seen in zip(plan.leaves, views, strict=True) for job in seen.jobs]
    refused = [f"leaf {leaf.name}: {why}" for leaf, seen in zip(plan.leaves, views, strict=True) for why in seen.problems]
    if not plan.skip_unmovable:
        refused += [f"leaf {row.leaf}: job {row.job}: {row.problem}" for row in rows if row.problem]
    return Forecast(
        leaves=tuple(leaf.name for leaf in plan.leaves),
        rows=tuple(rows[:KEPT_ROWS]),
        more=max(0, len(rows) - KEPT_ROWS),
        refused=tuple(dict.fromkeys(refused))[:TOLD],
    )


def _row(leaf: Leaf, job: JobOnLeaf) -> ForecastRow:
    ranks = [rank for place in job.move for of in place.ranks for rank in of]
    info = "; ".join(part for part in (job.info, job.busy and f"busy with {job.busy}, waited for") if part)
    devices = few([f"{place.node} {','.join(place.devices)}" for place in job.move], between="; ")
    named = numbered("rank", sorted(set(ranks))) if ranks else ""
    return ForecastRow(leaf=leaf.name, job=job.job, devices=devices, ranks=named, problem=job.problem, info=info)


# ---- next actions


def begun(plan: SwitchPlan, known: Upgrade) -> Upgrade:
    """Returns the upgrade after a successful check. If it was rolled back meanwhile, its stage stays."""
    stage = Stage.FAILING_OVER if known.stage is Stage.CHECKING else known.stage
    return known.with_(stage=stage, leaves=tuple(leaf.name for leaf in plan.leaves))


def stands(known: Upgrade) -> bool:
    """Returns whether nothing new is started until a person sends a command."""
    return known.stopped or bool(known.asking)


def to_move(seen: LeafView, known: Upgrade) -> list[JobOnLeaf]:
    """Returns the jobs that still have to leave the leaf. Skipped jobs are left out. A job that came back with new pods is
    included."""
    left = {move.job_id for move in known.moves if move.where is Where.SKIPPED}
    return [job for job in seen.jobs if (job.move or job.problem) and job.job_id not in left]


def newcomers(seen: LeafView, known: Upgrade) -> list[JobOnLeaf]:
    """Returns the jobs that can leave the leaf now. Others, such as a job that has just begun, are looked at again later."""
    come = [job for job in to_move(seen, known) if not (job.problem or job.busy)]
    return come[: max(0, MOST_JOBS + MOST_LEFT - len(known.moves))]


def came_back(seen: LeafView, known: Upgrade) -> bool:
    """Returns whether a job that has left the leaf uses it again."""
    left = {move.job_id for move in known.moves if move.where is Where.ON_BACKUP}
    return any(job.job_id in left for job in to_move(seen, known))


def first_move(job: JobOnLeaf, leaf: int) -> JobMove:
    return JobMove(job_id=job.job_id, job=job.job, leaf=leaf, maintenance=job.maintenance, what=describe(job.move))


def put(known: Upgrade, move: JobMove) -> Upgrade:
    """Returns the upgrade with this move, which replaces an earlier one of the same job and maintenance."""
    return known.with_(moves=(*without(known, move).moves, move))


def without(known: Upgrade, move: JobMove) -> Upgrade:
    """Returns the upgrade without this move. Used for a job that is still on the leaf and needs no decision. Either no job leaves
    the leaf any more, or the job is found there again when the upgrade is resumed."""
    return known.with_(moves=tuple(one for one in known.moves if _key(one) != _key(move)))


def _key(move: JobMove) -> tuple[str, str]:
    return move.job_id, move.maintenance


def without_gone(known: Upgrade, seen: LeafView) -> Upgrade:
    """Returns the upgrade without failed moves of jobs that have ended or no longer have a device on the leaf. They need no
    decision."""
    here = {job.job_id for job in seen.jobs if job.move or job.problem}
    return known.with_(moves=tuple(m for m in known.moves if m.where is not Where.NOT_MOVED or m.job_id in here))


def to_return(known: Upgrade) -> list[JobMove]:
    """Returns the moves to revert now: those of this leaf, or in a rollback all, the last one first."""
    if known.stage is Stage.ROLLING_BACK:
        return [move for move in reversed(known.moves) if move.where is Where.ON_BACKUP]
    return [move for move in known.moves if move.where is Where.ON_BACKUP and move.leaf == known.leaf]


def leaf_done(known: Upgrade) -> Upgrade:
    """Returns the upgrade at the next leaf. Jobs that were left on their backup links are kept."""
    count = Counter(move.where for move in known.moves if move.leaf == known.leaf)
    ended = LeafDone(name=known.leaf_name, returned=count[Where.RETURNED], skipped=count[Where.SKIPPED], left=count[Where.LEFT])
    last = known.leaf + 1 == len(known.leaves)
    return known.with_(
        done=(*known.done, ended),
        moves=tuple(move for move in known.moves if move.where is Where.LEFT),
        leaf=known.leaf if last else known.leaf + 1,
        stage=Stage.DONE if last else Stage.FAILING_OVER,
    )


# ---- commands of people


def may_not(known: Upgrade, control: Control) -> str:
    """Returns why the command is refused now. Empty: it is accepted."""
    word = control.word
    if known.stage in ENDS:
        return f"the upgrade is over: {known.stage}"
    if known.stage is Stage.CHECKING and word in (Word.PROCEED, Word.RETRY, Word.SKIP):
        return "the plan is being checked"
    match word:
        case Word.PROCEED:
            return _may_not_proceed(known, control.leaf)
        case Word.RETRY | Word.SKIP:
            return _may_not_decide(known, word)
    already = {
        Word.STOP: known.stopped and "it is stopped already",
        Word.RESUME: not known.stopped and "it is not stopped",
        Word.ROLLBACK: known.stage is Stage.ROLLING_BACK and "it is being rolled back already",
    }
    return already[word] or ""


def _may_not_proceed(known: Upgrade, leaf: str) -> str:
    if known.stopped:
        return "it is stopped: resume it first"
    if known.asking:
        return f"job {known.asking[0].job} stands in the way: {known.asking[0].reason}: retry, skip or roll back"
    if known.stage is not Stage.FREE:
        return f"it does not wait for that: {known.stage}"
    return f"leaf {leaf} is not free, leaf {known.leaf_name} is" if leaf not in ("", known.leaf_name) else ""


def _may_not_decide(known: Upgrade, word: Word) -> str:
    if not known.asking:
        return f"nothing is to be decided: no job of leaf {known.leaf_name} stands in the way"
    left = [move for move in known.moves if move.where in (Where.LEFT, Where.NOT_RETURNED)]
    if word is Word.SKIP and len(left) > MOST_LEFT:
        return f"more than {MOST_LEFT} jobs would be left on their backup links: roll back, or retry"
    return ""


def told(known: Upgrade, word: Word) -> Upgrade:
    """Returns the upgrade after a command that was accepted."""
    match word:
        case Word.STOP | Word.RESUME:
            return known.with_(stopped=word is Word.STOP)
        case Word.PROCEED:
            return known.with_(stage=Stage.SWITCHING_BACK)
        case Word.RETRY:
            return known.with_(moves=tuple(_again(known.moves)))
        case Word.SKIP:
            return known.with_(moves=tuple(_skipped(move) for move in known.moves))
        case Word.ROLLBACK:
            moves = (move for move in known.moves if move.where is not Where.NOT_MOVED)
            back = tuple(_where(move, Where.ON_BACKUP) if move.where in (*ASKING, Where.LEFT) else move for move in moves)
            return known.with_(stage=Stage.ROLLING_BACK, stopped=False, moves=back)


def _again(moves: Iterable[JobMove]) -> Iterator[JobMove]:
    for move in moves:
        if move.where is Where.NOT_RETURNED:
            yield _where(move, Where.ON_BACKUP)
        elif move.where is not Where.NOT_MOVED:  # the job is found on the leaf again
            yield move


def _skipped(move: JobMove) -> JobMove:
    after = {Where.NOT_MOVED: Where.SKIPPED, Where.NOT_RETURNED: Where.LEFT}
    return _where(move, after.get(move.where, move.where))


def _where(move: JobMove, where: Where) -> JobMove:
    return move.model_copy(update={"where": where})


def now(known: Upgrade) -> str:
    """Returns a sentence about what the upgrade does or waits for."""
    if known.stage in (*ENDS, Stage.CHECKING):
        return known.stage.value
    place = "" if known.stage is Stage.ROLLING_BACK else f"leaf {known.leaf_name} ({known.leaf + 1} of {len(known.leaves)}): "
    if known.asking:
        first = known.asking[0]
        waits = f"job {first.job} is {first.where}: {first.reason}; waits for retry, skip or rollback"
        return note(f"{place}{'stopped, ' if known.stopped else ''}{waits}")
    if known.stopped:
        return f"{place}stopped while {known.stage}; waits for resume or rollback"
    if known.stage is Stage.FREE:
        return f"{place}no job uses it, upgrade it now; waits for proceed"
    return f"{place}{known.stage}"
