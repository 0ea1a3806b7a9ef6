"""Objects of a cluster, modelled after Kubernetes. The local cluster serves them. The `Cluster` port and the
watcher read them."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field

from rekindle.model.base import Resource, Value, WrittenTime
from rekindle.model.job import Trait
from rekindle.model.layout import Layout
from rekindle.model.sizes import MOST_STANDBYS


class ObjectMeta(Resource):
    name: str
    namespace: str = "default"
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_uid: str = ""
    """UID of the job that a pod belongs to (the controlling ownerReference in Kubernetes)."""

    resource_version: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None


class Condition(Resource):
    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


def condition_of(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """Returns the condition of this type. None: the object has none."""
    return next((condition for condition in conditions if condition.type == kind), None)


class PodPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class PodRole(StrEnum):
    """Value of the environment variable `REKINDLE_POD_ROLE` of a pod."""

    WORKER = "worker"
    BACKUP = "backup"
    MANAGER = "manager"
    STANDBY = "standby"


class PodSpec(Resource):
    command: tuple[str, ...] = Field(min_length=1)
    env: dict[str, str] = {}
    accelerators: int = Field(default=0, ge=0)
    """Number of accelerators that the pod requests. A node must have as many free."""

    node_name: str = ""
    """Name of the node that the scheduler chose. Empty: the pod is not scheduled yet."""

    avoid_nodes: tuple[str, ...] = ()
    """Required anti-affinity: never scheduled to these nodes."""

    tolerates: tuple[str, ...] = ()
    """Keys of the taints of nodes that the pod tolerates by name."""

    priority: int = 0
    """Priority of the pod, which the cluster sets by its priority class. 0 where the cluster has no priorities."""

    demands: str = ""
    """Digest of the node selector, required labels of nodes, tolerations and kinds of accelerators of the pod. Pods with the same
    one can use the same nodes. Empty: any node will do."""

    gates: tuple[str, ...] = ()
    """Scheduling gates. The scheduler ignores the pod until other components have removed all of them."""

    termination_grace_period_seconds: int = Field(default=10, ge=0)


class ContainerState(Resource):
    """State of a container of a pod."""

    name: str
    trains: bool = True
    """True if the container has accelerators, or is the first container of a pod without accelerators."""

    waiting: str = ""
    """Reason why the container is waiting, such as `CrashLoopBackOff`."""

    exit_code: int | None = None
    """Exit code of the last termination."""

    restarts: int = 0
    message: str = ""


class PodStatus(Resource):
    phase: PodPhase = PodPhase.PENDING
    conditions: tuple[Condition, ...] = ()
    reason: str = ""
    message: str = ""
    waiting: str = ""
    """Reason why a container of the pod has not started, such as `ImagePullBackOff: ...`. Empty: unknown."""

    exit_code: int | None = None
    pid: int | None = None
    start_time: datetime | None = None
    containers: tuple[ContainerState, ...] = ()
    """Containers that wait, were restarted or have ended. Containers that just run are left out."""

    devices: tuple[str, ...] = ()
    """Local ids of the pod's devices on its node (`0`, `1`, ...), in the order of its local ranks. Empty: none, or unknown."""

    uuids: tuple[str, ...] = ()
    """UUIDs of the pod's devices (`GPU-6b2c...`), in no particular order, where the local ids are unknown."""


class Pod(Resource):
    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus = PodStatus()


class Link(Resource):
    """Network interface of a node for the traffic of ranks. The first one of a node is in use, the second is its backup."""

    name: str
    up: bool = True
    """True if the cable is plugged in."""

    sent: int = 0
    received: int = 0
    """Bytes since the start of the node, at the time of the request."""


class Taint(Resource):
    key: str
    value: str = ""
    effect: str = ""
    time_added: datetime | None = None


class NodeReport(Resource):
    """Report about a node in another object than the node's. It lasts as long as that object contains it."""

    id: str
    """Id, which is unique among all reports about the node."""

    source: str
    """Kind of the source: `event`, `device-plugin`, `switch`, `noded`, `public-fault`."""

    code: str = ""
    level: str = ""
    by: str = ""
    """Component that wrote an event, or sender of a public fault."""

    message: str = ""
    devices: tuple[str, ...] = ()
    """Local ids of the affected devices. Empty: the whole node is affected."""

    since: datetime | None = None
    told: datetime | None = None
    """Time of the last repetition, by the clock of the API server where that is known."""

    until: datetime | None = None
    """Time at which the report expires unless it is repeated. None: it lasts as long as its object contains it."""


class NodeSpec(Resource):
    unschedulable: bool = False
    """True if the node is cordoned: no new pods are scheduled to it."""

    taints: tuple[Taint, ...] = ()


