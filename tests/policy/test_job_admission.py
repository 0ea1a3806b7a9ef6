"""Admission of jobs: variables are added to new ones of each kind, wrong ones are refused with what to write, and jobs of others
pass."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.limits import Limits
from rekindle.policy.parameters.admission import (
    LONGEST_TOLD,
    LONGEST_WARNING,
    MOST_LETTERS,
    MOST_TOLD,
    MOST_VALUES,
    MOST_WARNINGS,
    NOT_READ,
    Verdict,
    mutated,
    validated,
)
from rekindle.policy.parameters.job_file import jobs_of
from rekindle.policy.parameters.kinds.table import KINDS
from rekindle.policy.parameters.pods import NOT_SERVED
from tests.policy.broken_jobs import FOLDER, RECIPE
from tests.support.cluster import ROOT
from tests.support.json_patch import patched
from tests.support.strange import paths, with_strange_values

FILES = sorted((FOLDER / "kinds").glob("*.yaml"))
NAMES = {jobs_of(file.read_text())[0].kind: file for file in FILES}
HOT_SWITCH = {"PROCESS_RECOVER": "on", "ELASTIC_PROCESS_RECOVER_ENABLE": "1", "HIGH_AVAILABILITY": "recover"}
RETRY = {**HOT_SWITCH, "HIGH_AVAILABILITY": "retry", "HCCL_ASYNC_ERROR_HANDLING": "0"}
LIMITS = Limits()

every_kind = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def job_of(file: Path, **annotations: str) -> Any:
    """Returns the object of a file, as kubectl sends it."""
    job = yaml.safe_load(file.read_text())
    job["metadata"].setdefault("annotations", {}).update(annotations)
    return job


def asking(kind: str, strategy: str = "retry") -> Any:
    return asks(NAMES[kind], strategy)


def asks(file: Path, strategy: str = "retry") -> Any:
    """Returns the object of a file with this strategy alone. Our training side is in it, as MindIO needs more of a pod."""
    job = job_of(file, **{"recover-strategy": strategy})
    job["metadata"]["labels"] = {"fault-scheduling": "grace", "fault-retry-times": "3"}
    if not is_own(job):
        job["metadata"]["annotations"]["rekindle.io/training-side"] = "rekindle"
    return job


def created(job: Any, **request: Any) -> dict[str, Any]:
    return {"uid": "1", "operation": "CREATE", "namespace": "training", "object": job, "oldObject": None, **request}


def updated(before: Any, job: Any) -> dict[str, Any]:
    return {"uid": "1", "operation": "UPDATE", "namespace": "training", "object": job, "oldObject": before}


def admitted(job: Any) -> Any:
    """Returns a new job after the variables were added."""
    return patched(job, mutated(created(job), LIMITS).patch)


def variables(job: Any) -> list[dict[str, str | None]]:
    """Returns the variables of the container of the ranks, of each pod template."""
    (read,) = jobs_of(yaml.safe_dump(job, sort_keys=False))
    return [dict(container.variables) for template in read.templates for container in template.trained]


# ---- variables


@every_kind
def test_a_new_job_gets_the_variables_of_its_strategies(file: Path) -> None:
    """Containers of ranks have them in each pod template, and nothing else is changed. The API server may ask again."""
    job = asks(file)
    before = copy.deepcopy(job)
    after = admitted(job)
    assert job == before
    assert [one.items() >= RETRY.items() for one in variables(after)] == [True] * len(variables(job))
    assert mutated(created(after), LIMITS) == Verdict()
    assert mutated(updated(job, job), LIMITS) == Verdict(), "pod templates cannot be changed"
    assert without_variables(after) == without_variables(before)


@every_kind
def test_a_job_that_is_applied_again_keeps_its_variables(file: Path) -> None:
    """The owner's file has no variables of ours, and lists of most kinds are replaced whole. What the owner has set stays."""
    job = asks(file)
    before = admitted(job)
    after = patched(job, mutated(updated(before, job), LIMITS).patch)
    assert variables(after) == variables(before)
    assert mutated(updated(before, after), LIMITS) == Verdict()
    unasked = copy.deepcopy(job)
    del unasked["metadata"]["annotations"]
    assert mutated(updated(before, unasked), LIMITS).patch == ()


def without_variables(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: without_variables(value) for key, value in document.items() if key != "env"}
    return [without_variables(one) for one in document] if isinstance(document, list) else document


