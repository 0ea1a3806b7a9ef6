"""Objects of a cluster, shaped after Kubernetes. The local cluster serves them, the `Cluster` port and the watcher read them."""

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
    """The condition of a type, when the object has it."""
    return next((condition for condition in conditions if condition.type == kind), None)


class PodPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class PodRole(StrEnum):
    """Environment `REKINDLE_POD_ROLE` of a pod."""

    WORKER = "worker"
    BACKUP = "backup"
    MANAGER = "manager"
    STANDBY = "standby"


class PodSpec(Resource):
    command: tuple[str, ...] = Field(min_length=1)
    env: dict[str, str] = {}
    accelerators: int = Field(default=0, ge=0)
    """Accelerators that the pod asks for; a node must have as many free."""

    node_name: str = ""
    """The node that the scheduler chose; empty while the pod is not scheduled."""

    avoid_nodes: tuple[str, ...] = ()
    """Required anti-affinity: never scheduled to these nodes."""

    tolerates: tuple[str, ...] = ()
    """Keys of the taints of nodes that the pod tolerates by name."""

    gates: tuple[str, ...] = ()
    """Scheduling gates: no scheduler looks at the pod until others have removed them."""

    termination_grace_period_seconds: int = Field(default=10, ge=0)


class ContainerState(Resource):
    """What became of a container of a pod."""

    name: str
    trains: bool = True
    """Whether it has accelerators, or is the first one of a pod that has none."""

    waiting: str = ""
    """Why it waits: `CrashLoopBackOff`."""

    exit_code: int | None = None
    """With which it ended last."""

    restarts: int = 0
    message: str = ""


class PodStatus(Resource):
    phase: PodPhase = PodPhase.PENDING
    conditions: tuple[Condition, ...] = ()
    reason: str = ""
    message: str = ""
    waiting: str = ""
    """Why a container of it has not started, such as `ImagePullBackOff: ...`; empty: nobody says."""

    exit_code: int | None = None
    pid: int | None = None
    start_time: datetime | None = None
    containers: tuple[ContainerState, ...] = ()
    """Those that wait, were started again or have ended; of one that just runs there is nothing to tell."""

    devices: tuple[str, ...] = ()
    """Local ids of its devices on its node (`0`, `1`, ...), in the order of its local ranks. Empty: none, or nobody says."""

    uuids: tuple[str, ...] = ()
    """The same by UUID (`GPU-6b2c...`), in no order, where local ids are not said."""


class Pod(Resource):
    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus = PodStatus()


class Link(Resource):
    """A network interface of a node that carries the traffic of ranks. A node's first one is in use, the next one its backup."""

    name: str
    up: bool = True
    """Whether its cable is plugged in."""

    sent: int = 0
    received: int = 0
    """Bytes since the node is there, when the node was asked for."""


class Taint(Resource):
    key: str
    value: str = ""
    effect: str = ""
    time_added: datetime | None = None


class NodeReport(Resource):
    """What somebody says of a node in an object of its own; there as long as that object says it."""

    id: str
    """Names it among all that is said of the node."""

    source: str
    """`event`, `device-plugin`, `switch`, `noded`, `public-fault`."""

    code: str = ""
    level: str = ""
    by: str = ""
    """The component that wrote an event; who sent a public fault."""

    message: str = ""
    devices: tuple[str, ...] = ()
    """Local ids of the devices that it is about; empty: the whole node."""

    since: datetime | None = None
    told: datetime | None = None
    """When it was said last, by the clock of the API server where that says so."""

    until: datetime | None = None
    """When it is over by itself, if nobody says it again; None: it lasts as long as its object says it."""


class NodeSpec(Resource):
    unschedulable: bool = False
    """Cordoned: no new pod is put there."""

    taints: tuple[Taint, ...] = ()


