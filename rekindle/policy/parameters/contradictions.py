"""Checks of parameters together: settings that exclude or need each other. Sources: MindCluster's manual; its components."""

from collections.abc import Iterator

from rekindle.model import keys
from rekindle.model.job import Framework, asks_for_graceful_tolerance
from rekindle.policy.parameters.catalog import (
    ELASTIC_TRAINING,
    FAULT_SCHEDULING,
    HIGH_AVAILABILITY_FLAG,
    RECOVER_POLICY_PATH,
    STRATEGY_OF_FLAG,
    TASKD_PROCESS_ENABLE,
    WATCHDOG,
)
from rekindle.policy.parameters.environment import Table, variables
from rekindle.policy.parameters.findings import ANNOTATIONS, LABELS, Finding, Wishes, error, warning
from rekindle.policy.parameters.job_file import Container, JobFile
from rekindle.policy.parameters.reading import digits, mapping, text

GRACE_SECONDS = 360
"""Seconds that a pod is given to save its state. Source: MindCluster's manual."""

_STRATEGY = f"{ANNOTATIONS}.{keys.RECOVER_STRATEGY}"


def check(job: JobFile) -> Iterator[Finding]:
    wishes = Wishes(job)
    yield from _graceful(job, wishes)
    yield from _of_framework(wishes)
    yield from _switches(job, wishes)
    if job.row.of_mindcluster:
        yield from _of_mindcluster(job, wishes)
    for template in job.templates:
        for container in template.trained:
            yield from _of_container(container, wishes)


def _graceful(job: JobFile, wishes: Wishes) -> Iterator[Finding]:
    variables = {name: value or "" for container in job.containers for name, value in container.variables.items()}
    labels, annotations = ({key: str(value) for key, value in written.items()} for written in (job.labels, job.annotations))
    if not asks_for_graceful_tolerance(labels, annotations, variables):
        return
    words = "1 asks for graceful fault tolerance, which has reached its end of life"
    excludes = ", and excludes recoveries of processes" if wishes.processes else ""
    yield error(keys.HOT_RESET, f"{words}{excludes}", "leave it out")


def _of_framework(wishes: Wishes) -> Iterator[Finding]:
    if wishes.framework is Framework.TENSORFLOW and wishes.processes:
        yield error(f"{LABELS}.{keys.FRAMEWORK}", "tensorflow has no recovery of processes (accepted: pytorch, mindspore)")
    if wishes.framework is Framework.MINDSPORE and ELASTIC_TRAINING in wishes.words:
        yield error(_STRATEGY, f"{ELASTIC_TRAINING} is not there for MindSpore: leave the word out")


def _switches(job: JobFile, wishes: Wishes) -> Iterator[Finding]:
    field, said = f"{LABELS}.{keys.PROCESS_RECOVER_ENABLE}", job.label(keys.PROCESS_RECOVER_ENABLE)
    if said == "pause":
        yield error(field, "pause is written by controllers while pods are rescheduled: nothing would be recovered", 'write "on"')
    if said == "off" and wishes.words:
        yield error(field, f"off contradicts {keys.RECOVER_STRATEGY}={','.join(wishes.words)}", 'write "on", or leave it out')
    if said == "on" and not wishes.words and not wishes.hot_switch:
        yield warning(field, f"nothing is allowed: {keys.RECOVER_STRATEGY} is missing", f'{keys.RECOVER_STRATEGY}: "recover"')
    if job.annotation(keys.PLATFORM_STRATEGY) is not None:
        yield warning(
            f"{ANNOTATIONS}.{keys.PLATFORM_STRATEGY}", "a platform decides about each fault, and must answer within its limits"
        )
    if job.annotation(keys.WAIT_RESCHEDULE) is not None and not wishes.processes and not wishes.words:
        yield warning(f"{ANNOTATIONS}.{keys.WAIT_RESCHEDULE}", f"no effect: {keys.RECOVER_STRATEGY} is missing")


def _of_mindcluster(job: JobFile, wishes: Wishes) -> Iterator[Finding]:
    yield from _of_volcano(job, wishes)
    retries = f"{LABELS}.{keys.FAULT_RETRY_TIMES}"
    if job.row.of_operator and wishes.processes and job.label(keys.FAULT_RETRY_TIMES) in (None, "0"):
        words = (
            "the Ascend Operator fails the job for good with its first failed pod, so that faults of software are not recovered"
        )
        yield warning(retries, words, f'{keys.FAULT_RETRY_TIMES}: "3"')
    limit = mapping(mapping(job.document.get("spec")).get("runPolicy")).get("backoffLimit")
    times = digits(job.label(keys.FAULT_RETRY_TIMES)) or 0
    if isinstance(limit, int) and 0 < limit < times:
        yield warning("spec.runPolicy.backoffLimit", f"{limit} ends the job before {keys.FAULT_RETRY_TIMES}={times}")
    for template in job.templates:
        grace = template.spec.get("terminationGracePeriodSeconds")
        is_short = isinstance(grace, int) and grace < GRACE_SECONDS
        if is_short and (job.label(FAULT_SCHEDULING) == "grace" or job.label(keys.SUB_HEALTHY_STRATEGY) == "graceExit"):
            field = f"{template.path}.spec.terminationGracePeriodSeconds"
            yield warning(field, f"{grace} s may be too few to save the state (recommended: {GRACE_SECONDS})")


