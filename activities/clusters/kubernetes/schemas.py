"""Shapes of Kubernetes objects, as far as they are read. Readers validate an object with them before they use it.

Tenants write these objects, and the schemas of third-party kinds may be lax: `affinity:` without a value, a JobSet without
replicated jobs, a number in quotes. An error is raised as BadInput that names the field, and is reported to the object's owner.
Only fields that are read are checked, and a null is an absent field, as everywhere in Kubernetes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, ValidationError
from pydantic.alias_generators import to_camel

from rekindle.errors import MALFORMED, BadInput
from rekindle.model.problems import problems
from rekindle.model.sizes import DEEPEST

SAYING_NULLS = ("manager",)
"""Fields in which a null differs from absence: a TrainingJob with `manager: null` has no manager, and one without the field has
ours."""

MOST_LINES = 10
"""Maximum number of wrong fields that an error names."""

MOST_CHARACTERS = 1000
"""Maximum length of the text about one object. It becomes an event, which takes 1,024 characters."""


class Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel)


def _moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("must have a time zone")
    return text


Count = Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]
"""Count as an int32, as in Kubernetes' own kinds."""

Amount = Annotated[StrictInt, Field(ge=0, le=2**63 - 1)] | StrictFloat | Annotated[str, Field(max_length=40)]
"""Amount of a resource."""

Moment = Annotated[str, AfterValidator(_moment)]


# ---- what all objects share


class Owner(Shape):
    kind: str
    name: str
    uid: str
    controller: StrictBool = False


class Metadata(Shape):
    name: str = Field(min_length=1)
    namespace: str = ""
    uid: str = Field(min_length=1)
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[Owner] = []
    finalizers: list[str] = []
    resource_version: str = Field(default="", pattern=r"^[0-9]{0,20}$")
    creation_timestamp: Moment = "1970-01-01T00:00:00Z"
    deletion_timestamp: Moment = "1970-01-01T00:00:00Z"


class Namespaced(Metadata):
    namespace: str = Field(min_length=1)


class Described(Shape):
    """Metadata of a template, which has no name yet."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Condition(Shape):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: Moment = "1970-01-01T00:00:00Z"


# ---- pods and nodes


class Requirement(Shape):
    key: str = ""
    operator: str
    values: list[str] = []


class Term(Shape):
    match_fields: list[Requirement] = []
    match_expressions: list[Requirement] = []


class NodeSelector(Shape):
    node_selector_terms: list[Term] = []


class Preferred(Shape):
    preference: Term


class NodeAffinity(Shape):
    required: NodeSelector = Field(default=NodeSelector(), alias="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[Preferred] = Field(default=[], alias="preferredDuringSchedulingIgnoredDuringExecution")


class Affinity(Shape):
    node_affinity: NodeAffinity = NodeAffinity()


class FieldRef(Shape):
    field_path: str = ""


class ValueFrom(Shape):
    field_ref: FieldRef = FieldRef()


class Variable(Shape):
    name: str
    value: str = ""
    value_from: ValueFrom = ValueFrom()


class Resources(Shape):
    limits: dict[str, Amount] = {}
    requests: dict[str, Amount] = {}


class Container(Shape):
    name: str = ""
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[Variable] = []
    resources: Resources = Resources()


class Toleration(Shape):
    key: str = ""


class Gate(Shape):
    name: str


class Claim(Shape):
    resource_claim_name: str = ""


class PodSpec(Shape):
    containers: list[Container] = Field(min_length=1)
    init_containers: list[Container] = []
    resource_claims: list[Claim] = []
    node_selector: dict[str, str] = {}
    scheduling_gates: list[Gate] = []
    tolerations: list[Toleration] = []
    node_name: str = ""
    host_network: StrictBool = False
    priority: Annotated[StrictInt, Field(ge=-(2**31), le=2**31 - 1)] = 0
    termination_grace_period_seconds: Annotated[StrictInt, Field(ge=0, le=2**63 - 1)] = 0
    affinity: Affinity = Affinity()


class Terminated(Shape):
    reason: str = ""
    message: str = ""
    exit_code: Annotated[StrictInt, Field(ge=-(2**31), le=2**31 - 1)] = 0


class Waiting(Shape):
    reason: str = ""
    message: str = ""


class ContainerState(Shape):
    terminated: Terminated = Terminated()
    waiting: Waiting = Waiting()


class Allocated(Shape):
    resource_id: str = Field(default="", alias="resourceID")


class ResourceStatus(Shape):
    resources: list[Allocated] = []


class ContainerStatus(Shape):
    name: str = ""
    allocated_resources_status: list[ResourceStatus] = []
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    restart_count: Count = 0


class Address(Shape):
    ip: str = ""


class PodStatus(Shape):
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"] = "Pending"
    reason: str = ""
    message: str = ""
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    pod_ip: str = Field(default="", alias="podIP")
    pod_ips: list[Address] = Field(default=[], alias="podIPs")
    host_ip: str = Field(default="", alias="hostIP")


class Pod(Shape):
    metadata: Namespaced
    spec: PodSpec
    status: PodStatus = PodStatus()


class Network(Shape):
    """Network settings of a pod's spec."""

    host_network: StrictBool = False


class Speaker(Shape):
    """Pod, with the fields that decide whether it may speak for its job.

    Validating the rest of thousands of pods would take a second.
    """

    metadata: Namespaced
    spec: Network = Network()
    status: PodStatus = PodStatus()


