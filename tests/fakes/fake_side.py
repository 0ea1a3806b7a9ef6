"""A fictitious training side: this file is all that the control plane would need to support one more, besides a line in the
table."""

from dataclasses import replace

from rekindle.model.job import Capability, Job
from rekindle.model.stress import Op
from rekindle.policy.training_sides.rekindle import REKINDLE
from rekindle.policy.training_sides.row import Readiness


def _watched(job: Job, pod_rank: int, ready: Readiness) -> str:
    return "" if job.can(Capability.REPLACE_RANK_0) else f"the fake side cannot switch pod rank {pod_rank}"


FAKE = replace(
    REKINDLE,
    label="the fake side",
    reports_its_steps=False,
    usually_allows=lambda _job, strategy: strategy == "retry",
    checks=(_watched,),
    fences_old_processes=False,
    ops=(Op.MEMORY,),
    has_tracing=True,
    no_standbys="the fake side has no standbys",
)
"""Deletes the old pod before training resumes, as MindIO does, and reports like Rekindle's: no other training side does both."""
