"""Decides which rules are not believed now: those that call too many nodes of the cluster unhealthy at once. Pure.

A new version of a detector, or a wrong rule, may call every node broken. No restart helps then, since it would lead to another
such node. Used by the watcher, which updates its counts as nodes change, and by the activities that read nodes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from rekindle.model.cluster import Node
from rekindle.model.rules import Rules, Unbelieved
from rekindle.policy.detection.rules import said_of

FEWEST = 3
"""Minimum number of nodes. Fewer may be unhealthy together by chance, as in a cluster of four nodes."""

ANY = ""
"""Counts the node itself, in place of the name of a rule."""

Key = tuple[bool, str]
"""Pair of whether a node has accelerators, and the name of a rule that calls it unhealthy."""

Counts = Counter[Key]


def called(node: Node, rules: Rules) -> frozenset[str]:
    """Returns the names of the rules that call a node unhealthy and that are disbelieved when they do so for too many."""
    return frozenset(one.named.name for one in said_of(node, rules) if one.named.name in rules.doubtful)


def counted(node: Node, rules: Iterable[str]) -> frozenset[Key]:
    """Returns the keys under which a node is counted: one for the node itself, and one for each of these rules."""
    trains = node.status.accelerators > 0
    return frozenset((trains, name) for name in (ANY, *rules))


def unbelieved(counts: Counts, rules: Rules) -> tuple[Unbelieved, ...]:
    """Returns the rules that are not believed. If any node has accelerators, only such nodes are counted: the others do not
    train."""
    trains = counts[True, ANY] > 0
    nodes, found = counts[trains, ANY], []
    for (has, name), number in sorted(counts.items()):
        if has is not trains or name == ANY or number < FEWEST:
            continue
        most = rules.most(name)
        if 100 * number > most * nodes:
            then = rules.doubtful[name].then
            found.append(Unbelieved(rule=name, then=then, called=number, nodes=nodes, max_unhealthy=most))
    return tuple(found)


def among(nodes: Iterable[Node], rules: Rules) -> tuple[Unbelieved, ...]:
    """Returns the rules that are not believed, counted over all nodes of a cluster."""
    return unbelieved(Counter(key for node in nodes for key in counted(node, called(node, rules))), rules)


def doubting(rules: Rules, doubted: Sequence[Unbelieved]) -> Rules:
    """Returns the rules with the names of those that are not believed."""
    return rules.model_copy(update={"unbelieved": frozenset(one.rule for one in doubted)})