def _of_volcano(job: JobFile, wishes: Wishes) -> Iterator[Finding]:
    scheduling, pods = f"{LABELS}.{FAULT_SCHEDULING}", f"{LABELS}.{keys.POD_RESCHEDULING}"
    said = job.label(FAULT_SCHEDULING)
    leaves = job.label(keys.SUB_HEALTHY_STRATEGY) in ("graceExit", "forceExit")
    restarts = wishes.pod_rescheduling or leaves or (digits(job.label(keys.FAULT_RETRY_TIMES)) or 0) > 0
    if (wishes.processes or wishes.words or restarts) and said in (None, "off", "external-grace", "external-force"):
        words = f"{said} is not enough" if said is not None else "missing"
        yield error(
            scheduling, f"{words}: Volcano ends no pod of a fault (needed: grace or force)", f'{FAULT_SCHEDULING}: "grace"'
        )
    if not job.row.of_operator and (wishes.hot_switch or ELASTIC_TRAINING in wishes.words):
        yield error("kind", "hot switch and elastic training need an AscendJob: a job of Volcano has neither")
    on_host = next((template for template in job.templates if template.spec.get("hostNetwork") is True), None)
    if on_host and job.label(FAULT_SCHEDULING) == "force" and wishes.pod_rescheduling:
        words = "ports of a forced pod are still in use when its successor starts: leave it out, or schedule with grace"
        yield error(f"{on_host.path}.spec.hostNetwork", words)
    if job.annotation(RECOVER_POLICY_PATH) == "pod" and not wishes.pod_rescheduling:
        yield warning(f"{ANNOTATIONS}.{RECOVER_POLICY_PATH}", "pod forbids restarts of the job", f'{pods}: "on"')


def _of_container(container: Container, wishes: Wishes) -> Iterator[Finding]:
    yield from _of_variables(container, wishes)
    flags = [word for word in container.words if word in STRATEGY_OF_FLAG]
    for flag in flags:
        if (word := STRATEGY_OF_FLAG[flag]) not in wishes.words:
            yield warning(f"{container.path}.command, {flag}", f"no effect: {keys.RECOVER_STRATEGY} does not allow {word}")
    if flags and HIGH_AVAILABILITY_FLAG not in container.words:
        yield error(
            f"{container.path}.command, {flags[0]}", f"no effect without {HIGH_AVAILABILITY_FLAG}", HIGH_AVAILABILITY_FLAG
        )


def _of_variables(container: Container, wishes: Wishes) -> Iterator[Finding]:
    def said(name: str) -> tuple[str, str | None]:
        return f"{container.path}.env.{name}", container.variables.get(name)

    field, value = said(WATCHDOG)
    if wishes.processes and value in ("1", "2"):
        yield error(field, f"{value} leaves the watchdog on, which ends processes that wait for a recovery", f'{WATCHDOG}: "0"')
    field, value = said(TASKD_PROCESS_ENABLE)
    if wishes.processes and value == "off":
        yield error(field, "off: TaskD takes no part in recoveries", f'{TASKD_PROCESS_ENABLE}: "on"')
    is_mindio = wishes.job.has_taskd
    exported = any(word.startswith(f"{TASKD_PROCESS_ENABLE}=") for word in container.words)
    is_missing = value is None and not exported and TASKD_PROCESS_ENABLE not in container.variables
    if is_mindio and wishes.framework is Framework.MINDSPORE and wishes.processes and is_missing:
        yield warning(
            field, "missing: with MindSpore it must be on before TaskD's manager starts", f'{TASKD_PROCESS_ENABLE}: "on"'
        )
    has_taskd = is_mindio and wishes.framework is not Framework.TENSORFLOW
    if has_taskd and wishes.pod_rescheduling and not wishes.processes and value != "off" and not exported:
        words = f"TaskD's manager waits for orders that never come, as {keys.RECOVER_STRATEGY} is missing"
        yield error(field, words, f'{TASKD_PROCESS_ENABLE}: "off"')
    if wishes.job.row.of_mindcluster:
        yield from _against_the_operator(container, wishes)


def _against_the_operator(container: Container, wishes: Wishes) -> Iterator[Finding]:
    """Yields variables that the operator sets to other values."""
    job = wishes.job
    words = (job.annotation(keys.RECOVER_STRATEGY) or "").split(",") if job.annotation(keys.RECOVER_STRATEGY) else []
    injected = variables(words, wishes.framework, table=Table.OPERATOR)  # what labels bring is merged
    for name, value in injected.items():
        written = text(container.variables.get(name))
        if written is not None and written != value and name != WATCHDOG:
            yield warning(
                f"{container.path}.env.{name}", f"{written!r} is not used: the Ascend Operator sets {value!r}", "leave it out"
            )
