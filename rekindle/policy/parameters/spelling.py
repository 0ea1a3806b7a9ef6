"""Checks of each parameter by itself: its value, its spelling, and the place where it stands."""

from collections.abc import Iterator, Mapping
from typing import Any

from rekindle.model import keys
from rekindle.model.bounds import cut
from rekindle.model.problems import MOST_GUESSED, did_you_mean
from rekindle.policy.parameters.catalog import Parameter, Place, at
from rekindle.policy.parameters.findings import ANNOTATIONS, LABELS, Finding, error, warning
from rekindle.policy.parameters.job_file import Container, JobFile
from rekindle.policy.parameters.reading import as_text
from rekindle.policy.parameters.values import QUOTED, quoted

_LABELS, _ANNOTATIONS = at(Place.LABEL), at(Place.ANNOTATION)
_VARIABLES, _FLAGS, _LAUNCHER = at(Place.VARIABLE), at(Place.SCRIPT), at(Place.LAUNCHER)
SAID_ELSEWHERE = {(keys.HOT_RESET, "1"), (keys.PROCESS_RECOVER_ENABLE, "pause")}
"""Wrong values of which the contradictions say more."""
_OWN_LABELS = {*_LABELS, *keys.LABELS}
_OWN_ANNOTATIONS = {*_ANNOTATIONS, *keys.ANNOTATIONS, keys.HOT_RESET}


def check(job: JobFile) -> Iterator[Finding]:
    yield from _shape(job)
    yield from _metadata(LABELS, job.labels, _LABELS, _OWN_LABELS, (ANNOTATIONS, _OWN_ANNOTATIONS))
    yield from _metadata(ANNOTATIONS, job.annotations, _ANNOTATIONS, _OWN_ANNOTATIONS, (LABELS, _OWN_LABELS))
    for template in job.templates:
        for where, written, known in (
            ("labels", template.labels, _OWN_LABELS - {keys.FRAMEWORK}),
            ("annotations", template.annotations, _OWN_ANNOTATIONS),
        ):
            for key in sorted(known & set(written) - set(job.labels) - set(job.annotations)):
                yield warning(
                    f"{template.path}.metadata.{where}.{key}", f"not read on pods: set it in metadata.{where} of the job"
                )
    for container in job.containers:
        yield from _variables(job, container)
        yield from _arguments(container)


def _shape(job: JobFile) -> Iterator[Finding]:
    version, metadata = as_text(job.document.get("apiVersion")), job.document.get("metadata")
    if version != job.row.api:
        yield warning("apiVersion", f"{quoted(version)} is no version that Rekindle reads (accepted: {job.row.api})", job.row.api)
    if not isinstance(metadata, dict):
        yield error("metadata", "must be a mapping with a name")
        return
    if not job.name:  # nor generateName
        yield error("metadata.name", "missing")
    for part in ("labels", "annotations"):
        if not isinstance(metadata.get(part), dict | None):
            yield error(f"metadata.{part}", "must be a mapping of strings")


def _metadata(
    where: str,
    written: Mapping[str, Any],
    parameters: Mapping[str, Parameter],
    known: set[str],
    elsewhere: tuple[str, set[str]],
) -> Iterator[Finding]:
    guessed = 0
    for key, value in written.items():
        field, (other, theirs) = f"{where}.{cut(str(key), QUOTED)}", elsewhere
        if not isinstance(value, str):
            yield _unquoted(field, str(key), value, parameters.get(str(key)))
        elif key in parameters:
            yield from _value(field, parameters[key], value)
        elif key in theirs and key not in known:
            yield error(field, f"not read here: it stands in {other}", f"{other}.{key}: {value!r}")
        elif key not in known and guessed < MOST_GUESSED:
            guessed += 1
            if words := did_you_mean(str(key), [*known, *theirs]):
                yield error(field, f"unknown, and ignored{words}")


def _unquoted(field: str, key: str, value: object, parameter: Parameter | None) -> Finding:
    """Returns the finding of a value that is no string. YAML reads `on` and `off` without quotes as truth values."""
    meant, accepted = as_text(value), ""
    if parameter is not None:
        meant = ",".join(map(as_text, value)) if isinstance(value, list) else parameter.values.mended(meant) or meant
        meant = "" if parameter.values.problem(meant) else meant
        accepted = "" if meant else f" (accepted: {parameter.values.accepted})"
    kind = "a list" if isinstance(value, list) else "a mapping" if isinstance(value, dict) else "an empty value"
    said = cut(as_text(value), QUOTED) or kind
    return error(field, f"{said} is no string{accepted}", f'{key}: "{meant}"' if meant else "")


def _value(field: str, parameter: Parameter, value: str) -> Iterator[Finding]:
    problem = parameter.values.problem(value)
    if problem and (parameter.name, value) not in SAID_ELSEWHERE and "$" not in value:
        mended = parameter.values.mended(value)
        fix = f'{parameter.name}: "{mended}"' if mended else ""
        yield error(field, f"{problem} (accepted: {parameter.values.accepted})", fix)


def _variables(job: JobFile, container: Container) -> Iterator[Finding]:
    guessed = 0
    for name, value in container.variables.items():
        field = f"{container.path}.env.{cut(name, QUOTED)}"
        if name in container.unquoted:
            yield error(field, f"{cut(value or '', QUOTED) or 'its value'} is no string", f'{name}: "{value}"' if value else "")
        if name in _VARIABLES:
            if value is not None:
                yield from _value(field, _VARIABLES[name], value)
        elif job.has_taskd and guessed < MOST_GUESSED:
            guessed += 1
            alike = [known for known in _VARIABLES if known[0] == name[:1]]  # HTTP_PORT is no TTP_PORT
            if words := did_you_mean(name, alike):
                yield error(field, f"unknown, and ignored{words}")


def _arguments(container: Container) -> Iterator[Finding]:
    guessed = 0
    for number, word in enumerate(container.words):
        name, assigned, value = word.partition("=")
        if not name.startswith("--"):
            continue
        field = f"{container.path}.command, {cut(name, QUOTED)}"
        if name in _FLAGS:
            if assigned:
                yield from _value(field, _FLAGS[name], value)
        elif (launcher := _LAUNCHER.get(name.replace("-", "_").replace("__", "--", 1))) is not None:
            following = container.words[number + 1] if number + 1 < len(container.words) else ""
            yield from _value(field, launcher, value if assigned else following)
        elif name.startswith("--enable") and guessed < MOST_GUESSED:
            guessed += 1
            if words := did_you_mean(name, _FLAGS):
                yield error(field, f"unknown to MindSpeed{words}")
