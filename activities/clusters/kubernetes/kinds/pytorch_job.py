"""A PyTorchJob of Kubeflow's training operator, which counts by labels alone, and leaves a pod too many for ever."""

from activities.clusters.kubernetes import shapes
from activities.clusters.kubernetes.counting import ByLabels
from activities.clusters.kubernetes.kind import REPLICA_INDEX, Indexing, Kind, of_replicas
from activities.clusters.kubernetes.objects import foreign
from activities.clusters.kubernetes.restarting import Suspending
from rekindle.model.keys import JOB_NAME

PYTORCH_JOB = Kind(
    name="PyTorchJob",
    api="/apis/kubeflow.org/v1",
    plural="pytorchjobs",
    pod_label=JOB_NAME,
    shape=shapes.Job[shapes.PyTorchJob],
    templates=of_replicas("pytorchReplicaSpecs", "Master"),
    read=foreign,
    restart=Suspending(("runPolicy", "suspend")),
    count=ByLabels(("training.kubeflow.org/operator-name",), lets_two_be=True),
    indexing=Indexing((REPLICA_INDEX,)),
    own_manager="kubeflow.org/training-operator",
)
