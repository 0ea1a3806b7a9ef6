"""Builders for files of rules and for nodes with certain facts, and the faults that follow."""

from collections.abc import Sequence
from typing import Any

from rekindle.model.cluster import (
    Condition,
    JobView,
    Node,
    NodeSpec,
)
from rekindle.model.fault import Fault
from rekindle.model.rule_file import parse, plain
from rekindle.model.rules import Rules
from rekindle.policy.detection.sighting import sight
from tests.support.job_views import NOW, kept, node

HEAD = "apiVersion: rekindle.io/v1\nkind: Rules\nspec:\n"


def written(*rules: str, use: str = "[]") -> Rules:
    """Returns the rules of a file with these rules, each in one line."""
    return parse(f"{HEAD}  use: {use}\n  rules:\n" + "".join(f"    - {{name: r{n}, {rule}}}\n" for n, rule in enumerate(rules)))


def shows(name: str = "node-0", **facts: Any) -> Node:
    """Returns a ready node. Facts: conditions (type to status, reason and message), taints, cordoned, labels, annotations,
    reports."""
    well = node(name)
    conditions = tuple(
        Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=NOW)
        for kind, (status, reason, message) in facts.get("conditions", {}).items()
    )
    marks = {"labels": facts.get("labels", {}), "annotations": facts.get("annotations", {})}
    status = {"conditions": (*well.status.conditions, *conditions), "reports": facts.get("reports", ())}
    return well.model_copy(
        update={
            "metadata": well.metadata.model_copy(update=marks),
            "spec": NodeSpec(unschedulable=facts.get("cordoned", False), taints=facts.get("taints", ())),
            "status": well.status.model_copy(update=status),
        }
    )


def faults(seen: JobView, rules: Rules | None = None) -> Sequence[Fault]:
    """Returns the faults of a job. Checks that the watcher, which stores only parts of objects, finds the same."""
    found = sight(seen, rules).faults
    assert sight(kept(seen, rules or plain()), rules).faults == found
    return found
