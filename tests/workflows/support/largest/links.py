"""Largest values of link maintenances and switch upgrades."""

from typing import Any

from rekindle.model.links import MOST_NODES, MOST_ON_BACKUP, NodeLinks, Placed
from rekindle.model.maintenance import KEPT_MOVES, FailoverRequest, Move
from rekindle.model.plan import (
    KEPT_ROWS,
    MOST_ENTRIES,
    MOST_JOBS,
    MOST_LEAVES,
    MOST_LEFT,
    MOST_LINKS,
    Control,
    FailOver,
    Forecast,
    ForecastRow,
    JobMove,
    JobOnLeaf,
    Leaf,
    LeafDone,
    LeafView,
    MoveBack,
    Moved,
    SurveyLeafRequest,
    SwitchPlan,
    Upgrade,
    UpgradeRequest,
    Where,
    Word,
)
from rekindle.policy.operations.switch_upgrade import TOLD
from tests.workflows.support.largest.common import NOTE, NOW, TEXT, a_name

MOST_MOVES = MOST_JOBS + MOST_LEFT
"""Largest number of moves: jobs of one leaf, and jobs that were left on their backup links before."""


LINKS = tuple(
    NodeLinks(node=a_name(number), devices=tuple(f"{device:016}" for device in range(MOST_ON_BACKUP // MOST_NODES)), backup=True)
    for number in range(MOST_NODES)
)


PLACED = tuple(
    Placed(
        node=one.node,
        devices=one.devices,
        backup=True,
        ranks=tuple((2 * rank,) for rank in range(place, place + len(one.devices))),
    )
    for place, one in enumerate(LINKS)
)


EVERY_SECOND = tuple(range(0, 2 * MOST_ON_BACKUP, 2))


def leaves(count: int) -> tuple[Leaf, ...]:
    """Returns the leaves of a plan, with as many nodes and links as it may have."""
    each = MOST_LINKS // MOST_ENTRIES
    nodes = [
        NodeLinks(node=a_name(number), devices=tuple(f"{device:016}" for device in range(each)), backup=False)
        for number in range(MOST_ENTRIES)
    ]
    size = MOST_ENTRIES // count
    return tuple(Leaf(name=NOTE, links=tuple(nodes[number * size : (number + 1) * size])) for number in range(count))


def upgrades(request: FailoverRequest) -> list[Any]:
    """Returns the arguments and results of a switch upgrade, each as large as possible."""
    one_leaf = leaves(2)[0]
    entries = sum((leaf.links for leaf in leaves(MOST_LEAVES)), ())
    move = JobMove(job_id="u" * 36, job=a_name(0), leaf=0, maintenance=TEXT[:800], where=Where.LEFT, what=NOTE, reason=NOTE)
    note = Move(at=NOW, what=NOTE)
    done = LeafDone(name=NOTE, returned=MOST_JOBS, skipped=MOST_JOBS, left=MOST_JOBS)
    known = Upgrade(
        switch="s" * 63,
        leaves=(NOTE,) * MOST_LEAVES,
        moves=(move,) * MOST_MOVES,
        done=(done,) * MOST_LEAVES,
        notes=(note,) * KEPT_MOVES,
    )
    plan = SwitchPlan(switch="s" * 63, carries=entries, leaves=leaves(MOST_LEAVES), jobs=(NOTE,) * MOST_JOBS)
    places = [Placed(**dict(one), ranks=tuple((9_999,) for _ in one.devices)) for one in entries]
    each = MOST_ENTRIES // MOST_JOBS
    jobs = tuple(
        JobOnLeaf(
            job_id="u" * 36,
            job=a_name(number),
            maintenance=TEXT[:800],
            move=tuple(places[number * each : (number + 1) * each]),
            busy=NOTE,
            problem=NOTE,
        )
        for number in range(MOST_JOBS)
    )
    row = ForecastRow(leaf=NOTE, job=a_name(0), devices=NOTE, ranks=NOTE, problem=NOTE, info=NOTE)
    return [
        UpgradeRequest(plan=plan, requested_by=NOTE),
        UpgradeRequest(plan=plan.model_copy(update={"carries": ()}), requested_by=NOTE, known=known),
        known,
        Control(word=Word.PROCEED, requested_by=NOTE),
        SurveyLeafRequest(leaf=one_leaf, jobs=(NOTE,) * MOST_JOBS),
        LeafView(jobs=jobs, problems=(NOTE,) * TOLD),
        Forecast(leaves=(NOTE,) * MOST_LEAVES, rows=(row,) * KEPT_ROWS, refused=(NOTE,) * TOLD),
        FailOver(maintenance=TEXT, request=request, whose=NOTE),
        MoveBack(maintenance=TEXT, requested_by=NOTE),
        Moved(problem=NOTE, info=NOTE),
    ]
