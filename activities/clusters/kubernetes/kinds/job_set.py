"""JobSet. Its pods are those of batch Jobs. It passes no affinity on to them, so a restart changes the Jobs."""

from dataclasses import replace

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.kind import Kind, Template, Workload
from activities.clusters.kubernetes.kinds.batch_job import BATCH_JOB, COUNTED_BY, FINALIZER, INDEXING, PLACE, RESTART, indexed
from activities.clusters.kubernetes.objects import foreign
from activities.clusters.kubernetes.pod_ownership import ByLabels
from activities.clusters.kubernetes.restarting import SuspendingParts

JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"

COUNT = ByLabels(COUNTED_BY, (FINALIZER,), place=PLACE)
RESTART_OF_JOBS = SuspendingParts(parts=RESTART, generates_names=True)
INDEXING_OF_JOBS = replace(INDEXING, type_label=REPLICATED_JOB, group_label=JOB_INDEX)


EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
"""Annotation of a JobSet, or of the template of some of its Jobs. Each Job is then alone in a domain of this node label."""

BY_NODE_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"
"""Annotation: nodes are labelled for each Job beforehand, and no webhook checks pods."""


def _unmovable(job: Workload) -> str:
    """Returns why pods cannot be replaced; empty: they can.

    JobSet's webhook refuses a pod that no Job controls, and finds a Job's first pod by its unique name.
    """
    templates = [job.metadata, *(one["template"].get("metadata", {}) for one in job.object["spec"]["replicatedJobs"])]
    said = [template.get("annotations", {}) for template in templates]
    if not any(EXCLUSIVE in one and BY_NODE_SELECTOR not in one for one in said):
        return ""
    return f"its Jobs are placed exclusively (annotation {EXCLUSIVE}), and JobSet admits no pod in the place of another"


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
