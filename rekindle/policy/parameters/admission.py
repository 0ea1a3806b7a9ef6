"""Admission of jobs by the API server: errors are refused, and the variables of the strategies are added to new jobs.

Only a job that asks for recoveries is read, by a label or an annotation of the catalog. All functions are pure, and the size of
what they read is bounded.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.model import keys
from rekindle.model.bounds import cut
from rekindle.model.limits import Limits
from rekindle.policy.parameters.catalog import WATCHDOG, Place, at
from rekindle.policy.parameters.checks import findings, injected
from rekindle.policy.parameters.environment import Table
from rekindle.policy.parameters.findings import ANNOTATIONS, LABELS, Finding, Level, warning
from rekindle.policy.parameters.job_file import Container, JobFile, job_in, kind_of
from rekindle.policy.parameters.kinds.table import Steps
from rekindle.policy.parameters.reading import Document, mapping, sequence, text
from rekindle.policy.parameters.values import quoted

ASKING_LABELS = tuple(sorted({*at(Place.LABEL), keys.MANAGED} - {keys.FRAMEWORK}))
ASKING_ANNOTATIONS = tuple(sorted({*at(Place.ANNOTATION), *keys.ANNOTATIONS, keys.HOT_RESET}))
"""Labels and annotations by which a job asks for recoveries. `framework` is a word of others, too."""

MOST_VALUES = 20_000
"""Maximum number of values of a job that is read. A job of a hundred pod templates has fewer."""

MOST_LETTERS = 300_000
"""Maximum number of characters of all keys and texts of a job that is read."""

MOST_TOLD = 10
"""Maximum number of errors in a refusal."""

LONGEST_TOLD = 600
"""Maximum number of bytes of an error in a refusal."""

MOST_WARNINGS = 5
LONGEST_WARNING = 120
"""Maximum number of warnings, and of bytes of one. Source: the API server's documentation, which recommends 120."""

CREATE, UPDATE = "CREATE", "UPDATE"
"""Operations that are judged."""

NOT_READ = f"the job has more than {MOST_VALUES} values or {MOST_LETTERS} characters, and is admitted without a check"

Operation = Mapping[str, Any]
"""Operation of a JSON patch."""


@dataclass(frozen=True)
class Verdict:
    """Answer to an admission request."""

    refusal: str = ""
    """Errors, a line for each. Empty: the object is admitted."""
    warnings: tuple[str, ...] = ()
    patch: tuple[Operation, ...] = ()

    @property
    def observed(self) -> "Verdict":
        """Verdict of an installation that only observes: it refuses and changes nothing."""
        return Verdict(warnings=(*_warnings(self.refusal.splitlines()), *self.warnings)[:MOST_WARNINGS])


def mutated(request: Document, limits: Limits) -> Verdict:
    """Returns the variables to add to a new job. A variable that its owner has set stays.

    A changed job gets back those that it had. Its owner's file does not have them, and applying it again would remove them from
    the lists of most kinds. It gets no others: pod templates of Jobs cannot be changed.

    Args:
        request: that of an AdmissionReview.
        limits: those of the installation.
    """
    operation = request.get("operation")
    written = _asking(request, "object") if operation in (CREATE, UPDATE) else {}
    before = _asking(request, "oldObject") if operation == UPDATE else {}
    if not (_is_read(written) and _is_read(before)):
        return Verdict()
    job, old = (job_in(one, limits) for one in (written, before))
    if job is None or (operation == UPDATE and old is None):
        return Verdict()
    return Verdict(patch=tuple(_patch(job, old)))


def validated(request: Document, limits: Limits) -> Verdict:
    """Returns whether a new or changed job is admitted. An error that was there before the change is no reason to refuse it.

    Args:
        request: that of an AdmissionReview.
        limits: those of the installation.
    """
    written = _asking(request, "object") if request.get("operation") in (CREATE, UPDATE) else {}
    before = _asking(request, "oldObject")
    if not (_is_read(written) and _is_read(before)):
        return Verdict(warnings=tuple(_warnings([NOT_READ])))
    job, old = (job_in(one, limits) for one in (written, before))
    if job is None:
        return Verdict()
    known = set(_found(old)) if old else set()
    remaining = _remaining(job, old, known) if old else set()
    errors, warnings = list[str](), list[str]()
    for one in _found(job):
        if one not in known:
            is_refused = one.level is Level.ERROR and one.field not in remaining
            (errors if is_refused else warnings).append(_line(one))
    return Verdict(_refusal(errors), tuple(_warnings(warnings)))


# ---- jobs that are read


def _asking(request: Document, part: str) -> Document:
    """Returns a job that asks for recoveries, as its owner has written it. Empty: it asks for none, or is not judged."""
    document = mapping(request.get(part))
    metadata = mapping(document.get("metadata"))
    named = kind_of(document)
    if named is None or named[1].of_operator or text(request.get("subResource")):
        return {}
    is_left_alone = bool(metadata.get("deletionTimestamp")) or _is_part(metadata)
    if is_left_alone or not (named[1].is_ours or _asks(metadata)):
        return {}
    kept: dict[str, Any] = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key) is not None}
    kept["name"] = text(metadata.get("name")) or (text(metadata.get("generateName")) or "").rstrip("-.")
    kept["namespace"] = text(metadata.get("namespace")) or text(request.get("namespace")) or "default"
    return {**{key: document[key] for key in ("apiVersion", "kind", "spec") if key in document}, "metadata": kept}