class Sized(Shape):
    resources: Resources = Resources()


class Placed(Shape):
    """Node of a pod, and the resources that it has there."""

    node_name: str = ""
    containers: list[Sized] = []


class Occupant(Shape):
    """Pod of anybody, with the fields that say what it occupies."""

    metadata: Namespaced
    spec: Placed


class NodeStatus(Shape):
    allocatable: dict[str, Amount] = {}
    capacity: dict[str, Amount] = {}
    conditions: list[Condition] = []


class Taint(Shape):
    key: str
    value: str = ""
    effect: str = ""
    time_added: Moment = "1970-01-01T00:00:00Z"


class NodeSpec(Shape):
    unschedulable: StrictBool = False
    taints: list[Taint] = []


class Node(Shape):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class EventSource(Shape):
    component: str = ""


class Involved(Shape):
    kind: str = ""
    name: str = ""


class ManagedField(Shape):
    time: Moment = "1970-01-01T00:00:00Z"


class Dated(Metadata):
    """Metadata with the times at which the API server accepted changes."""

    managed_fields: list[ManagedField] = []


class Series(Shape):
    last_observed_time: Moment = "1970-01-01T00:00:00Z"


class Event(Shape):
    metadata: Dated
    involved_object: Involved = Involved()
    source: EventSource = EventSource()
    reporting_component: str = ""
    reason: str = ""
    type: str = ""
    message: str = ""
    first_timestamp: Moment = "1970-01-01T00:00:00Z"
    last_timestamp: Moment = "1970-01-01T00:00:00Z"
    event_time: Moment = "1970-01-01T00:00:00Z"
    series: Series = Series()


class Named(Shape):
    """Object of which only the metadata is read."""

    metadata: Metadata


class ConfigMap(Shape):
    metadata: Dated
    data: dict[str, str] = {}


# ---- jobs, by their specs


class Template(Shape):
    metadata: Described = Described()
    spec: PodSpec


class PodTemplate(Shape):
    """PodTemplate object, which a restart leaves of a pod without controller."""

    metadata: Namespaced
    template: Template


class Loose(Shape):
    """Spec of a job of pods that have no controller. We write it."""

    pods: Count
    template: Template


class BatchJob(Shape):
    template: Template
    completions: Count = 1
    parallelism: Count = 1
    managed_by: str = ""
    suspend: StrictBool = False


class PartTemplate(Shape):
    metadata: Described = Described()
    spec: BatchJob


class Part(Shape):
    name: str
    replicas: Count = 1
    template: PartTemplate


class JobSet(Shape):
    replicated_jobs: list[Part] = Field(min_length=1)
    managed_by: str = ""
    suspend: StrictBool = False


class Trainer(Shape):
    num_nodes: Count = 1
    num_proc_per_node: Count | str = ""
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[Variable] = []
    resources_per_node: Resources = Resources()


class TrainJob(Shape):
    trainer: Trainer = Trainer()
    managed_by: str = ""
    suspend: StrictBool = False


class Replica(Shape):
    replicas: Count = 1
    restart_policy: str = ""
    template: Template


class AscendJob(Shape):
    replica_specs: dict[str, Replica] = Field(min_length=1)


class RunPolicy(Shape):
    managed_by: str = ""
    suspend: StrictBool = False


class PyTorchJob(Shape):
    pytorch_replica_specs: dict[str, Replica] = Field(min_length=1)
    run_policy: RunPolicy = RunPolicy()


class OwnPod(Shape):
    affinity: Affinity = Affinity()
    scheduling_gates: list[Gate] = []


class OnKubernetes(Shape):
    pod: OwnPod = OwnPod()
    container: Container = Container()


class TrainingJob(Shape):
    """Spec of our own kind, of which the rest is validated as a manifest."""

    pods: Count
    kubernetes: OnKubernetes = OnKubernetes()


class JobStatus(Shape):
    phase: str = ""
    message: str = ""
    conditions: list[Condition] = []
    failed_indexes: str = ""


Spec = TypeVar("Spec", bound=Shape)


class Job(Shape, Generic[Spec]):
    metadata: Namespaced
    spec: Spec
    status: JobStatus = JobStatus()


# ---- the check


def checked(shape: type[Shape], thing: dict[str, Any]) -> dict[str, Any]:
    """Returns the object without meaningless nulls, validated by this shape as far as it is read.

    Raises:
        BadInput: it is invalid; the first wrong fields are named.
    """
    found: dict[str, Any] = _without_nulls(thing, DEEPEST)
    try:
        shape.model_validate(found)
    except ValidationError as error:
        raise BadInput("; ".join(problems(error, shape)[:MOST_LINES])[:MOST_CHARACTERS]) from error
    return found


def _without_nulls(value: Any, levels: int) -> Any:
    if not levels:
        raise BadInput(f"it is nested more than {DEEPEST} levels deep, which no job needs")
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if one is not None or key in SAYING_NULLS}
        return {key: _without_nulls(one, levels - 1) for key, one in kept.items()}
    if isinstance(value, list):
        return [_without_nulls(one, levels - 1) for one in value]
    return value


@contextmanager
def reading(what: str = "it") -> Iterator[None]:
    """Converts any exception that the reading of an object causes to BadInput. It catches what the shapes do not cover."""
    try:
        yield
    except MALFORMED as error:
        raise BadInput(f"{what} cannot be read: {type(error).__name__}: {error}"[:MOST_CHARACTERS]) from error
