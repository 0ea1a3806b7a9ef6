"""Reads a job file as Rekindle registers it: errors of its own annotations and fields, and the modes that the job can have."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from rekindle.errors import BadInput
from rekindle.model import accelerators, keys, other_controllers, own_annotations
from rekindle.model.attachment import Attachment, Progress
from rekindle.model.cluster import JobObject, JobSpec, ObjectMeta, PodTemplate
from rekindle.model.job import Job, asks_for_graceful_tolerance
from rekindle.model.manifest import job_of, parsed
from rekindle.model.other_controllers import QUEUE_NAME
from rekindle.model.own_annotations import RANK_COUNTS, count_of
from rekindle.model.sizes import LONGEST_LABEL
from rekindle.model.state import JobState
from rekindle.policy.modes.chances import Chance, chances
from rekindle.policy.parameters.catalog import PARAMETERS
from rekindle.policy.parameters.findings import Finding, error
from rekindle.policy.parameters.job_file import JobFile
from rekindle.policy.parameters.pods import NOT_SERVED
from rekindle.policy.parameters.reading import as_text, mapping, sequence, text

_CHECKED = {parameter.name for parameter in PARAMETERS}
_ATTACHED = Attachment(queue="", session="", since=datetime.min.replace(tzinfo=UTC))
_STARTED = Progress(incarnation="", step=1)


def check(job: JobFile) -> Iterator[Finding]:
    """Yields what Rekindle would refuse, as far as no parameter of MindCluster is concerned: they have their own checks."""
    try:
        registered(job)
    except BadInput as problem:
        lines = str(problem).splitlines()
        for line in lines[1:] if len(lines) > 1 else lines:
            field, _, message = line.partition(": ")
            if field.rpartition(".")[2] not in _CHECKED:
                yield error(field, message or line)


def registered(job: JobFile) -> Job:
    """Returns the job with which recoveries would work.

    Raises:
        BadInput: one line for every wrong field.
    """
    if job.row.is_ours:
        return job_of(parsed(job.document, job.limits), job.limits)
    try:
        return job_of(_object(job), job.limits)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        raise BadInput(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from problem


def modes(job: JobFile) -> tuple[Chance, ...]:
    """Returns what speaks against each mode, for a job that trains and to which nothing has happened. Raises as `registered`."""
    found = chances(JobState(job=registered(job), registered=True, introduced=True, attachment=_ATTACHED, progress=_STARTED))
    return found if job.row.is_served else tuple(one.model_copy(update={"against": (NOT_SERVED,)}) for one in found)


def _object(job: JobFile) -> JobObject:
    metadata = mapping(job.document.get("metadata"))
    labels, annotations = _strings(job.labels), _strings(job.annotations)
    if job.row.of_mindcluster and keys.RECOVER_STRATEGY in annotations:
        labels.setdefault(keys.PROCESS_RECOVER_ENABLE, "on")  # as the Ascend Operator does
    variables = {name: value or "" for container in job.containers for name, value in container.variables.items()}
    if len(job.name) > LONGEST_LABEL:
        words = f"{len(job.name)} characters are too many: its pods are found by a label with this name, which has at most"
        raise BadInput(f"metadata.name: {words} {LONGEST_LABEL}")
    if job.templates and not job.workers:
        raise BadInput("spec: no pods carry ranks: every template is one of a manager")
    return JobObject(
        kind=job.kind,
        traits=job.row.traits,
        metadata=ObjectMeta(
            name=job.name,
            namespace=str(metadata.get("namespace") or "default"),
            labels=labels,
            annotations=annotations,
        ),
        spec=JobSpec(
            pods=max(1, job.pods),
            ranks_per_pod=_ranks_per_pod(job),
            template=PodTemplate(command=("training",)),
            training_side=annotations.get(keys.TRAINING_SIDE) or job.row.side,
            standbys=own_annotations.standbys(annotations.get(keys.STANDBYS, "")),
            limits=own_annotations.limits(annotations.get(keys.LIMITS, "")),
        ),
        graceful_tolerance=asks_for_graceful_tolerance(labels, annotations, variables),
        queue=_queue(job),
        unmovable=_unmovable(job),
    )


def _queue(job: JobFile) -> str:
    """Describes the component that decides when the job's pods run. Empty: its own controller."""
    spec = mapping(job.document.get("spec"))
    manager = text(spec.get("managedBy")) or text(mapping(spec.get("runPolicy")).get("managedBy")) or ""
    queue = as_text(job.labels.get(QUEUE_NAME)) or as_text(job.annotations.get(QUEUE_NAME)) if job.row.is_queued else ""
    gates = (mapping(gate).get("name") for template in job.templates for gate in sequence(template.spec.get("schedulingGates")))
    return other_controllers.decides("" if manager == job.row.own_manager else manager, queue, map(as_text, gates))


def _unmovable(job: JobFile) -> str:
    """Returns why no other pod can take the place of one of the job's pods. Empty: one can."""
    if not job.row.places_jobs:
        return ""
    jobs = sequence(mapping(job.document.get("spec")).get("replicatedJobs"))
    templates = (mapping(mapping(mapping(one).get("template")).get("metadata")) for one in jobs)
    return other_controllers.unmovable((job.annotations, *(mapping(one.get("annotations")) for one in templates)))


def _strings(written: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): value for key, value in written.items() if isinstance(value, str)}


def _ranks_per_pod(job: JobFile) -> int:
    if ranks := own_annotations.ranks_per_pod(job.annotation(keys.RANKS_PER_POD) or ""):
        return ranks
    for template in job.workers[:1]:
        written = {name: value or "" for container in template.containers for name, value in container.variables.items()}
        if ranks := next((found for name in RANK_COUNTS if (found := count_of(written.get(name, "")))), 0):
            return ranks
        limits = (mapping(mapping(one).get("resources")).get("limits") for one in sequence(template.spec.get("containers")))
        return sum(accelerators.count({name: as_text(amount)[:10] for name, amount in mapping(of).items()}) for of in limits) or 1
    return 1
