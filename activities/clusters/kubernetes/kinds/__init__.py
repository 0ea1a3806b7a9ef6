"""The table of kinds of training jobs. A new kind is a file beside this one, and its name below."""

from collections.abc import Sequence

from activities.clusters.kubernetes.kind import Kind
from activities.clusters.kubernetes.kinds.ascend_job import ASCEND_JOB
from activities.clusters.kubernetes.kinds.bare_pods import BARE
from activities.clusters.kubernetes.kinds.batch_job import BATCH_JOB
from activities.clusters.kubernetes.kinds.job_set import JOB_SET
from activities.clusters.kubernetes.kinds.pytorch_job import PYTORCH_JOB
from activities.clusters.kubernetes.kinds.train_job import TRAIN_JOB
from activities.clusters.kubernetes.kinds.training_job import TRAINING_JOB

KINDS: Sequence[Kind] = (TRAINING_JOB, ASCEND_JOB, BATCH_JOB, JOB_SET, PYTORCH_JOB, TRAIN_JOB)
"""Kinds that have an object."""

ALL_KINDS: Sequence[Kind] = (*KINDS, BARE)

__all__ = ["ALL_KINDS", "ASCEND_JOB", "BARE", "BATCH_JOB", "JOB_SET", "KINDS", "PYTORCH_JOB", "TRAINING_JOB", "TRAIN_JOB"]
