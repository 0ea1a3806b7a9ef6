"""Reads the manifest of `rekindle submit job.yaml`, and converts a job object into the job that recoveries work with.

Used by the command line (`parse`), the watcher (`job_of`), and the local cluster, which rejects a job that the watcher could not
register. An error names all wrong fields at once, with the accepted values.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import Field, StringConstraints, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from rekindle.errors import MALFORMED, BadInput
from rekindle.model.approval import Unanswered, spelled
from rekindle.model.base import Written, WrittenTime
from rekindle.model.bounds import cut
from rekindle.model.cluster import JobObject, JobSpec, ObjectMeta, PodTemplate
from rekindle.model.elastic import Elastic, accepted_elastic, is_named, read_elastic
from rekindle.model.job import (
    MOST_RETRY_TIMES,
    Capability,
    Drain,
    Framework,
    Job,
    JobId,
    ManagerLost,
    NoSpare,
    SubHealthStrategy,
    asks_for_graceful_tolerance,
    retry_times,
)
from rekindle.model.keys import (
    ANNOTATIONS,
    APPROVAL,
    CAPABILITIES,
    DOWNGRADED,
    DRAIN,
    ELASTIC,
    FAULT_RETRY_TIMES,
    FRAMEWORK,
    IGNORE_RULES,
    LABELS,
    LIMITS,
    MANAGER_LOST,
    NO_SPARE,
    PLATFORM_STRATEGY,
    POD_RESCHEDULING,
    PRIORITY,
    PROCESS_RECOVER_ENABLE,
    RANKS_PER_POD,
    RECOVER_STRATEGY,
    STANDBYS,
    SUB_HEALTHY_STRATEGY,
    TRAINING_SIDE,
)
from rekindle.model.limits import Limits
from rekindle.model.mode import FAULT_MODES, Mode
from rekindle.model.problems import INSIDE, MOST_GUESSED, did_you_mean, problems
from rekindle.model.sizes import DEEPEST, LONGEST_NAME, LONGEST_TEXT, MOST_PODS, MOST_RANKS, MOST_STANDBYS, size_problem
from rekindle.model.training_side import TrainingSide

KEPT_LABELS = (SUB_HEALTHY_STRATEGY, PROCESS_RECOVER_ENABLE, POD_RESCHEDULING, FRAMEWORK, FAULT_RETRY_TIMES)
KEPT_ANNOTATIONS = (
    APPROVAL,
    CAPABILITIES,
    DOWNGRADED,
    DRAIN,
    ELASTIC,
    IGNORE_RULES,
    MANAGER_LOST,
    NO_SPARE,
    PLATFORM_STRATEGY,
    PRIORITY,
    RECOVER_STRATEGY,
)
"""Labels and annotations of a job object that recoveries read. All others are dropped: they may be large."""

SPELLED = {
    LIMITS: "spec.limits",
    RANKS_PER_POD: "spec.ranksPerPod",
    STANDBYS: "spec.standbys",
    TRAINING_SIDE: "spec.trainingSide",
}
"""Annotations of other kinds of jobs, and the field of a `TrainingJob` for the same setting. They are rejected there, since they
would have no effect."""

OURS = ("LocalJob", "TrainingJob")
"""Kinds of jobs that have these fields."""

ON_OFF = ("on", "off")

MOST_PRIORITY = 1_000_000_000
"""Largest priority, as that of a priority class in Kubernetes."""

PRIORITY_PATTERN = re.compile(r"-?[0-9]{1,10}", re.ASCII)

QUOTED = 80
"""Maximum number of bytes of a wrong value in an error message."""

TOLD_PROBLEMS = 20
"""Maximum number of wrong fields in an error message."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$")]
"""Lower-case letters, digits and hyphens, at most 40 characters: names of pods are longer and must fit into a label."""

Word = TypeVar("Word", bound=StrEnum)
Argument = Annotated[str, StringConstraints(min_length=1)]


Checked = TypeVar("Checked")


class Metadata(Written):
    name: Name
    namespace: Name = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @field_validator("labels")
    @classmethod
    def _labels_mean_something(cls, labels: dict[str, str]) -> dict[str, str]:
        wrong = _slips(labels, LABELS)
        _framework(labels, "", wrong)
        _sub_health(labels, "", wrong)
        _retries(labels, "", wrong)
        _pod_rescheduling(labels, "", wrong)
        return _unless(wrong, labels)

    @field_validator("annotations")
    @classmethod
    def _annotations_mean_something(cls, annotations: dict[str, str]) -> dict[str, str]:
        wrong = _slips(annotations, ANNOTATIONS)
        _capabilities(annotations, "", wrong)
        _manager_lost(annotations, "", wrong)
        _drain(annotations, "", wrong)
        _no_spare(annotations, "", wrong)
        _elastic(annotations, "", MOST_PODS, wrong)
        _priority(annotations, "", wrong)
        _approvals(annotations, "", wrong)
        wrong += [f"{key}: not read of a TrainingJob, use {field}" for key, field in SPELLED.items() if key in annotations]
        return _unless(wrong, annotations)


