"""A JobSet. Its pods are those of batch Jobs; it hands no affinity down to them, so that a restart changes the Jobs."""

from dataclasses import replace

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import shapes
from activities.clusters.kubernetes.counting import ByLabels
from activities.clusters.kubernetes.kind import Kind, Template
from activities.clusters.kubernetes.kinds.batch_job import BATCH_JOB, COUNTED_BY, FINALIZER, INDEXING, PLACE, RESTART, indexed
from activities.clusters.kubernetes.objects import foreign
from activities.clusters.kubernetes.restarting import SuspendingParts

JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"

COUNT = ByLabels(COUNTED_BY, (FINALIZER,), place=PLACE)
RESTART_OF_JOBS = SuspendingParts(parts=RESTART)
INDEXING_OF_JOBS = replace(INDEXING, type_label=REPLICATED_JOB, group_label=JOB_INDEX)


def _templates(spec: Object) -> list[Template]:
    """Those with ranks first."""
    found = []
    for replicated in spec["replicatedJobs"]:
        job = replicated["template"]["spec"]
        each = indexed(job)
        found.append(Template(job["template"], int(replicated.get("replicas", 1)) * each, replicated["name"], each))
    return sorted(found, key=lambda template: template.is_manager)


JOB_SET = Kind(
    name="JobSet",
    api="/apis/jobset.x-k8s.io/v1alpha2",
    plural="jobsets",
    pod_label=JOBSET_NAME,
    shape=shapes.Job[shapes.JobSet],
    templates=_templates,
    read=foreign,
    restart=RESTART_OF_JOBS,
    count=COUNT,
    indexing=INDEXING_OF_JOBS,
    made_of=BATCH_JOB,
    own_manager="jobset.sigs.k8s.io/jobset-controller",
)
