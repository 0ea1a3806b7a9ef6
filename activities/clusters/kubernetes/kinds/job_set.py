"""JobSet. Its pods are those of batch Jobs. It passes no affinity on to them, so a restart changes the Jobs."""

from dataclasses import replace

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.kind import Kind, Template, Workload
from activities.clusters.kubernetes.kinds.batch_job import BATCH_JOB, COUNTED_BY, FINALIZER, INDEXING, PLACE, RESTART, indexed
from activities.clusters.kubernetes.objects import foreign
from activities.clusters.kubernetes.pod_ownership import ByLabels
from activities.clusters.kubernetes.restarting import SuspendingParts
from rekindle.model import other_controllers

JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"

COUNT = ByLabels(COUNTED_BY, (FINALIZER,), place=PLACE)
RESTART_OF_JOBS = SuspendingParts(parts=RESTART, generates_names=True)
INDEXING_OF_JOBS = replace(INDEXING, type_label=REPLICATED_JOB, group_label=JOB_INDEX)


def _unmovable(job: Workload) -> str:
    templates = (job.metadata, *(one["template"].get("metadata", {}) for one in job.object["spec"]["replicatedJobs"]))
    return other_controllers.unmovable(template.get("annotations", {}) for template in templates)


def _templates(spec: Object) -> list[Template]:
    """Returns the templates of a JobSet; those with ranks come first."""
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
    shape=schemas.Job[schemas.JobSet],
    templates=_templates,
    read=foreign,
    restart=RESTART_OF_JOBS,
    count=COUNT,
    indexing=INDEXING_OF_JOBS,
    made_of=BATCH_JOB,
    unmovable=_unmovable,
    own_manager="jobset.sigs.k8s.io/jobset-controller",
)
