"""Reduces pods and nodes to what a sighting is computed from. The watcher keeps tens of thousands of them. Pure.

The sighting of reduced objects is equal to that of whole ones, which the activities use.
"""

from rekindle.model.cluster import Node, Pod
from rekindle.model.keys import GENERATION, POD_TYPE, RANK_INDEX, REPLICA_TYPE
from rekindle.model.rules import Rules
from rekindle.policy.detection.rules import of_matter

LABELS = (GENERATION, REPLICA_TYPE)
ANNOTATIONS = (RANK_INDEX, POD_TYPE)
"""Labels and annotations of pods that are kept: pod rank, generation and role."""


def kept_of_pod(pod: Pod, rules: Rules) -> Pod:
    """Returns the pod without other labels and annotations, and without most of its specification."""
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    marks = {
        "labels": {key: metadata.labels[key] for key in LABELS if key in metadata.labels},
        "annotations": {key: metadata.annotations[key] for key in ANNOTATIONS if key in metadata.annotations},
    }
    judged = of_matter(status.conditions, "podCondition", rules)
    kept = (one for one in status.conditions if one in judged or (one.type == "PodScheduled" and one.status != "True"))
    return pod.model_copy(
        update={
            "metadata": metadata.model_copy(update=marks),
            "spec": spec.model_copy(update={"command": spec.command[:1], "env": {}, "avoid_nodes": (), "tolerates": ()}),
            "status": status.model_copy(update={"conditions": tuple(kept)}),
        }
    )


def kept_of_node(node: Node, rules: Rules) -> Node:
    """Returns the node without conditions that have no effect."""
    ready = (one for one in node.status.conditions if one.type == "Ready")
    judged = of_matter((one for one in node.status.conditions if one.type != "Ready"), "condition", rules)
    return node.model_copy(update={"status": node.status.model_copy(update={"conditions": (*ready, *judged)})})
