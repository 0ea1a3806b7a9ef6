"""Generates the rules of access of the chart: what each process has to be allowed. The rights to jobs come from the table of
their kinds. `make rights` runs it; a test fails while the committed file says something else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from activities.clusters.kubernetes.kind import Kind, Right
from activities.clusters.kubernetes.kinds import BARE, KINDS, TRAINING_JOB

TARGET = Path(__file__).resolve().parent / "helm" / "rekindle" / "templates" / "_rights.tpl"

HEAD = """\
{{- /* What each account may do; rbac.yaml binds it. Generated from the table of kinds: `make rights`. */ -}}
"""

PART = """
{{{{- define "rekindle.rights.{account}.{part}" }}}}
{rules}
{{{{- end }}}}
"""

OF_CLUSTER = {
    ("", "nodes"),
    ("", "namespaces"),
    ("authentication.k8s.io", "tokenreviews"),
    ("rekindle.io", "marks"),
    ("rekindle.io", "priority"),
}
"""Resources that belong to no namespace, or that our admission policies ask for in the whole cluster."""

LEASES = Right("coordination.k8s.io", "leases", ("get",))
"""Other installations have theirs in namespaces that this one does not know before it reads of them on a job."""

EVENTS = Right("", "events", ("create",))
MARKS = Right("rekindle.io", "marks", ("set",))
"""Asked for by the policy in marks.yaml; no such resource is served."""
PRIORITY = Right("rekindle.io", "priority", ("use",))
"""Asked for by the policy in priority.yaml."""

OWN: Mapping[str, Sequence[Right]] = {
    "control": (
        Right("", "pods", ("get", "list", "watch", "create", "patch", "delete")),
        Right("", "nodes", ("get", "list", "patch")),
        Right("", "events", ("list", "create")),
        MARKS,
        PRIORITY,
    ),
    "gateway": (Right("", "pods", ("list",)), Right("authentication.k8s.io", "tokenreviews", ("create",)), EVENTS, PRIORITY),
    "watcher": (
        Right("", "pods", ("list", "watch")),
        Right("", "nodes", ("list", "watch")),
        Right("", "namespaces", ("list", "watch")),
        Right("policy", "poddisruptionbudgets", ("get", "list", "create", "delete")),
        LEASES,
        EVENTS,
        PRIORITY,
    ),
    "operator": (
        Right("", "pods", ("get", "list", "watch", "create", "delete")),
        Right("", "services", ("get", "create")),
        Right(TRAINING_JOB.group, TRAINING_JOB.plural, ("get", "list", "watch")),
        Right(TRAINING_JOB.group, f"{TRAINING_JOB.plural}/status", ("patch",)),
        EVENTS,
        MARKS,
        PRIORITY,
    ),
}
"""By account: what it may do whatever kinds there are."""

OF_JOBS: Mapping[str, tuple[str, ...]] = {
    "control": ("get", "list", "patch"),
    "gateway": ("get", "list"),
    "watcher": ("get", "list", "watch", "patch"),
}
"""By account: what it may do to the objects of each kind of job."""

RECOVERS = "control"


def rights_of(account: str, kinds: Iterable[Kind]) -> Iterator[Right]:
    """All that an account may do in every namespace."""
    yield from OWN[account]
    if account in OF_JOBS:
        for kind in kinds:
            if kind.has_object:
                yield Right(kind.group, kind.plural, OF_JOBS[account])
            yield from kind.rights if account == RECOVERS else kind.reading


def generated(kinds: Sequence[Kind] = (*KINDS, BARE)) -> str:
    """The file."""
    return HEAD + "".join(_parts(account, tuple(rights_of(account, kinds))) for account in OWN)


def _parts(account: str, rights: Sequence[Right]) -> str:
    """Returns the rules of an account: those that a Role in a namespace can grant, and the others."""
    parts: dict[str, list[str]] = {"inNamespaces": [], "ofCluster": []}
    for right in rights:
        parts["ofCluster" if _is_of_cluster(right) else "inNamespaces"].append(_rule(right))
    return "".join(PART.format(account=account, part=part, rules="\n".join(rules)) for part, rules in parts.items())


def _is_of_cluster(right: Right) -> bool:
    return right == LEASES or (right.group, right.resource) in OF_CLUSTER


def _rule(right: Right) -> str:
    group = right.group or '""'
    return f"- {{apiGroups: [{group}], resources: [{right.resource}], verbs: [{', '.join(right.verbs)}]}}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when the committed file differs")
    if not parser.parse_args().check:
        TARGET.write_text(generated())
    elif TARGET.read_text() != generated():
        print(f"{TARGET.name} differs from the table of kinds, run `make rights`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
