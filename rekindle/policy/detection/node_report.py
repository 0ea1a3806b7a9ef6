"""Describes a node as its rules see it, for people. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from rekindle.model.bounds import cut, note
from rekindle.model.cluster import Node, Pod, condition_of
from rekindle.model.explained import (
    FEW_FACTS,
    MOST_DOUBTED,
    MOST_NODES,
    MOST_THERE,
    FactNow,
    Mark,
    NodeNow,
    NodesNow,
    PodThere,
    There,
)
from rekindle.model.keys import HEALTH, ISOLATED, NODE_HEALTHY
from rekindle.model.rules import Named, Rules, Then, Unbelieved
from rekindle.policy.detection import isolation
from rekindle.policy.detection.pod_ranks import is_standby, rank_of
from rekindle.policy.detection.rules import Fact, decisions, is_silenced
from rekindle.policy.detection.sighting import READY, is_lost

UNUSED = "seen, unused"


def node_now(node: Node, rules: Rules, most: int, doubted: Sequence[Unbelieved] = ()) -> NodeNow:
    """Returns the state of a node.

    Args:
        most: maximum number of facts in the result.
        doubted: rules that are not believed now.
    """
    facts = sorted(_facts(node, rules, {one.rule: one.words for one in doubted}), key=_rank)
    ready = condition_of(node.status.conditions, READY)
    lost = is_lost(node) and ready is not None
    marks = node.metadata.annotations
    isolated = marks.get(ISOLATED) or f"its annotation {NODE_HEALTHY} says so"
    return NodeNow(
        name=node.metadata.name,
        lost=(ready.message or ready.reason or f"Ready={ready.status}") if lost and ready else "",
        silenced=marks.get(HEALTH, "") if is_silenced(node) else "",
        unheard=marks.get(HEALTH, "") if not is_silenced(node) and not _is_heard(node, rules) else "",
        isolated=isolated if isolation.is_isolated(marks) else "",
        facts=tuple(facts[:most]),
        more=max(0, len(facts) - most),
    )


def nodes_now(nodes: Iterable[Node], rules: Rules, doubted: Sequence[Unbelieved] = ()) -> NodesNow:
    """Returns the nodes with something to report, by name."""
    known = sorted(nodes, key=lambda node: node.metadata.name)
    seen = (node_now(node, rules, FEW_FACTS, doubted) for node in known)
    told = [
        one for one in seen if one.lost or one.silenced or one.unheard or one.isolated or any(is_used(fact) for fact in one.facts)
    ]
    more = max(0, len(told) - MOST_NODES)
    return NodesNow(nodes=tuple(told[:MOST_NODES]), count=len(known), more=more, unbelieved=tuple(doubted[:MOST_DOUBTED]))


def _is_heard(node: Node, rules: Rules) -> bool:
    """Returns whether a rule takes the mark of a person on the node."""
    return any(named for fact, named in decisions(node, rules) if fact.source == "annotation" and fact.values["key"] == HEALTH)


def there(node: Node, pods: Iterable[Pod], rules: Rules) -> There:
    """Returns the state of a node that a person wants to drain. Pods with a rank come first."""
    rule, refused = _leaving(node, rules)
    rows = sorted(map(_pod_there, pods), key=lambda pod: (pod.pod_rank is None, pod.job_id, pod.pod_rank or 0, pod.name))
    return There(cordoned=node.spec.unschedulable, rule=rule, refused=refused, pods=tuple(rows[:MOST_THERE]))


def _leaving(node: Node, rules: Rules) -> tuple[str, str]:
    """Returns the rule by which pods leave the node when it is cordoned, and the reason why they do not. One of
    the two is empty."""
    name = node.metadata.name
    cordoned = node.model_copy(update={"spec": node.spec.model_copy(update={"unschedulable": True})})
    named = next((named for fact, named in decisions(cordoned, rules) if fact.source == "cordoned"), None)
    then = named.rule.then if named else Then.NOTHING
    if named and (then is Then.MAINTENANCE or (then is not Then.NOTHING and not is_silenced(node))):
        return named.name, ""
    if named and then is not Then.NOTHING:
        mark = node.metadata.annotations.get(HEALTH, "")
        return "", f"{name}: a person says that it is {mark}, which silences rule {named.name}: rekindle nodes mark {name} none"
    by = f"rule {named.name} says so" if named else "no rule takes it"
    return "", f"{name}: a cordon is no reason to leave a node in this installation ({by}, REKINDLE_RULES)"


def _pod_there(pod: Pod) -> PodThere:
    metadata = pod.metadata
    rank = None if is_standby(pod) else rank_of(pod)
    return PodThere(job_id=metadata.owner_uid, name=note(metadata.name), uid=metadata.uid, pod_rank=rank)


def is_used(fact: FactNow) -> bool:
    return fact.then not in ("", Then.NOTHING)


def marked(mark: Mark, reason: str) -> dict[str, str | None]:
    """Returns the change of the node's annotations for a mark. None removes the annotation."""
    word = f"{mark}: {note(reason)}" if reason else mark.value
    return {HEALTH: None if mark is Mark.NONE else word}


def _facts(node: Node, rules: Rules, doubted: Mapping[str, str]) -> list[FactNow]:
    """Returns the facts of a node. Labels and annotations are included only if a rule decides about them."""
    shown = decisions(node, rules)
    return [_fact(fact, named, doubted) for fact, named in shown if named or fact.source not in ("label", "annotation")]


def _fact(fact: Fact, named: Named | None, doubted: Mapping[str, str]) -> FactNow:
    rule = named.rule if named else None
    return FactNow(
        saw=fact.saw,
        message=cut(fact.message, 160),
        since=fact.since,
        until=fact.until,
        devices=fact.devices,
        rule=named.name if named else "",
        then=rule.then.value if rule else "",
        settle=rule.settle.total_seconds() if rule else 0.0,
        clear=rule.clear.total_seconds() if rule else 0.0,
        unbelieved=doubted.get(named.name, "") if named else "",
    )


def _rank(fact: FactNow) -> int:
    return 0 if is_used(fact) else 1 if not fact.rule else 2
