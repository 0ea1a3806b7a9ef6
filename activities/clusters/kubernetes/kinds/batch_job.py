"""Batch Job with indexed completion.

Its controller recreates the pod of a missing index within milliseconds, and deletes the younger of two pods with one index a
second later.
"""

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.devices import GIVEN
from activities.clusters.kubernetes.kind import Indexing, Kind, Right, Template, Workload
from activities.clusters.kubernetes.missing_rank import LostRank
from activities.clusters.kubernetes.objects import foreign
from activities.clusters.kubernetes.pod_ownership import ByLabels
from activities.clusters.kubernetes.restarting import Suspending
from rekindle.settings import Settings

BATCH_JOB_NAME = "batch.kubernetes.io/job-name"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"

FAILURES_OF_INDEX = "batch.kubernetes.io/job-index-failure-count"
"""Annotation of a pod of a Job that counts failures by index."""

COUNTED_BY = ("batch.kubernetes.io/controller-uid", "controller-uid")

FINALIZER = "batch.kubernetes.io/job-tracking"
"""Finalizer of the pods of a Job. The Job counts a finished pod by removing it, and never completes if its pods lack it."""

PLACE = (BATCH_JOB_NAME, COMPLETION_INDEX)

INDEXING = Indexing((COMPLETION_INDEX,), also=(FAILURES_OF_INDEX,))


def indexed(spec: Object) -> int:
    """Returns the number of pods of a Job."""
    return int(spec.get("completions") or spec.get("parallelism") or 1)


def _unseen(job: Workload, lost: LostRank, _: Settings) -> Object | None:
    """Returns the pod of an index as its controller would create it, derived from the pod of another index; None: there is no
    such pod."""
    if not lost.neighbour:
        return None
    metadata, spec = lost.neighbour["metadata"], lost.neighbour["spec"]
    mine, name = {COMPLETION_INDEX: str(lost.rank)}, f"{job.name}-{lost.rank}"
    own = {key: metadata[key] for key in ("namespace", "ownerReferences")}
    not_mine = (FAILURES_OF_INDEX, *GIVEN)
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key not in not_mine}
    return {
        "metadata": {
            **own,
            "name": name,
            "labels": {**metadata["labels"], **mine},
            "annotations": {**annotations, **mine},
        },
        "spec": {**spec, "hostname": name} if spec.get("hostname") else spec,
    }


RESTART = Suspending(forgets_its_start=True, generates_names=True)

BATCH_JOB = Kind(
    name="Job",
    api="/apis/batch/v1",
    plural="jobs",
    pod_label=BATCH_JOB_NAME,
    shape=schemas.Job[schemas.BatchJob],
    templates=lambda spec: [Template(spec["template"], indexed(spec))],
    read=foreign,
    restart=RESTART,
    count=ByLabels(COUNTED_BY, (FINALIZER,), place=PLACE, unseen=_unseen),
    indexing=INDEXING,
    own_manager="kubernetes.io/job-controller",
    rights=(Right("batch", "jobs/status", ("patch",)),),
)
