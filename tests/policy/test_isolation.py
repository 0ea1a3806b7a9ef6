"""Nodes that a stress test has isolated are marked, and released by who marked them."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.cluster import Node, NodeStatus, ObjectMeta
from rekindle.model.keys import ISOLATED, NODE_HEALTHY
from rekindle.policy.detection import isolation

ANNOTATIONS = st.fixed_dictionaries(
    {"other": st.just("kept")},
    optional={NODE_HEALTHY: st.sampled_from(["UnHealthy", "Healthy"]), ISOLATED: st.just("a stress test")},
)


def patched(annotations: Mapping[str, str], change: isolation.Change) -> dict[str, str]:
    """Returns the annotations as a merge patch leaves them."""
    return {key: value for key, value in {**annotations, **change}.items() if value is not None}


@given(ANNOTATIONS)
def test_isolating_twice_is_isolating_once(annotations: dict[str, str]) -> None:
    """A step that is repeated after a failure writes nothing new, and the first reason stays."""
    once = patched(annotations, isolation.isolation(annotations, "why"))
    assert once[NODE_HEALTHY] == "UnHealthy"
    assert isolation.is_isolated(once)
    assert isolation.isolation(once, "another reason") == {}


@given(ANNOTATIONS)
def test_what_is_released_is_what_was_isolated_by_us(annotations: dict[str, str]) -> None:
    """A node that another controller had marked keeps that mark. No other field of a node is touched."""
    isolated = patched(annotations, isolation.isolation(annotations, "why"))
    released = patched(isolated, isolation.release(isolated))
    theirs = annotations.get(NODE_HEALTHY) == "UnHealthy" and ISOLATED not in annotations
    assert isolation.is_isolated(released) is theirs
    assert released["other"] == "kept"
    assert bool(isolation.refusal("n1", isolated)) is theirs
    assert isolation.release(released) == {}


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({}, "node n1 is not isolated"),
        ({NODE_HEALTHY: "UnHealthy"}, "was not isolated by Rekindle: the user who set its annotation"),
    ],
)
def test_what_is_not_ours_is_not_released(annotations: dict[str, str], words: str) -> None:
    """The refusal says why the node is not released."""
    assert words in isolation.refusal("n1", annotations)


def test_new_pods_keep_away_from_marked_nodes() -> None:
    """The mark counts, whichever controller or user set it."""
    marks = {"a": {NODE_HEALTHY: "UnHealthy"}, "b": {}, "c": {ISOLATED: "why"}, "d": {NODE_HEALTHY: "Healthy"}}
    nodes = [
        Node(metadata=ObjectMeta(name=name, annotations=annotations), status=NodeStatus(accelerators=1))
        for name, annotations in marks.items()
    ]
    assert isolation.isolated(nodes) == ("a", "c")