def test_every_kind_has_a_file() -> None:
    """The Ascend Operator makes the pods of AscendJobs, and injects variables by itself."""
    assert set(NAMES) == {name for name, row in KINDS.items() if not row.of_operator}


@every_kind
@pytest.mark.parametrize("there", [None, [], [{"name": "MINE", "value": "1"}]], ids=str)
def test_variables_are_added_to_those_that_are_there(file: Path, there: list[dict[str, str]] | None) -> None:
    """A list may be missing, null or empty. Those of the owner stay as they are, before the others."""
    job = asks(file)
    for holder in holders(job):
        holder["env"] = {one["name"]: one["value"] for one in there} if there and is_own(job) else copy.deepcopy(there)
    if is_own(job) and there == []:
        job["spec"]["env"] = {}
    own = {one["name"]: one["value"] for one in there or ()}
    found = variables(admitted(job))
    assert all(one.items() >= {**RETRY, **own}.items() for one in found)
    assert all(list(one)[: len(own)] == list(own) for one in found)


def is_own(job: Any) -> bool:
    return bool(job["kind"] == "TrainingJob")


def holders(job: Any) -> Iterator[Any]:
    """Yields the mapping in which variables stand, of each group of pods."""
    spec = job["spec"]
    if is_own(job):
        yield spec
    elif "trainer" in spec:
        yield spec["trainer"]
    else:
        yield from (one["containers"][0] for one in pod_specs(spec))


def pod_specs(inside: Any) -> Iterator[Any]:
    for value in inside.values() if isinstance(inside, dict) else inside if isinstance(inside, list) else ():
        if isinstance(value, dict) and "containers" in value:
            yield value
        else:
            yield from pod_specs(value)


@pytest.mark.parametrize("trainer", [None, {}, "missing"], ids=str)
def test_a_train_job_that_leaves_all_to_its_runtime_gets_variables(trainer: Any) -> None:
    """The trainer takes them from the job, whatever the runtime says."""
    job = asking("TrainJob")
    job["spec"]["trainer"] = trainer
    if trainer == "missing":
        del job["spec"]["trainer"]
    (operation,) = mutated(created(job), LIMITS).patch
    assert operation["path"] == ("/spec/trainer/env" if trainer == {} else "/spec/trainer")
    assert [one for one in variables(admitted(job)) if one.items() >= RETRY.items()]


def test_labels_and_frameworks_bring_variables_too() -> None:
    """The hot switch brings those of recover. MindSpore has others, and TensorFlow none."""
    job = job_of(NAMES["Job"])
    assert [one.items() >= HOT_SWITCH.items() for one in variables(admitted(job))] == [True]
    job["metadata"]["labels"]["framework"] = "mindspore"
    assert variables(admitted(job))[0]["MS_ENABLE_TFT"] == "{ARF:1}"
    job["metadata"]["labels"]["framework"] = "tensorflow"
    assert mutated(created(job), LIMITS) == Verdict()


@every_kind
def test_a_variable_of_the_owner_stays_and_is_warned_about(file: Path) -> None:
    """The warning names the variable, its value, and the one of the strategies."""
    job = asks(file)
    for holder in holders(job):
        own = {"HIGH_AVAILABILITY": "dump", "PROCESS_RECOVER": "on"}
        holder["env"] = own if is_own(job) else [{"name": name, "value": value} for name, value in own.items()]
    after = admitted(job)
    assert all(one["HIGH_AVAILABILITY"] == "dump" and one["HCCL_ASYNC_ERROR_HANDLING"] == "0" for one in variables(after))
    verdict = validated(created(after), LIMITS)
    assert not verdict.refusal
    told = [one for one in verdict.warnings if ".env.HIGH_AVAILABILITY" in one]
    assert len(told) == len(variables(after))
    assert all("'dump'" in one and "'retry'" in one for one in told)
    assert not [one for one in verdict.warnings if ".env.PROCESS_RECOVER" in one]


def test_a_variable_that_is_taken_from_elsewhere_stays() -> None:
    """A reference has no value that could be compared. Variables of `envFrom` would be hidden, which is a warning."""
    job = asking("Job")
    (container,) = holders(job)
    container["env"] = [{"name": "PROCESS_RECOVER", "valueFrom": {"configMapKeyRef": {"name": "own", "key": "recover"}}}]
    container["envFrom"] = [{"configMapRef": {"name": "own"}}]
    after = admitted(job)
    assert variables(after)[0]["PROCESS_RECOVER"] is None
    assert [one["name"] for one in next(holders(after))["env"]].count("PROCESS_RECOVER") == 1
    (told,) = validated(created(after), LIMITS).warnings
    assert told.startswith("spec.template.spec.containers.0.envFrom: env comes before it")