NOT_OF_A_POD = {
    "containers": "there is one, of command and spec.kubernetes.container; others are initContainers with restartPolicy: Always",
    "restartPolicy": "is Never: pods are started again by recoveries",
    "nodeName": "no other pod could take over there; use nodeSelector or affinity",
}
"""Fields of a pod's spec that cannot be set, and the reasons."""


class Kubernetes(Written):
    """Settings of the pods for Kubernetes only."""

    image: str = ""
    accelerator_resource: str = "huawei.com/Ascend910"
    """Extended resource of an accelerator, such as `nvidia.com/gpu` for GPUs."""

    pod: dict[str, Any] = {}
    """Fields to set in the spec of each pod: volumes, tolerations, ..."""

    container: dict[str, Any] = {}
    """Fields to set in the container of each pod: volumeMounts, resources, ..."""

    @field_validator("pod")
    @classmethod
    def _says_nothing_of_what_is_ours(cls, pod: dict[str, Any]) -> dict[str, Any]:
        return _unless([f"{key}: {why}" for key, why in NOT_OF_A_POD.items() if key in pod], pod)


class Spec(Written):
    pods: int = Field(ge=1, le=MOST_PODS)
    ranks_per_pod: int = Field(ge=1, le=MOST_RANKS)
    command: tuple[Argument, ...] = Field(min_length=1)
    """Command line of each worker pod."""

    env: dict[str, str] = {}
    accelerators: int = Field(default=-1, ge=0)
    """Number of accelerators of each worker pod. By default one for each rank."""

    manager: tuple[Argument, ...] | None = None
    """Command line of the manager's pod. By default Rekindle's own manager, and none with another training side."""

    training_side: TrainingSide = TrainingSide.REKINDLE
    capabilities: tuple[Capability, ...] = ()
    standbys: int = Field(default=0, ge=0, le=MOST_STANDBYS)
    """Number of pods without a rank that stand by on spare nodes, with everything loaded except the state."""

    limits: dict[str, WrittenTime] = {}
    kubernetes: Kubernetes = Kubernetes()

    @property
    def manager_command(self) -> tuple[str, ...]:
        """Command line of the manager's pod. Empty: there is no such pod."""
        if "manager" in self.model_fields_set or self.training_side is not TrainingSide.REKINDLE:
            return self.manager or ()
        return ("rekindle-manager", "--nnodes", str(self.pods), "--nproc-per-node", str(self.ranks_per_pod))

    @property
    def accelerators_per_pod(self) -> int:
        return self.accelerators if "accelerators" in self.model_fields_set else self.ranks_per_pod

    @field_validator("limits")
    @classmethod
    def _limits_are_limits(cls, limits: dict[str, float | str]) -> dict[str, float | str]:
        names = {field.alias or name for name, field in Limits.model_fields.items()}
        wrong = _slips((key for key in limits if key in Limits.model_fields), names)  # all other keys are rejected as unknown
        _limits(Limits(), limits, wrong)
        return _unless(wrong, limits)


class Manifest(Written):
    api_version: Literal["rekindle.io/v1"]
    kind: Literal["TrainingJob"]
    metadata: Metadata
    spec: Spec


