"""AscendJob: the Ascend Operator creates its pods, Volcano deletes them, and both are controlled by annotations."""

from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.ascend_operator import AskedByMarks, StoppedByVolcano, pod_group
from activities.clusters.kubernetes.kind import REPLICA_INDEX, Indexing, Kind, Right, Workload, of_replicas
from activities.clusters.kubernetes.objects import foreign
from rekindle.model.job import Trait
from rekindle.model.keys import JOB_NAME
from rekindle.model.training_side import TrainingSide


def _with_its_copy(job: Workload) -> list[tuple[str, str]]:
    """Returns the objects that carry the job's labels and annotations.

    Volcano reads the PodGroup, a copy that is not updated from the job.
    """
    return [(pod_group(job), ""), (job.path, job.uid)]


ASCEND_JOB = Kind(
    name="AscendJob",
    api="/apis/mindxdl.gitee.com/v1",
    plural="ascendjobs",
    pod_label=JOB_NAME,
    shape=schemas.Job[schemas.AscendJob],
    templates=of_replicas("replicaSpecs", "Master", "Scheduler", "Chief"),
    read=foreign,
    restart=StoppedByVolcano(),
    count=AskedByMarks(),
    indexing=Indexing((REPLICA_INDEX,)),
    usual_side=TrainingSide.MINDIO,
    traits=(Trait.CONTROLLER_RECREATES, Trait.NO_STANDBYS, Trait.CONTRACT_WORDS),
    is_queued=False,
    written_to=_with_its_copy,
    rights=(Right("scheduling.volcano.sh", "podgroups", ("get", "patch")),),
)