def test_only_the_container_of_the_ranks_gets_variables() -> None:
    """Containers beside it get none, and no manager of the training side does."""
    job = asking("PyTorchJob")
    for one in pod_specs(job):
        one["containers"].insert(0, {"name": "proxy", "image": "proxy", "resources": {"limits": {"cpu": "1"}}})
    for one in pod_specs(admitted(job)):
        assert [container.get("env", []) != [] for container in one["containers"]] == [False, True]
    job = asking("JobSet")
    manager = copy.deepcopy(job["spec"]["replicatedJobs"][0]) | {"name": "manager"}
    labels = {"training.kubeflow.org/replica-type": "manager"}
    manager["template"]["spec"]["template"]["metadata"] = {"labels": labels}
    job["spec"]["replicatedJobs"].insert(0, manager)
    paths = {operation["path"] for operation in mutated(created(job), LIMITS).patch}
    assert paths == {"/spec/replicatedJobs/1/template/spec/template/spec/containers/0/env"}


def test_a_type_of_replicas_may_have_any_name() -> None:
    """Slashes, dots and tildes are escaped in the patch."""
    job = asking("PyTorchJob")
    groups = job["spec"]["pytorchReplicaSpecs"]
    groups["a/b.c~d"] = copy.deepcopy(groups["Worker"])
    assert "env" in next(pod_specs(admitted(job)["spec"]["pytorchReplicaSpecs"]["a/b.c~d"]))["containers"][0]


# ---- refusals


@every_kind
def test_a_wrong_job_is_refused_with_field_and_fix(file: Path) -> None:
    """The message names the field, what is wrong, what is accepted and what to write."""
    verdict = validated(created(asks(file, "retry, recover")), LIMITS)
    (line,) = [one for one in verdict.refusal.splitlines() if one.startswith("metadata.annotations.recover-strategy: ")]
    assert "' recover' has a blank, so that the word is ignored (accepted: WORD,WORD without blanks" in line
    assert line.endswith('; fix: recover-strategy: "retry,recover"')


