"""Checks of the pods of a job: containers, ports, mounts and commands. Sources: MindCluster's manual; its components."""

from collections.abc import Iterator

from rekindle.model import keys
from rekindle.model.job import Framework
from rekindle.policy.parameters.catalog import TTP_PORT
from rekindle.policy.parameters.findings import ANNOTATIONS, LABELS, Finding, Wishes, error, warning
from rekindle.policy.parameters.job_file import CONTAINER, Container, JobFile, Template
from rekindle.policy.parameters.reading import as_text, mapping, sequence, text
from rekindle.policy.parameters.values import quoted

TASKD_PORT, TASKD_PORT_NAME = 9601, "taskd-port"
TTP_PORT_NAME = "ttp-port"
RESET_MOUNT = "/user/restore/reset/config"
RANK_TABLE_MOUNT = "/user/serverid/devindex/config"
RANK_TABLES = "/user/mindx-dl/ranktable"
"""Folder on each node in which the Ascend Operator keeps the rank table of each job, as `NAMESPACE.JOB`."""

LEADER = {Framework.PYTORCH: "Master", Framework.MINDSPORE: "Scheduler", Framework.TENSORFLOW: "Chief"}
"""Type of the replica that leads, by framework."""
TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
MANAGERS = ("manager.py", "init_taskd_manager", "rekindle-manager", "rekindle-train", "rekindle_training")
"""Names in a command line of what starts the job's manager, or the ranks together with it."""


NOT_SERVED = "Rekindle serves no job of Volcano: only the components of MindCluster recover it"


def check(job: JobFile) -> Iterator[Finding]:
    wishes = Wishes(job)
    if not job.templates:
        yield error("spec", f"no pod template is there, and a {job.kind} has one")
    if not job.row.is_served:
        yield warning("kind", NOT_SERVED)
    if wishes.processes and job.pods == 1:
        yield warning("spec", "the job has one pod: no other pod can give a new one its state")
    yield from (error(template.path, "no container is there") for template in job.templates if not template.containers)
    spec = mapping(job.document.get("spec"))
    if job.kind == "Job" and (wishes.processes or wishes.pod_rescheduling) and spec.get("completionMode") != "Indexed":
        yield warning("spec.completionMode", "its pods have no index, which would be their rank (needed: Indexed)", "Indexed")
    if job.row.has_runtime and not mapping(spec.get("trainer")).get("numNodes"):
        words = "missing: the job counts as one pod, whatever its runtime specifies"
        yield warning("spec.trainer.numNodes", words, "the number of nodes of its runtime")
    yield from _commands(job, wishes)
    if job.row.of_operator:
        yield from _of_operator(job, wishes)
    if job.has_taskd and wishes.processes:
        yield from _of_mindio(job)


def _of_mindio(job: JobFile) -> Iterator[Finding]:
    if job.row.has_runtime:
        yield warning("spec.runtimeRef", "its ports, mounts and restarts are those of its runtime, which are not examined")
        return
    for template in job.templates:
        if len(template.containers) > 1:
            words = f"{len(template.containers)} containers: processes are recovered in pods with one container only"
            yield error(f"{template.path}.spec.containers", words)
        yield from _restarts(job, template)
        yield from _of_taskd(template)
        yield from _mounts(job, template)
    yield from _reset_config(job)


def _commands(job: JobFile, wishes: Wishes) -> Iterator[Finding]:
    """Yields a start of ranks that no manager knows. The pod of the first rank starts it for all."""
    lines = [(container.path, " ".join(container.words)) for container in job.containers]
    if not wishes.processes or any(word in line for _, line in lines for word in MANAGERS):
        return
    is_mindio = job.has_taskd
    starts = "start manager.py beside it" if is_mindio else "start the ranks with rekindle-train"
    for path, line in lines:
        if any(word in line for word in TORCHRUN):
            words = f"torchrun is started without a manager, so that no order reaches its ranks: {starts}"
            yield warning(f"{path}.command", words)


def _restarts(job: JobFile, template: Template) -> Iterator[Finding]:
    """Yields restarts by the kubelet, which MindIO cannot take part in. A launcher of Rekindle that starts again takes its ranks
    back."""
    field, policy = f"{template.path}.spec.restartPolicy", text(template.spec.get("restartPolicy"))
    if job.row.of_operator:
        group = mapping(mapping(mapping(job.document.get("spec")).get("replicaSpecs")).get(template.role))
        field, policy = f"{template.path.removesuffix('template')}restartPolicy", text(group.get("restartPolicy"))
    if policy in ("Always", "OnFailure", "ExitCode"):
        yield error(field, f"{policy} starts a pod's processes again beside a recovery (needed: Never)", "Never")


def _of_operator(job: JobFile, wishes: Wishes) -> Iterator[Finding]:
    if job.label(keys.FRAMEWORK) is None:
        yield error(f"{LABELS}.{keys.FRAMEWORK}", "missing: the Ascend Operator fails the job", f'{keys.FRAMEWORK}: "pytorch"')
    leaders, roles = set(LEADER.values()), [template.role for template in job.templates]
    wanted = LEADER[wishes.framework]
    for template in job.templates:
        field = template.path.removesuffix(".template")
        if template.role in leaders and template.role != wanted:
            yield error(field, f"{template.role} does not lead a job of {wishes.framework} (needed: {wanted})")
        elif template.role not in (*leaders, "Worker"):
            yield error(field, f"unknown type (accepted: {wanted}, Worker)")
        elif template.role in leaders and template.replicas != 1:
            yield error(f"{field}.replicas", f"{template.replicas} is not accepted: there is one {template.role}", "1")
        yield from _containers(template, wishes)
    if roles and wanted not in roles and sum(template.replicas for template in job.templates) > 1:
        yield error("spec.replicaSpecs", f"no {wanted} is there, which leads a job of {wishes.framework}")
    success = mapping(job.document.get("spec")).get("successPolicy") or ""
    if success not in ("", "AllWorkers"):
        yield error("spec.successPolicy", f"{quoted(as_text(success))} is not accepted (accepted: AllWorkers, or none)")


