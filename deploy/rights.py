"""Generates deploy/base/rbac.yaml: what each process has to be allowed, of which the rights to jobs come from the table of their
kinds. `make rights` runs it; a test fails while the committed file says something else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from activities.clusters.kubernetes.kind import Kind, Right
from activities.clusters.kubernetes.kinds import BARE, KINDS, TRAINING_JOB

TARGET = Path(__file__).resolve().parent / "base" / "rbac.yaml"

HEAD = """\
# Who may do what. One account a process, one line a rule; docs/kubernetes.md says what each rule is for. A kind that the
# cluster does not have needs its rule too: the answer is then that there is none, and not that we may not ask.
# Generated from the table of kinds: `make rights`.
"""

ACCOUNT = """\
apiVersion: v1
kind: ServiceAccount
metadata:
  name: rekindle-{name}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: rekindle-{name}
rules:
{rules}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: rekindle-{name}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: rekindle-{name}}}
subjects:
  - {{kind: ServiceAccount, name: rekindle-{name}, namespace: mindx-dl}}
---
"""

TAIL = """\
# Whoever may see or change things of a namespace may see or change its TrainingJobs.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: rekindle-trainingjobs-view
  labels:
    rbac.authorization.k8s.io/aggregate-to-view: "true"
rules:
  - {apiGroups: [rekindle.io], resources: [trainingjobs, trainingjobs/status], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: rekindle-trainingjobs-edit
  labels:
    rbac.authorization.k8s.io/aggregate-to-edit: "true"
rules:
  - {apiGroups: [rekindle.io], resources: [trainingjobs], verbs: [create, update, patch, delete]}
---
# Is a ClusterD alive beside us? Asked once, at the start.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: rekindle-rivals
rules:
  - {apiGroups: [""], resources: [services], resourceNames: [clusterd-grpc-svc], verbs: [get]}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: rekindle-rivals
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: rekindle-rivals}
subjects:
  - {kind: ServiceAccount, name: rekindle-control, namespace: mindx-dl}
  - {kind: ServiceAccount, name: rekindle-watcher, namespace: mindx-dl}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: rekindle-installation
rules:
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: rekindle-installation
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: rekindle-installation}
subjects:
  - {kind: ServiceAccount, name: rekindle-control, namespace: mindx-dl}
"""

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
        Right("coordination.k8s.io", "leases", ("get",)),
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
    rules = {account: "\n".join(map(_rule, rights_of(account, kinds))) for account in OWN}
    return HEAD + "".join(ACCOUNT.format(name=name, rules=lines) for name, lines in rules.items()) + TAIL


def _rule(right: Right) -> str:
    group = right.group or '""'
    return f"  - {{apiGroups: [{group}], resources: [{right.resource}], verbs: [{', '.join(right.verbs)}]}}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when the committed file differs")
    if not parser.parse_args().check:
        TARGET.write_text(generated())
    elif TARGET.read_text() != generated():
        print("deploy/base/rbac.yaml differs from the table of kinds, run `make rights`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
