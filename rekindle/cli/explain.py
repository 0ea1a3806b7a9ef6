"""Commands about detection: why something is a fault, what is seen of a node, and marks that people set."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from cyclopts import Parameter

from rekindle.cli.context import control_plane
from rekindle.cli.cost_table import show_costs
from rekindle.cli.output import Format, Output, print_columns, print_json, size, when
from rekindle.cli.terminal import console
from rekindle.errors import BadInput, NotFound, RekindleError
from rekindle.model.bounds import numbered
from rekindle.model.explained import FactNow, Mark, NodeNow, NodesNow
from rekindle.model.rules import Unbelieved
from rekindle.model.state import JobStatus, Standing
from rekindle.nodes import Nodes
from rekindle.policy.detection.node_report import UNUSED, is_used
from rekindle.policy.modes.chances import Chance, chances
from rekindle.policy.modes.costs import costs

DOUBTS = 10.0
"""Seconds to wait for the rules that are not believed, after a job was shown."""

Word = Literal["sick", "broken", "well", "none"]


async def explain(name: str, *, output: Output = Format.TEXT) -> None:
    """Explain JOB or NODE: what is seen, which rule decides about it, since when, and when it counts.

    Of a job, each mode is listed with the reasons against it, and with what it would cost now.

    Example: rekindle explain node-1
    """
    rekindle = await control_plane()
    try:
        status = await rekindle.status(name)
    except (BadInput, NotFound) as no_job:
        try:
            (node,) = (await Nodes(rekindle).look(name)).nodes
        except NotFound as no_node:
            raise NotFound(f"{name!r} is neither a job ({no_job}) nor a node ({no_node})") from no_node
        _show_node(node, output)
        return
    _show_job(status, output)
    if output is Format.TEXT:
        with suppress(RekindleError, TimeoutError):  # the output about the job does not depend on it
            async with asyncio.timeout(DOUBTS):
                found = await Nodes(rekindle).look()
            say_doubts(found.unbelieved)
            for node in (
                node for node in found.nodes if node.name == name
            ):  # a tenant may have given the name of a node to a job
                _show_node(node, output)


# ---- nodes


async def mark(
    node: str,
    word: Word,
    *,
    reason: Annotated[str, Parameter(help="For people who ask later.")] = "",
    output: Output = Format.TEXT,
) -> None:
    """Say of NODE that it is sick (pods move away by the policy of their job), broken (they have to leave it), well (whatever
    its conditions say), or none of these any more. It is an annotation: kubectl annotate node NODE rekindle.io/health=sick

    Example: rekindle nodes mark node-1 sick --reason "fan 3 rattles"
    """
    if reason and Mark(word) is Mark.NONE:
        raise BadInput("--reason: none takes back what was said, and needs no reason")
    _show_node(await Nodes(await control_plane()).mark(node, Mark(word), reason), output)


async def show_all(output: Output) -> None:
    """Shows the nodes of any cluster, as the control plane sees them."""
    found = await Nodes(await control_plane()).look()
    if output is Format.JSON:
        print_json(found.model_dump(mode="json"))
        return
    if found.nodes:
        print_columns(("node", "health", "by rule"), [_row(node) for node in found.nodes])
    say_doubts(found.unbelieved)
    more = f", and {found.more} more like these" if found.more else ""
    _say(f"{found.count} nodes, {_well(found)} of them well{more}; look at one with: rekindle explain NODE")


def say_doubts(doubted: Iterable[Unbelieved]) -> None:
    """Prints the rules that are not believed now."""
    for one in doubted:
        _say(f"not believed: {one.words}")


def _well(found: NodesNow) -> int:
    return found.count - len(found.nodes) - found.more


def _row(node: NodeNow) -> tuple[str, str, str]:
    used = [fact for fact in node.facts if is_used(fact)]
    words = [f"not ready: {node.lost}" if node.lost else "", node.silenced, node.isolated and f"isolated: {node.isolated}"]
    words += [f"says {node.unheard!r}, which no rule knows"] if node.unheard else []
    words += [f"{fact.then}{' (not believed)' if fact.unbelieved else ''}: {fact.saw}" for fact in used]
    return node.name, "; ".join(filter(None, words)), ", ".join(dict.fromkeys(fact.rule for fact in used)) or "-"


def _show_node(node: NodeNow, output: Format) -> None:
    if output is Format.JSON:
        print_json(node.model_dump(mode="json"))
        return
    _say(f"node {node.name}: {f'not ready: {node.lost}' if node.lost else 'ready'}")
    if node.silenced:
        until = f"until that is taken back: rekindle nodes mark {node.name} none"
        _say(f"  a person says: {node.silenced}; no rule counts, but those of maintenance, {until}")
    if node.unheard:
        known = f"{Mark.SICK}, {Mark.BROKEN} or {Mark.WELL}"
        _say(f"  a person says {node.unheard!r}, which no rule knows: write {known}, alone or before a colon and the reason")
    if node.isolated:
        _say(f"  isolated: {node.isolated}")
    for fact in node.facts:
        _say(f"  {_fact(fact)}")
    if node.more:
        _say(f"  and {node.more} more")


def _fact(fact: FactNow) -> str:
    since = f", since {when(fact.since)}" if fact.since else ""
    message = f": {fact.message}" if fact.message else ""
    if not fact.rule:
        return f"{fact.saw} ({UNUSED}{since}){message}"
    given = f", has to last {_seconds(fact.settle)}" if fact.settle else ""
    kept = f", has to be gone {_seconds(fact.clear)}" if fact.clear else ""
    kept += f", over by itself {when(fact.until)}" if fact.until else ""
    doubted = f"; not believed: {fact.unbelieved}" if fact.unbelieved else ""
    return f"{fact.saw} -> {fact.then} (rule {fact.rule}{since}{given}{kept}{doubted}){message}"


# ---- jobs


def _show_job(status: JobStatus, output: Format) -> None:
    state, of_modes = status.state, chances(status.state, datetime.now(UTC))
    of_costs = costs(state, of_modes)
    if output is Format.JSON:
        shown = {"faults": state.faults, "modes": of_modes}
        listed = {name: [one.model_dump(mode="json") for one in found] for name, found in shown.items()}
        print_json({**listed, "costs": of_costs.model_dump(mode="json")})
        return
    _say(f"job {state.job.name}: faults: {len(state.faults)}")
    for one in state.faults:
        for line in _standing(one):
            _say(f"  {line}")
    if small := size(state):
        _say(f"  {small}")
    _say("modes, in the order in which they are tried:")
    for chance in of_modes:
        _say(f"  {_chance(chance)}")
    show_costs(of_costs)


def _chance(chance: Chance) -> str:
    pods = f" of {numbered('pod rank', chance.pod_ranks)}" if chance.pod_ranks else ""
    asked = f", a platform decides ({chance.asked})" if chance.asked else ""
    held = f", held by a storm: {chance.held}" if chance.held else ""
    return f"{chance.mode}{pods}: {'; '.join(chance.against) or f'possible{asked}{held}'}"


def _standing(one: Standing) -> list[str]:
    fault, decided = one.fault, one.fault.decided
    where = fault.node or fault.pod or "the job"
    lines = [f"{fault.kind.replace('_', '-')} of {where}: {fault.message or fault.code}"]
    if fault.ranks:
        lines.append(f"  ranks: {_ranks(fault.ranks)}, seen by the {fault.source}")
    if decided:
        since = f", by the cluster's clock since {when(decided.since)}" if decided.since else ""
        lines.append(f"  rule {decided.rule} decided, by: {decided.saw}{since}")
        if fault.accepted_at and decided.settle:
            counts = fault.accepted_at + timedelta(seconds=decided.settle)
            lines.append(
                f"  known since {when(fault.accepted_at)}; it counts when it has lasted {decided.settle:g} s, {when(counts)}"
            )
    if one.over_at:
        lines.append(f"  not seen any more; if it does not come back it is over {when(one.over_at)}")
    lines.append(f"  {one.judged or 'nothing is decided about it yet'}")
    return lines


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")


def _seconds(seconds: float) -> str:
    return f"{seconds:g} s" if seconds else "-"


def _say(words: str) -> None:
    console.print(words, markup=False, highlight=False, soft_wrap=True)