class NodeStatus(Resource):
    accelerators: int
    """Capacity."""

    reports: tuple[NodeReport, ...] = ()
    """What others say of it: not a part of the object in Kubernetes."""

    conditions: tuple[Condition, ...] = ()
    """`Ready`, and `SubHealthy` (status True: degraded; reason is the fault code)."""

    links: tuple[Link, ...] = ()
    """Of a local cluster whose nodes have networks of their own; elsewhere none are known."""


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
    """Template of the manager's pod; None where the training side brings its own (MindIO)."""

    training_side: str = "rekindle"
    standbys: int = Field(default=0, ge=0, le=MOST_STANDBYS)
    limits: dict[str, WrittenTime] = {}

    @property
    def layout(self) -> Layout:
        return Layout(self.pods, self.ranks_per_pod)


class JobPhase(StrEnum):
    """How the job's worker pods are. A job without a live worker may be brought back by a recovery."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class JobObjectStatus(Resource):
    """Written by the cluster only."""

    phase: JobPhase = JobPhase.PENDING
    master_port: int = 0
    """`MASTER_PORT` of all its pods, for the job's life. 0 where a Service names the port."""

    directory: str = ""
    """`REKINDLE_JOB_DIR` of all its pods, on the local cluster."""


class JobObject(Resource):
    """The job object. Labels and annotations are those of the Kubernetes contract (`subHealthyStrategy`, ...)."""

    kind: str = "LocalJob"
    traits: tuple[Trait, ...] = ()
    metadata: ObjectMeta
    spec: JobSpec
    status: JobObjectStatus = JobObjectStatus()
    suspended: bool = False
    """Its owner or a queue has stopped it; a restart of ours, which does so for a moment, is none of that."""

    failure: str = ""
    """Reason why its controller has given it up for good, in words; empty: it has not. Nobody brings such a job back."""

    queue: str = ""
    """Who else decides when its pods run, in words; empty: nobody does. Such a job is not restarted."""

    unmovable: str = ""
    """Reason why no other pod can take the place of one of its pods, in words; empty: one can."""

    admitted: bool = False
    """True: its backups are pods that we make, and that somebody may refuse."""

    observe: bool = False
    """Decide what would be done for it, and do nothing. Said by whoever reads the cluster: its installation or its namespace."""

    managed: bool = True
    """It asks for recoveries."""


class JobView(Value):
    """One job as the cluster shows it."""

    job: JobObject | None = None
    """None: there is no such job any more."""

    pods: tuple[Pod, ...] = ()
    nodes: tuple[Node, ...] = ()
    """Of those that its pods are on at least the ones that something is wrong with, as far as they were looked at."""


class WatchEvent(Resource):
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    kind: Literal["Job", "Pod", "Node"]
    object: JobObject | Pod | Node


class ClusterEvent(Resource):
    """An event about an object, as people read it (`kubectl get events`)."""

    name: str
    """Name of the object that it is about."""

    kind: str
    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"
    timestamp: datetime | None = None


class Status(Resource):
    """The cluster's refusal of a request."""

    code: int
    reason: str
    message: str


class MetadataChange(Resource):
    """A merge patch: None removes a key."""

    labels: dict[str, str | None] = {}
    annotations: dict[str, str | None] = {}


class MetadataPatch(Resource):
    metadata: MetadataChange


class LinkPatch(Resource):
    name: str
    up: bool
    """Plugs its cable in, or pulls it."""


class NodePatch(Resource):
    conditions: tuple[Condition, ...] = ()
    """Each replaces the condition of its type."""

    accelerators: int | None = Field(default=None, ge=0)
    links: tuple[LinkPatch, ...] = ()
    annotations: dict[str, str | None] = {}
    """None removes a key."""

    unschedulable: bool | None = None
    """Cordons it, or takes that back."""


class GenerationRequest(Resource):
    """The pods of a restart of the whole job."""

    generation: str = Field(min_length=1, max_length=63)
    avoid_nodes: tuple[str, ...] = ()