class Loader(yaml.SafeLoader):
    """YAML loader that rejects deep nesting and duplicate keys. The time for reading a document grows with the cube of its depth,
    and YAML silently uses the last of duplicate keys."""

    level = 0

    def __init__(self, text: str) -> None:
        """Args:
        text: YAML, or JSON with any indentation. YAML accepts no tabs before a key.
        """
        super().__init__(text.replace("\t", " ") if text.lstrip().startswith("{") else text)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.level += 1
        if self.level > DEEPEST:
            raise BadInput(f"the manifest is nested more than {DEEPEST} levels deep, which no job needs")
        node: yaml.Node | None = super().compose_node(parent, index)
        self.level -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = Counter((key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := next((key for (_, key), count in keys.items() if count > 1), None):
            raise BadInput(f"line {node.start_mark.line + 1}: {cut(twice, QUOTED)!r} is there twice, accepted is each key once")
        return node


def parse_all(text: str) -> list[JobObject]:
    """Returns the job objects of a file, which may contain several YAML documents. Empty documents are skipped.

    Raises:
        BadInput: one line for every wrong field of the first document that has any.
    """
    documents = [one for one in _documents(text) if one is not None]
    if len(documents) <= 1:
        return [parsed(documents[0] if documents else None)]
    found = []
    for number, document in enumerate(documents, start=1):
        try:
            found.append(parsed(document))
        except BadInput as error:
            raise BadInput(f"document {number} of {len(documents)}: {error}") from error
    return found


def _documents(text: str) -> list[object]:
    try:
        return list(yaml.load_all(text, Loader))
    except (yaml.YAMLError, *MALFORMED) as error:
        raise BadInput(f"the manifest is not YAML: {type(error).__name__}: {error}") from error


def parse(text: str, installation: Limits = Limits()) -> JobObject:  # noqa: B008
    """Returns the job object of a manifest in YAML, after validation together with the limits of the installation.

    Raises:
        BadInput: one line for every wrong field.
    """
    documents = _documents(text)
    if len(documents) > 1:
        raise BadInput(f"the manifest has {len(documents)} documents, accepted is one")
    return parsed(documents[0] if documents else None, installation)


def parsed(document: object, installation: Limits = Limits()) -> JobObject:  # noqa: B008
    """Returns the job object of a document that was read, as `parse` does for a text."""
    if not isinstance(document, dict):
        raise BadInput("the manifest is not a mapping: it begins with `apiVersion: rekindle.io/v1` and `kind: TrainingJob`")
    job = read(document)
    job_of(job, installation)
    return job


def read(document: Mapping[str, object]) -> JobObject:
    """Returns the job object of a manifest, with each field validated by itself.

    Raises:
        BadInput: one line for every wrong field.
    """
    try:
        return _job_object(Manifest.model_validate(document, by_alias=True, by_name=False))
    except ValidationError as error:
        raise refusal(problems(error, Manifest)) from error


def _job_object(manifest: Manifest) -> JobObject:
    spec, metadata = manifest.spec, manifest.metadata
    manager = spec.manager_command
    annotations = dict(metadata.annotations)
    if spec.capabilities:
        annotations[CAPABILITIES] = ",".join(spec.capabilities)
    return JobObject(
        metadata=ObjectMeta(name=metadata.name, namespace=metadata.namespace, labels=metadata.labels, annotations=annotations),
        spec=JobSpec(
            pods=spec.pods,
            ranks_per_pod=spec.ranks_per_pod,
            template=PodTemplate(command=spec.command, env=spec.env, accelerators=spec.accelerators_per_pod),
            manager=PodTemplate(command=manager, env=spec.env) if manager else None,
            training_side=spec.training_side,
            standbys=spec.standbys,
            limits=spec.limits,
        ),
    )


def job_of(job: JobObject, installation: Limits) -> Job:
    """Returns the job of a job object. Its own limits take precedence over the installation's.

    Raises:
        BadInput: one line for every label, annotation and field without a valid value.
    """
    spec = job.spec
    wrong = [f"spec: {problem}"] if (problem := size_problem(spec.pods, spec.ranks_per_pod)) else []
    _bounded_names(job, wrong)
    labels = _kept(job.metadata.labels, KEPT_LABELS, "metadata.labels", wrong)
    annotations = _kept(job.metadata.annotations, KEPT_ANNOTATIONS, "metadata.annotations", wrong)
    if wrong:
        raise refusal(wrong)
    side = _one_of(TrainingSide, spec.training_side, _written_in(job, TRAINING_SIDE), wrong)
    framework = _framework(labels, "metadata.labels.", wrong)
    sub_health = _sub_health(labels, "metadata.labels.", wrong)
    _retries(labels, "metadata.labels.", wrong)
    _pod_rescheduling(labels, "metadata.labels.", wrong)
    capabilities = _capabilities(annotations, "metadata.annotations.", wrong)
    manager_lost = _manager_lost(annotations, "metadata.annotations.", wrong)
    drain = _drain(annotations, "metadata.annotations.", wrong)
    no_spare = _no_spare(annotations, "metadata.annotations.", wrong)
    elastic = _elastic(annotations, "metadata.annotations.", spec.pods, wrong)
    priority = _priority(annotations, "metadata.annotations.", wrong)
    approvals = _approvals(annotations, "metadata.annotations.", wrong)
    limits = _limits(installation, spec.limits, wrong, _written_in(job, LIMITS))
    if wrong or not (side and framework and sub_health and manager_lost and drain and no_spare and limits):
        raise refusal(wrong)
    return Job(
        id=JobId(job.metadata.uid),
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        kind=job.kind,
        traits=job.traits,
        framework=framework,
        training_side=side,
        capabilities=_implied(capabilities, side),
        pods=spec.pods,
        ranks_per_pod=spec.ranks_per_pod,
        sub_health=sub_health,
        labels=labels,
        annotations=annotations,
        limits=limits,
        manager_lost=manager_lost,
        drain=drain,
        no_spare=no_spare,
        elastic=elastic,
        approvals=approvals,
        priority=priority,
        standbys=spec.standbys,
        queue=job.queue,
        unmovable=job.unmovable,
        admitted=job.admitted,
        refilled=job.refilled,
        graceful_tolerance=job.graceful_tolerance
        or asks_for_graceful_tolerance(job.metadata.labels, job.metadata.annotations, spec.template.env),
        observe=job.observe,
    )


def _written_in(job: JobObject, key: str) -> str:
    """Returns the field in which the owner of a job has written a setting: jobs of other kinds have annotations."""
    return SPELLED[key] if job.kind in OURS else f"metadata.annotations.{key}"


def _bounded_names(job: JobObject, wrong: list[str]) -> None:
    metadata = job.metadata
    for where, name in (("name", metadata.name), ("namespace", metadata.namespace), ("uid", metadata.uid)):
        if len(name) > LONGEST_NAME:
            wrong.append(f"metadata.{where}: {len(name)} characters are too many: it has at most {LONGEST_NAME}")


def _kept(written: dict[str, str], keys: tuple[str, ...], where: str, wrong: list[str]) -> dict[str, str]:
    """Returns the entries with these keys. Appends an error to `wrong` for each value that is too long."""
    kept = {key: written[key] for key in keys if key in written}
    for key, text in kept.items():
        if len(text) > LONGEST_TEXT:
            wrong.append(f"{where}.{key}: {len(text)} characters are too many: it has at most {LONGEST_TEXT}")
    return kept


def _one_of(words: type[Word], value: str, where: str, wrong: list[str]) -> Word | None:
    try:
        return words(value)
    except ValueError:
        wrong.append(f"{where}: {cut(value, QUOTED)!r} is not accepted (accepted: {', '.join(words)})")
        return None


def _framework(labels: dict[str, str], prefix: str, wrong: list[str]) -> Framework | None:
    return _one_of(Framework, labels.get(FRAMEWORK, Framework.PYTORCH), f"{prefix}{FRAMEWORK}", wrong)


def _sub_health(labels: dict[str, str], prefix: str, wrong: list[str]) -> SubHealthStrategy | None:
    word = labels.get(SUB_HEALTHY_STRATEGY, SubHealthStrategy.IGNORE)
    return _one_of(SubHealthStrategy, word, f"{prefix}{SUB_HEALTHY_STRATEGY}", wrong)


def _retries(labels: dict[str, str], prefix: str, wrong: list[str]) -> None:
    said = labels.get(FAULT_RETRY_TIMES)
    if said is not None and retry_times(said) is None:
        wrong.append(f"{prefix}{FAULT_RETRY_TIMES}: {cut(said, QUOTED)!r} is not accepted (accepted: 0 to {MOST_RETRY_TIMES})")


def _pod_rescheduling(labels: dict[str, str], prefix: str, wrong: list[str]) -> None:
    said = labels.get(POD_RESCHEDULING, "off")
    if said not in ON_OFF:
        wrong.append(f"{prefix}{POD_RESCHEDULING}: {cut(said, QUOTED)!r} is not accepted (accepted: {', '.join(ON_OFF)})")


def _capabilities(annotations: dict[str, str], prefix: str, wrong: list[str]) -> set[Capability]:
    words = [word.strip() for word in annotations.get(CAPABILITIES, "").split(",") if word.strip()]
    return {known for word in words if (known := _one_of(Capability, word, f"{prefix}{CAPABILITIES}", wrong))}


def _manager_lost(annotations: dict[str, str], prefix: str, wrong: list[str]) -> ManagerLost | None:
    return _one_of(ManagerLost, annotations.get(MANAGER_LOST, ManagerLost.LEAVE), f"{prefix}{MANAGER_LOST}", wrong)


def _drain(annotations: dict[str, str], prefix: str, wrong: list[str]) -> Drain | None:
    return _one_of(Drain, annotations.get(DRAIN, Drain.WAIT), f"{prefix}{DRAIN}", wrong)


def _no_spare(annotations: dict[str, str], prefix: str, wrong: list[str]) -> NoSpare | None:
    return _one_of(NoSpare, annotations.get(NO_SPARE, NoSpare.IGNORE), f"{prefix}{NO_SPARE}", wrong)


def _elastic(annotations: dict[str, str], prefix: str, pods: int, wrong: list[str]) -> Elastic | None:
    """Returns the sizes with which a job may train. None: only that with which it was started, or the annotation is wrong."""
    if (said := annotations.get(ELASTIC)) is None:
        return Elastic() if is_named(annotations.get(RECOVER_STRATEGY, "")) else None
    found = read_elastic(said, pods)
    if found is None:
        accepted = accepted_elastic(said, pods)
        wrong.append(f"{prefix}{ELASTIC}: {cut(said, QUOTED)!r} is not accepted (accepted: {accepted})")
    return found


def _priority(annotations: dict[str, str], prefix: str, wrong: list[str]) -> int | None:
    """Returns the priority of the job. None: the annotation is missing or wrong."""
    if (said := annotations.get(PRIORITY)) is None:
        return None
    if PRIORITY_PATTERN.fullmatch(said) and abs(int(said)) <= MOST_PRIORITY:
        return int(said)
    accepted = f"an integer from {-MOST_PRIORITY} to {MOST_PRIORITY}"
    wrong.append(f"{prefix}{PRIORITY}: {cut(said, QUOTED)!r} is not accepted (accepted: {accepted})")
    return None


def _approvals(annotations: dict[str, str], prefix: str, wrong: list[str]) -> dict[Mode, Unanswered]:
    found: dict[Mode, Unanswered] = {}
    for entry in annotations.get(APPROVAL, "").split(","):
        if not entry.strip():
            continue
        name, _, said = (part.strip() for part in entry.partition(":"))
        action = _one_of(Unanswered, said or Unanswered.DENY, f"{prefix}{APPROVAL}, {cut(name, QUOTED)}", wrong)
        mode = next((mode for mode in FAULT_MODES if spelled(mode) == name), None)
        if mode is None:
            accepted = ", ".join(spelled(one) for one in FAULT_MODES)
            wrong.append(f"{prefix}{APPROVAL}: {cut(name, QUOTED)!r} is not accepted (accepted: {accepted})")
        elif mode in found:
            wrong.append(f"{prefix}{APPROVAL}: {name} is there twice, accepted is each mode once")
        elif action:
            found[mode] = action
    return found


def _implied(said: set[Capability], side: TrainingSide) -> tuple[Capability, ...]:
    """Adds the capability that Rekindle's training side always has: it can replace rank 0."""
    ours = {Capability.REPLACE_RANK_0} if side is TrainingSide.REKINDLE else set()
    return tuple(sorted(said | ours))


def _limits(installation: Limits, own: dict[str, float | str], wrong: list[str], where: str = "") -> Limits | None:
    """Returns the job's limits, with the installation's as defaults.

    Args:
        where: field with all of them. Empty: each limit is validated only by itself.
    """
    names = {field.alias: name for name, field in Limits.model_fields.items()}
    try:
        return Limits.model_validate({**installation.model_dump(), **{names.get(key, key): own[key] for key in own}})
    except ValidationError as error:
        wrong.extend(problems(error, Limits, where, relations=bool(where)))
        return None


def _slips(written: Iterable[str], known: Collection[str]) -> list[str]:
    """Returns an error for each key that is similar to a known one. It would be ignored silently; all other unknown keys are
    accepted."""
    unknown = islice((key for key in written if key not in known), MOST_GUESSED)
    meant = {key: did_you_mean(key, known) for key in unknown}
    return [f"{key}: unknown{words}" for key, words in meant.items() if words]


def _unless(wrong: list[str], value: Checked) -> Checked:
    if wrong:
        raise PydanticCustomError(INSIDE, "{problems}", {"problems": tuple(wrong)})
    return value


def refusal(lines: list[str]) -> BadInput:
    """Returns an error with all lines, or the first ones of very many: it becomes an event, a log line or a status."""
    if len(lines) == 1:
        return BadInput(lines[0])
    more = [f"and {len(lines) - TOLD_PROBLEMS} more"] if len(lines) > TOLD_PROBLEMS else []
    return BadInput("\n".join([f"{len(lines)} fields are wrong:", *lines[:TOLD_PROBLEMS], *more]))