class NodeStatus(Resource):
    accelerators: int
    """Number of accelerators of the node."""

    reports: tuple[NodeReport, ...] = ()
    """Reports about the node in other objects. Not part of the node object in Kubernetes."""

    conditions: tuple[Condition, ...] = ()
    """Conditions `Ready` and `SubHealthy`. Status True of the latter means degraded; its reason is the fault code."""

    links: tuple[Link, ...] = ()
    """Network interfaces of the node, on a local cluster whose nodes have network namespaces. Empty elsewhere."""


class Node(Resource):
    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus


class PodTemplate(Resource):
    command: tuple[str, ...] = Field(min_length=1)
    env: dict[str, str] = {}
    accelerators: int = Field(default=0, ge=0)


class JobSpec(Resource):
    pods: int = Field(ge=1)
    ranks_per_pod: int = Field(ge=1)
    template: PodTemplate
    manager: PodTemplate | None = None
    """Template of the manager's pod. None: the training side brings its own manager."""

    training_side: str = "rekindle"
    standbys: int = Field(default=0, ge=0, le=MOST_STANDBYS)
    limits: dict[str, WrittenTime] = {}

    @property
    def layout(self) -> Layout:
        return Layout(self.pods, self.ranks_per_pod)


class JobPhase(StrEnum):
    """Phase of the job's worker pods. A recovery may restart a job without a live worker."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class JobObjectStatus(Resource):
    """Status of a job object. Only the cluster writes it."""

    phase: JobPhase = JobPhase.PENDING
    master_port: int = 0
    """`MASTER_PORT` of all pods of the job, which never changes. 0 where a Service names the port."""

    directory: str = ""
    """`REKINDLE_JOB_DIR` of all pods of the job, on the local cluster."""


class JobObject(Resource):
    """A job object. Labels and annotations are those of the Kubernetes contract (`subHealthyStrategy`, ...)."""

    kind: str = "LocalJob"
    traits: tuple[Trait, ...] = ()
    metadata: ObjectMeta
    spec: JobSpec
    status: JobObjectStatus = JobObjectStatus()
    suspended: bool = False
    """True if the job's owner or a queue has suspended it. The short suspension of a restart by Rekindle does not count."""

    failure: str = ""
    """Reason why the job's controller has failed the job for good. Empty: it has not. Such a job is never restarted."""

    queue: str = ""
    """Component that also decides when the job's pods run, such as a queue. Empty: none does. Such a job is not restarted."""

    unmovable: str = ""
    """Reason why no other pod can replace a pod of the job. Empty: one can."""

    admitted: bool = False
    """True if backup pods of the job are created by Rekindle, and an admission controller may reject them."""

    refilled: bool = False
    """True if the job's controller creates another pod at once for each one that is deleted."""

    graceful_tolerance: bool = False
    """True if the job or its pods ask for graceful fault tolerance (`hotReset=1`). The labels and annotations above
    may do so, too."""

    observe: bool = False
    """True if Rekindle only decides and shows what it would do for the job. Set for the installation or the namespace."""

    managed: bool = True
    """True if the job requests recoveries."""


class JobView(Value):
    """One job as the cluster shows it."""

    job: JobObject | None = None
    """The job object. None: the job no longer exists."""

    pods: tuple[Pod, ...] = ()
    nodes: tuple[Node, ...] = ()
    """Nodes of the job's pods: at least those with a problem, as far as nodes were read."""


class WatchEvent(Resource):
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    kind: Literal["Job", "Pod", "Node"]
    object: JobObject | Pod | Node


class ClusterEvent(Resource):
    """Event about an object, as `kubectl get events` shows it."""

    name: str
    """Name of the object that the event is about."""

    kind: str
    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"
    timestamp: datetime | None = None


class Status(Resource):
    """Error with which the cluster refuses a request."""

    code: int
    reason: str
    message: str


class MetadataChange(Resource):
    """Merge patch of labels and annotations. None removes a key."""

    labels: dict[str, str | None] = {}
    annotations: dict[str, str | None] = {}


class MetadataPatch(Resource):
    metadata: MetadataChange


class LinkPatch(Resource):
    name: str
    up: bool
    """True to plug in the cable, False to unplug it."""


class NodePatch(Resource):
    conditions: tuple[Condition, ...] = ()
    """Conditions to set. Each one replaces the condition of the same type."""

    accelerators: int | None = Field(default=None, ge=0)
    links: tuple[LinkPatch, ...] = ()
    annotations: dict[str, str | None] = {}
    """Annotations to set. None removes a key."""

    unschedulable: bool | None = None
    """True to cordon the node, False to uncordon it. None: no change."""


class GenerationRequest(Resource):
    """Request to create the pods of a restart of the whole job."""

    generation: str = Field(min_length=1, max_length=63)
    avoid_nodes: tuple[str, ...] = ()
