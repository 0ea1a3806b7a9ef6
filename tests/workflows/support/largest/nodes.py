"""Largest values of nodes, and of the record of a node."""

from datetime import timedelta

from rekindle.model import explained
from rekindle.model.explained import FactNow, NodeNow, NodesNow, PodThere, There
from rekindle.model.job import Job
from rekindle.model.node_record import Blame, NodeIncident
from rekindle.model.sizes import LONGEST_NOTE
from rekindle.policy.placement import node_records
from tests.workflows.support.largest.common import NOW, TEXT, a_name


def pods_there() -> There:
    """Returns as many pods of jobs as are shown of one node."""
    pod = PodThere(job_id=f"{'n' * 63}.{'j' * 63}", name="p" * 253, uid="u" * 36, pod_rank=9_999)
    return There(cordoned=True, rule="r" * 60, refused="w" * LONGEST_NOTE, pods=(pod,) * explained.MOST_THERE)


def blame(job: Job) -> Blame:
    incident = NodeIncident(
        job_id=job.id, job=job.name, number=1, about=TEXT, at=NOW, within=timedelta(days=1), aside=timedelta(days=1)
    )
    return Blame(nodes=tuple(a_name(number) for number in range(node_records.MOST_BLAMED)), incident=incident)


def nodes_seen() -> NodesNow:
    """Returns as many nodes as a list has, each with all that is shown of it."""
    long = "n" * LONGEST_NOTE
    fact = FactNow(saw="s" * 120, message="m" * 160, since=NOW, devices=("0",) * 8, rule="r" * 60, then="sub-health")
    seen = [
        NodeNow(name=a_name(number), lost=long, silenced=long, isolated=long, facts=(fact,) * explained.FEW_FACTS, more=9)
        for number in range(explained.MOST_NODES)
    ]
    return NodesNow(nodes=tuple(seen), count=5000, more=4900)