@every_kind
def test_a_right_job_is_admitted(file: Path) -> None:
    """A live object has more fields than a file: they are no parameters. Of a kind that is not served only that is said."""
    job = job_of(file)
    job["metadata"] |= {"uid": "u", "generation": 1, "managedFields": [{"manager": "kubectl"}], "creationTimestamp": "now"}
    job["status"] = {"active": 1}
    (read,) = jobs_of(yaml.safe_dump(job))
    told = () if read.row.is_served else (f"kind: {NOT_SERVED}",)
    assert validated(created(admitted(job)), LIMITS) == Verdict(warnings=told)


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/kubernetes/*.yaml")), ids=lambda file: file.stem)
def test_examples_are_admitted(file: Path) -> None:
    """A manager that is a Job of its own is left alone."""
    for document in yaml.safe_load_all(file.read_text()):
        assert not validated(created(admitted(document)), LIMITS).refusal


def test_several_errors_are_named_at_once() -> None:
    """A line names each of them, and only the first ones of many."""
    job = asking("Job", "recover, retry")
    job["metadata"]["labels"] = {"subHealthyStrategy": "hotSwich", "fault-retry-times": "many"}
    lines = validated(created(job), LIMITS).refusal.splitlines()
    fields = {line.partition(": ")[0].rpartition(".")[2] for line in lines}
    assert fields == {"recover-strategy", "subHealthyStrategy", "fault-retry-times"}
    containers = [{"name": f"c{number}", "command": [f"--monitor-interval={'x' * 2000}"]} for number in range(100)]
    job["spec"]["template"]["spec"]["containers"] = containers
    lines = validated(created(job), LIMITS).refusal.splitlines()
    assert len(lines) == MOST_TOLD + 1
    assert lines[-1].endswith("more: rekindle check lists all")
    assert max(len(line.encode()) for line in lines) <= LONGEST_TOLD


def test_warnings_are_few_short_and_printable() -> None:
    """The API server puts them into headers of its answer, and shortens or drops others."""
    job = asking("Job")
    (container,) = holders(job)
    script = " ".join(f"torchrun --nnodes=2 {'x' * 200}\n" for _ in range(2))
    job["spec"]["template"]["spec"]["containers"] = [
        {**container, "name": f"c{number}", "command": ["sh", "-c", f"{script} --enable-worker-reboot"]} for number in range(9)
    ]
    job["metadata"]["labels"] = {"sub\r\nHealthyStrategy": "hotSwitch"}
    told = validated(created(job), LIMITS)
    observed = told.observed
    for one in (told, observed):
        assert 0 < len(one.warnings) <= MOST_WARNINGS
        assert all(len(line.encode()) <= LONGEST_WARNING and line.isprintable() for line in one.warnings)
    assert (observed.refusal, observed.patch) == ("", ())


def test_an_installation_that_observes_refuses_and_changes_nothing() -> None:
    """An error is a warning."""
    verdict = validated(created(asking("Job", "retry, recover")), LIMITS).observed
    assert not verdict.refusal
    assert verdict.warnings[0].startswith("metadata.annotations.recover-strategy: ' recover' has a blank")
    assert mutated(created(asking("Job")), LIMITS).observed == Verdict()


# ---- what is left alone

OF_OTHERS: dict[str, dict[str, Any]] = {
    "no word of ours": {},
    "a word of others": {"labels": {"framework": "flask", "app": "web"}},
    "a part of another job": {
        "labels": {"subHealthyStrategy": "wrong"},
        "ownerReferences": [
            {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "a", "uid": "u", "controller": True}
        ],
    },
    "the manager of a job": {"labels": {"rekindle.io/manager-of": "gpt", "subHealthyStrategy": "wrong"}},
    "a job that is deleted": {"labels": {"subHealthyStrategy": "wrong"}, "deletionTimestamp": "2026-11-29T00:00:00Z"},
}


@pytest.mark.parametrize("metadata", OF_OTHERS.values(), ids=list(OF_OTHERS))
def test_a_job_that_asks_for_nothing_passes_untouched(metadata: dict[str, Any]) -> None:
    """Errors elsewhere in it are no concern of ours."""
    job = job_of(NAMES["Job"])
    job["metadata"] = {"name": "web", **metadata}
    job["spec"]["template"]["spec"]["containers"] = [{"name": "web", "env": [{"name": "HIGH_AVAILABILITY", "value": "yes"}]}]
    for request in (created(job), updated(job, job)):
        assert mutated(request, LIMITS) == validated(request, LIMITS) == Verdict()


def test_a_job_of_a_cron_job_is_judged() -> None:
    """A CronJob was not judged before."""
    job = asking("Job", "retry, recover")
    job["metadata"]["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "a", "controller": True}]
    assert validated(created(job), LIMITS).refusal


def test_other_kinds_and_requests_pass() -> None:
    """Deletions and subresources are not judged, nor are jobs whose pods the Ascend Operator makes."""
    wrong = asking("Job", "retry, recover")
    requests = [
        created(None, operation="DELETE", oldObject=wrong),
        created(wrong, operation="CONNECT"),
        created(wrong, subResource="status"),
        created(wrong | {"kind": "Pod", "apiVersion": "v1"}),
        created(next(yaml.safe_load_all(RECIPE.read_text())) | {"metadata": wrong["metadata"]}),
        created(list(yaml.safe_load_all(RECIPE.read_text()))[1] | {"spec": {}}),
    ]
    for request in requests:
        assert mutated(request, LIMITS) == validated(request, LIMITS) == Verdict()


def test_an_own_job_is_always_judged() -> None:
    """No other controller serves it. It is registered with the limits of the installation."""
    job = job_of(NAMES["TrainingJob"])
    job["metadata"] = {"generateName": "gpt-"}
    assert validated(created(job), LIMITS) == Verdict()
    job["spec"]["pods"] = 0
    assert "spec.pods: input should be greater than or equal to 1 (got 0)" in validated(created(job), LIMITS).refusal


# ---- changes


@every_kind
def test_a_job_that_was_wrong_before_can_be_changed(file: Path) -> None:
    """A finalizer is added, the number of pods changes, and a controller writes its status."""
    before = asks(file, "retry, recover")
    changed = copy.deepcopy(before)
    changed["metadata"]["finalizers"] = ["example.com/wait"]
    changed["spec"]["suspend"] = True
    if not is_own(changed):
        assert validated(updated(before, changed), LIMITS) == Verdict()
    del changed["spec"]["suspend"]
    assert validated(updated(before, changed), LIMITS) == Verdict()


def test_a_change_that_adds_an_error_is_refused_with_that_error() -> None:
    """The old error has no line, and a job that is mended passes."""
    before = asking("Job", "retry, recover")
    worse, mended = copy.deepcopy(before), asking("Job", "retry,recover")
    worse["metadata"]["annotations"]["wait-reschedule-timeout"] = "5"
    (line,) = validated(updated(before, worse), LIMITS).refusal.splitlines()
    assert line.startswith("metadata.annotations.wait-reschedule-timeout: 5 is out of range (accepted: 30 to 270 s)")
    assert validated(updated(before, mended), LIMITS) == Verdict()
    assert validated(updated(mended, before), LIMITS).refusal


def test_an_error_that_reads_differently_is_an_old_one() -> None:
    """A job is scaled, and an annotation that was wrong before has another bound now. Another wrong value is refused."""
    before = asking("Job")
    before["metadata"]["annotations"]["rekindle.io/elastic"] = "9"
    scaled = copy.deepcopy(before)
    scaled["spec"] |= {"parallelism": 3, "completions": 3}
    verdict = validated(updated(before, scaled), LIMITS)
    assert not verdict.refusal
    assert verdict.warnings[0].startswith("metadata.annotations.rekindle.io/elastic: '9' is not accepted")
    scaled["metadata"]["annotations"]["rekindle.io/elastic"] = "8"
    assert "rekindle.io/elastic: '8' is not accepted" in validated(updated(before, scaled), LIMITS).refusal


def test_a_job_that_begins_to_ask_is_judged() -> None:
    """Nobody looked at it before, so that no error of it is an old one."""
    before = job_of(NAMES["Job"])
    before["metadata"] = {"name": "web"}
    before["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "HIGH_AVAILABILITY", "value": "yes"}]
    changed = copy.deepcopy(before)
    changed["metadata"]["annotations"] = {"recover-strategy": "retry"}
    assert ".env.HIGH_AVAILABILITY: 'yes' is not accepted" in validated(updated(before, changed), LIMITS).refusal


# ---- hostile objects


@pytest.mark.parametrize(
    "spec",
    [{"template": {"spec": {"containers": [{}] * MOST_VALUES}}}, {"a": "x" * (MOST_LETTERS + 1)}, {"x" * MOST_LETTERS: 1}],
    ids=["values", "text", "key"],
)
def test_a_huge_job_is_admitted_without_a_check(spec: dict[str, Any]) -> None:
    """Reading it would take too long. A warning says so."""
    job = asking("Job", "retry, recover")
    job["spec"] = spec
    assert mutated(created(job), LIMITS) == Verdict()
    for request in (created(job), updated(job, asking("Job"))):
        (told,) = validated(request, LIMITS).warnings
        assert told == NOT_READ


@every_kind
def test_nothing_in_an_object_breaks_admission(file: Path) -> None:
    """Values of a job are replaced by ones of other types. There is a verdict, and the patch can be applied, once."""
    job = admitted(asks(file, "retry, recover"))
    next(holders(job))["env"] = {"MINE": "1"} if is_own(job) else [{"name": "MINE", "value": "1"}]
    for changed in with_strange_values(job, paths(job)):
        judged(changed, job)


def judged(job: Any, before: Any) -> None:
    for request in (created(job), updated(before, job), updated(job, before)):
        validated(request, LIMITS)
    again = patched(job, mutated(created(job), LIMITS).patch)
    assert mutated(created(again), LIMITS) == Verdict()
    json.dumps(again)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["containers", "env", "name", "value", "valueFrom", "resources", "limits"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@every_kind
@given(document=DOCUMENTS)
def test_any_pods_get_a_verdict(file: Path, document: Any) -> None:
    """Documents of any shape stand in the place of pods, containers and variables."""
    job = asks(file)
    for holder in list(holders(job)):
        holder["env"] = document
        judged(job, job_of(file))
    for key in ("template", "containers", "trainer", "kubernetes", "replicatedJobs", "pytorchReplicaSpecs", "tasks"):
        job["spec"][key] = document
    judged(job, job_of(file))


@given(request=DOCUMENTS)
def test_any_request_gets_a_verdict(request: Any) -> None:
    """The API server sends no such request; whatever it sends has an answer."""
    for document in ({"operation": "CREATE", "object": request}, {"operation": "UPDATE", "oldObject": request, "object": {}}):
        assert mutated(document, LIMITS) == validated(document, LIMITS) == Verdict()
