"""Ranks and the pods that they run in are computed in one place."""

import re
from pathlib import Path

from rekindle.model.layout import Layout

ROOT = Path(__file__).parents[2]
COMPUTED = re.compile(r"[*/%] *[a-z_.]*ranks_per_pod|[a-z_.]*ranks_per_pod *[*/%]")
SIZES = {"rekindle/model/layout.py", "rekindle/model/sizes.py"}
"""Files that compute with the number of ranks in a pod: the layout, and the largest job that is accepted."""


def test_ranks_follow_pod_ranks() -> None:
    """A pod leads to its ranks and back, for one and for several."""
    layout = Layout(pods=3, ranks_per_pod=4)
    assert layout.ranks == 12
    assert layout.ranks_of(1) == range(4, 8)
    assert layout.ranks_of_all((2, 0)) == (8, 9, 10, 11, 0, 1, 2, 3)
    assert [layout.pod_of(rank) for rank in (0, 3, 4, 11)] == [0, 0, 1, 2]
    assert layout.pods_of((11, 0, 8, 3)) == (0, 2)


def test_a_replica_has_pods_that_follow_each_other() -> None:
    """A pod leads to all pods of its replica, and pods that leave to the number of replicas that are left."""
    layout = Layout(pods=6, ranks_per_pod=4, pods_per_replica=2)
    assert layout.replicas == 3
    assert layout.whole_replicas((5, 1, 0)) == (0, 1, 4, 5)
    assert layout.whole_replicas(()) == ()
    assert [layout.replicas_without(pods) for pods in ((), (3,), (2, 3), (1, 2))] == [3, 2, 2, 1]
    assert Layout(pods=3, ranks_per_pod=4).whole_replicas((2, 0)) == (0, 2)


def test_no_other_file_of_the_control_plane_computes_them() -> None:
    """A job that changes its size has its ranks elsewhere, and then one file changes."""
    files = [file for folder in ("rekindle", "workflows", "activities", "workers") for file in (ROOT / folder).rglob("*.py")]
    found = {str(file.relative_to(ROOT)) for file in files if COMPUTED.search(file.read_text())}
    assert found == SIZES
