"""Table of rights: what each process has to be allowed. The rights to jobs come from the table of their kinds.

`deploy/rights.py` makes the rules of the chart from it, and `rekindle doctor` asks whether the API server grants them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from activities.clusters.kubernetes.kind import Kind, Right
from activities.clusters.kubernetes.kinds import ALL_KINDS, KINDS

(OURS,) = (kind for kind in KINDS if kind.is_ours)

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
        Right(OURS.group, OURS.plural, ("get", "list", "watch")),
        Right(OURS.group, f"{OURS.plural}/status", ("patch",)),
        EVENTS,
        MARKS,
        PRIORITY,
    ),
}
"""Rights of each account that do not depend on the kinds of jobs."""

OF_JOBS: Mapping[str, tuple[str, ...]] = {
    "control": ("get", "list", "patch"),
    "gateway": ("get", "list"),
    "watcher": ("get", "list", "watch", "patch"),
}
"""Verbs of each account on the objects of every kind of job."""

RECOVERS = "control"

STATEFUL = "gateway"
"""Process whose pods are those of a StatefulSet. Those of all others are of a Deployment."""


def workload_of(account: str) -> str:
    """Returns the resource that makes the pods of a process."""
    return "statefulsets" if account == STATEFUL else "deployments"


def rights_of(account: str, kinds: Iterable[Kind] = ALL_KINDS) -> Iterator[Right]:
    """Yields all that an account may do in every namespace."""
    yield from OWN[account]
    if account in OF_JOBS:
        for kind in kinds:
            if kind.has_object:
                yield Right(kind.group, kind.plural, OF_JOBS[account])
            yield from kind.rights if account == RECOVERS else kind.reading


def rights_at_home(account: str) -> Iterator[Right]:
    """Yields what an account may do in the namespace of the installation: its process says there whether it serves."""
    if account == RECOVERS:
        yield Right(LEASES.group, LEASES.resource, ("create", "patch"))
        yield Right("apps", "deployments", ("get",), (f"rekindle-{account}",))  # is it of the latest revision?
        yield Right("apps", "replicasets", ("get",))
    yield Right("apps", f"{workload_of(account)}/status", ("patch",), (f"rekindle-{account}",))
    yield EVENTS


def is_of_cluster(right: Right) -> bool:
    """Returns whether only a ClusterRole can grant it for the whole cluster."""
    return right == LEASES or (right.group, right.resource) in OF_CLUSTER