def _containers(template: Template, wishes: Wishes) -> Iterator[Finding]:
    named = [container for container in template.containers if container.name == CONTAINER]
    if template.containers and not named:
        yield error(f"{template.path}.spec.containers", f"none is called {CONTAINER}, into which variables are injected")
    for container in sequence(template.spec.get("containers")):
        if not mapping(container).get("image"):
            yield error(f"{template.path}.spec.containers", f"{mapping(container).get('name', 'a container')} has no image")


def _of_taskd(template: Template) -> Iterator[Finding]:
    for container in template.trained:
        field, ports = f"{container.path}.ports", container.ports
        if TASKD_PORT_NAME not in ports and TASKD_PORT not in ports.values():
            fix = f"- {{name: {TASKD_PORT_NAME}, containerPort: {TASKD_PORT}}}"
            yield error(field, f"{TASKD_PORT_NAME} is missing, on which TaskD's manager is reached", fix)
        elif ports.get(TASKD_PORT_NAME, TASKD_PORT) != TASKD_PORT:
            said = quoted(as_text(ports[TASKD_PORT_NAME]))
            yield error(field, f"{TASKD_PORT_NAME} is {said}, and TaskD's manager listens on the number {TASKD_PORT}")
        yield from _ttp(container)
        if "POD_IP" not in container.variables and not container.has_others:
            fix = "- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}"
            yield error(f"{container.path}.env.POD_IP", "missing: MindIO's controller listens there", fix)


def _ttp(container: Container) -> Iterator[Finding]:
    port, said = container.ports.get(TTP_PORT_NAME), container.variables.get(TTP_PORT, "")
    if port is None:
        yield error(
            f"{container.path}.ports",
            f"{TTP_PORT_NAME} is missing, on which MindIO's controller is reached",
            f"- {{name: {TTP_PORT_NAME}, containerPort: {said or 8000}}}",
        )
    if said == "":
        if not container.has_others:
            yield error(f"{container.path}.env.{TTP_PORT}", "missing", f'{TTP_PORT}: "{port or 8000}"')
    elif port is not None and said is not None and said != str(port):
        yield error(f"{container.path}.env.{TTP_PORT}", f"{said} differs from the port {TTP_PORT_NAME}, {port}", f'"{port}"')


def _mounts(job: JobFile, template: Template) -> Iterator[Finding]:
    volumes = {str(mapping(one).get("name", "")): mapping(one) for one in sequence(template.spec.get("volumes"))}
    for container in template.trained:
        mounted = {path.rstrip("/"): name for name, path in container.mounts.items()}
        if RESET_MOUNT not in mounted:
            words = f"{RESET_MOUNT} is missing, where TaskD reads what to do"
            yield error(f"{container.path}.volumeMounts", words, f"mount the ConfigMap {_reset_name(job)} there")
        else:
            source = mapping(volumes.get(mounted[RESET_MOUNT], {}).get("configMap")).get("name")
            if source != _reset_name(job):
                field = f"{template.path}.spec.volumes.{mounted[RESET_MOUNT]}"
                yield error(field, f"configMap {source!r} is not the job's", f"name: {_reset_name(job)}")
        if RANK_TABLE_MOUNT in mounted:
            volume = volumes.get(mounted[RANK_TABLE_MOUNT], {})
            path = str(mapping(volume.get("hostPath")).get("path", "")).rstrip("/")
            own = f"{RANK_TABLES}/{_namespace(job)}.{job.name}"
            is_own = path == own or (not _has_namespace(job) and path.endswith(f".{job.name}"))
            if not is_own and mapping(volume.get("configMap")).get("name") != f"rings-config-{job.name}":
                field = f"{template.path}.spec.volumes.{mounted[RANK_TABLE_MOUNT]}"
                yield error(field, f"{path!r} is not where the rank table of this job is", f"path: {own}")


def _reset_config(job: JobFile) -> Iterator[Finding]:
    def is_it(name: object, namespace: object) -> bool:
        is_near = (namespace or "default") == _namespace(job) or not _has_namespace(job) or not namespace
        return name == _reset_name(job) and is_near

    if job.others is None:
        return
    maps = [mapping(one.get("metadata")) for one in job.others if one.get("kind") == "ConfigMap"]
    if not any(is_it(one.get("name"), one.get("namespace")) for one in maps):
        words = f"the ConfigMap {_reset_name(job)} is not in this file: the job's pods wait until it is there"
        yield warning(ANNOTATIONS, words, f"a ConfigMap with that name in the namespace {_namespace(job)}")


def _reset_name(job: JobFile) -> str:
    return f"reset-config-{job.name}"


def _has_namespace(job: JobFile) -> bool:
    """Returns whether the file says its namespace. Otherwise it is that in which it is applied."""
    return bool(mapping(job.document.get("metadata")).get("namespace"))


def _namespace(job: JobFile) -> str:
    return text(mapping(job.document.get("metadata")).get("namespace")) or "default"
