"""Other components that decide about the pods of a job: what a job's object says of them, and what that means for recoveries.

Read from objects of the cluster, and from files before they are applied.
"""

from collections.abc import Iterable, Mapping
from typing import Any

LONGEST = 120
"""Maximum length of quoted text."""

QUEUE_NAME = "kueue.x-k8s.io/queue-name"
"""Label or annotation of a job that Kueue manages."""

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
"""Annotation of a JobSet, or of the template of some of its Jobs. Each Job is then alone in a domain of this node label."""

BY_NODE_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"
"""Annotation: nodes are labelled for each Job beforehand, and no webhook checks pods."""


def decides(manager: str, queue: str, gates: Iterable[str]) -> str:
    """Describes the component that decides when the job's pods run; empty: the job's controller, which follows our requests.

    Args:
        manager: controller that the job names. Empty: its usual one.
        queue: queue of Kueue. Empty: none.
        gates: scheduling gates of its pods.
    """
    if manager:
        return f"controller {manager[:LONGEST]!r} (managedBy)"
    if queue:
        return f"Kueue, queue {queue[:LONGEST]!r}"
    gate = next(iter(gates), "")
    return f"the controller that removes the scheduling gate {gate[:LONGEST]!r}" if gate else ""


def unmovable(annotations: Iterable[Mapping[str, Any]]) -> str:
    """Returns why pods of a JobSet cannot be replaced; empty: they can.

    JobSet's webhook refuses a pod that no Job controls, and finds a Job's first pod by its unique name.

    Args:
        annotations: those of the JobSet, and of the template of each of its Jobs.
    """
    if not any(EXCLUSIVE in one and BY_NODE_SELECTOR not in one for one in annotations):
        return ""
    return f"its Jobs are placed exclusively (annotation {EXCLUSIVE}), and JobSet admits no pod in the place of another"