def _asks(metadata: Document) -> bool:
    labels, annotations = mapping(metadata.get("labels")), mapping(metadata.get("annotations"))
    return any(key in labels for key in ASKING_LABELS) or any(key in annotations for key in ASKING_ANNOTATIONS)


def _is_part(metadata: Document) -> bool:
    """Returns whether the controller of another job has created it, such as the Job of a JobSet. That job was judged."""
    owners = map(mapping, sequence(metadata.get("ownerReferences")))
    return any(owner.get("controller") is True and kind_of(owner) is not None for owner in owners)


def _is_read(document: Document) -> bool:
    """Returns whether a job is small enough to be read."""
    values = letters = 0
    waiting: list[Any] = [document]
    while waiting:
        value = waiting.pop()
        values += 1
        if isinstance(value, dict):
            letters += sum(len(str(key)) for key in value)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            letters += len(value)
        if values + len(waiting) > MOST_VALUES or letters > MOST_LETTERS:
            return False
    return True


# ---- findings


def _found(job: JobFile) -> list[Finding]:
    return [*findings(job), *_contradicted(job)]


def _remaining(job: JobFile, old: JobFile, known: Collection[Finding]) -> set[str]:
    """Returns the fields that were wrong before, and whose label or annotation was not changed. Their errors may read differently
    now, such as one that names the number of pods."""

    def is_changed(field: str) -> bool:
        parts = ((LABELS, job.labels, old.labels), (ANNOTATIONS, job.annotations, old.annotations))
        keys_of = ((field.removeprefix(f"{part}."), now, before) for part, now, before in parts if field.startswith(f"{part}."))
        return any(now.get(key) != before.get(key) for key, now, before in keys_of)

    return {one.field for one in known if one.level is Level.ERROR and not is_changed(one.field)}


def _contradicted(job: JobFile) -> Iterator[Finding]:
    """Yields variables of the owner that differ from those of the strategies. Jobs of MindCluster have a check of their own."""
    brought = injected(job, Table.OPERATOR)
    for container in _trained(job) if brought and not job.row.of_mindcluster else ():
        if container.has_others:
            words = "env comes before it: variables of the strategies that differ have to stand in env"
            yield warning(f"{container.path}.envFrom", words)
        for name, value in sorted(brought.items()):
            written = container.variables.get(name)
            if written is not None and written != value and name != WATCHDOG:
                yield warning(f"{container.path}.env.{name}", f"{quoted(written)} stays instead of {value!r}")


def _trained(job: JobFile) -> Iterator[Container]:
    for template in job.templates:
        if not template.is_manager:
            yield from template.trained


def _line(one: Finding) -> str:
    return f"{one.field}: {one.message}{one.fix and f'; fix: {one.fix}'}"


def _refusal(errors: Sequence[str]) -> str:
    told = [cut(_printed(line), LONGEST_TOLD) for line in errors[:MOST_TOLD]]
    more = [f"and {len(errors) - MOST_TOLD} more: rekindle check lists all"] if len(errors) > MOST_TOLD else []
    return "\n".join([*told, *more])


def _warnings(lines: Sequence[str]) -> Iterator[str]:
    """Yields the first warnings. The API server accepts only text that can stand in the header of an answer."""
    kept = MOST_WARNINGS if len(lines) <= MOST_WARNINGS else MOST_WARNINGS - 1
    yield from (cut(_printed(line), LONGEST_WARNING) for line in lines[:kept])
    if len(lines) > kept:
        yield f"and {len(lines) - kept} more: rekindle check lists all"


def _printed(line: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in line)


# ---- variables


def _patch(job: JobFile, old: JobFile | None) -> Iterator[Operation]:
    """Args:
    old: the job before a change, which gets back only what it had. None: it is new.
    """
    brought = injected(job, Table.OPERATOR)
    had = {container.steps: container.variables for container in _trained(old)} if old else {}
    for container in _trained(job):
        wanted = {name for name in brought if old is None or had.get(container.steps, {}).get(name) == brought[name]}
        missing = {name: brought[name] for name in sorted(wanted) if name not in container.variables}
        if missing:
            yield from _added(job, (*container.steps, "env"), missing)


def _added(job: JobFile, steps: Steps, missing: Mapping[str, str]) -> Iterator[Operation]:
    """Yields the operations that add variables at the place to which the steps lead, whose last parts may be missing."""
    there: Any = job.document
    added: Any = dict(missing) if job.row.maps_variables else [{"name": name, "value": value} for name, value in missing.items()]
    for number, step in enumerate(steps):
        if isinstance(there, dict) and there.get(step) is None:
            for later in reversed(steps[number + 1 :]):
                added = {later: added}
            yield {"op": "add", "path": _pointer(steps[: number + 1]), "value": added}
            return
        inner = _inside(there, step)
        if inner is None:
            return  # an object that the API server refuses
        there = inner
    if isinstance(there, dict) and job.row.maps_variables:
        yield from ({"op": "add", "path": _pointer((*steps, name)), "value": value} for name, value in missing.items())
    elif isinstance(there, list) and not job.row.maps_variables:
        yield from ({"op": "add", "path": _pointer((*steps, "-")), "value": one} for one in added)


def _inside(there: object, step: str | int) -> Any:
    """Returns a part of a document. None: there is no such part."""
    return mapping(there).get(step) if isinstance(step, str) else dict(enumerate(sequence(there))).get(step)


def _pointer(steps: Steps) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)
