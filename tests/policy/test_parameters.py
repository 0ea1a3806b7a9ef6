"""Checks of job files: what is right passes, what is wrong is found with what to write, and nothing in a file breaks them."""

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rekindle.cli.app import run
from rekindle.errors import BadInput
from rekindle.model.job import Framework
from rekindle.model.mode import Mode
from rekindle.policy.parameters import own
from rekindle.policy.parameters.catalog import PARAMETERS, STRATEGIES, schema
from rekindle.policy.parameters.checks import findings, injected
from rekindle.policy.parameters.environment import Table, variables
from rekindle.policy.parameters.findings import Level
from rekindle.policy.parameters.job_file import jobs_of
from rekindle.policy.parameters.kinds.table import KINDS
from tests.policy.broken_jobs import FOLDER, RECIPE, Variant, said, text, variants
from tests.support.strange import paths, with_strange_values

ROOT = Path(__file__).parents[2]
SWITCHES = {"PROCESS_RECOVER": "on", "ELASTIC_PROCESS_RECOVER_ENABLE": "1"}
IN_PLACE = {**SWITCHES, "ENABLE_RESTART_FAULT_PROCESS": "on"}
MINDIO = {"MINDIO_FOR_MINDSPORE": "1"}
PYTORCH, MINDSPORE = Framework.PYTORCH, Framework.MINDSPORE

PUBLISHED: dict[tuple[str, Framework], dict[str, str]] = {
    ("recover", PYTORCH): {**SWITCHES, "HIGH_AVAILABILITY": "recover"},
    ("recover", MINDSPORE): {**SWITCHES, **MINDIO, "MS_ENABLE_TFT": "{ARF:1}"},
    ("retry", PYTORCH): {**SWITCHES, "HIGH_AVAILABILITY": "retry"},
    ("retry", MINDSPORE): {**SWITCHES, **MINDIO, "MS_ENABLE_TFT": "{HCCE:1,UCE:1}"},
    ("recover-in-place", PYTORCH): {**IN_PLACE, "HIGH_AVAILABILITY": "recover"},
    ("recover-in-place", MINDSPORE): {**IN_PLACE, **MINDIO, "MS_ENABLE_TFT": "{ARF:1}"},
    ("dump", PYTORCH): {**SWITCHES, "HIGH_AVAILABILITY": "dump"},
    ("dump", MINDSPORE): {**SWITCHES, **MINDIO, "MS_ENABLE_TFT": "{TTP:1}"},
    ("exit", PYTORCH): {},
    ("exit", MINDSPORE): {},
    ("elastic-training", PYTORCH): {"PROCESS_RECOVER": "on", "HIGH_AVAILABILITY": "elastic-training"},
    ("elastic-training", MINDSPORE): {},
}
"""Published rows."""
ALWAYS = {
    PYTORCH: {"HCCL_ASYNC_ERROR_HANDLING": "0"},
    MINDSPORE: {**MINDIO, "MS_ENABLE_THM": "{HCCL_WATCHDOG:0}"},
}
"""Variables that the operator adds to each row."""


@pytest.mark.parametrize(("word", "framework"), PUBLISHED, ids=str)
def test_a_strategy_brings_the_variables_of_its_published_row(word: str, framework: Framework) -> None:
    """The operator has the same row with its watchdog variables, apart from those that are compared below."""
    assert variables([word], framework) == PUBLISHED[word, framework]
    if PUBLISHED[word, framework]:
        assert variables([word], framework, table=Table.OPERATOR) == PUBLISHED[word, framework] | ALWAYS[framework]


def test_the_table_has_a_row_for_each_strategy() -> None:
    """A new word cannot be forgotten."""
    assert {word for word, _ in PUBLISHED} == set(STRATEGIES)


@pytest.mark.parametrize("framework", [PYTORCH, MINDSPORE])
def test_the_operator_differs_where_its_source_does(framework: Framework) -> None:
    """Exit counts as `recover`, and variables are set even if none of the words is known."""
    assert variables(["exit"], framework, table=Table.OPERATOR) == variables(["recover"], framework, table=Table.OPERATOR)
    empty = {"MS_ENABLE_TFT": "{}"} if framework is MINDSPORE else {"HIGH_AVAILABILITY": ""}
    assert variables([" recover"], framework, table=Table.OPERATOR) == ALWAYS[framework] | empty
    assert variables([], framework, table=Table.OPERATOR) == {}


def test_elastic_training_changes_nothing_for_mindspore() -> None:
    """The operator sets what any strategy brings."""
    found = variables(["elastic-training"], MINDSPORE, table=Table.OPERATOR)
    assert found == {**ALWAYS[MINDSPORE], "MS_ENABLE_TFT": "{}"}


@pytest.mark.parametrize("table", Table)
def test_labels_bring_variables_too(table: Table) -> None:
    """A hot switch brings those of recover, without a watchdog. Pod rescheduling brings one word, to MindSpore only."""
    assert variables([], PYTORCH, hot_switch=True, table=table) == PUBLISHED["recover", PYTORCH]
    assert variables([], MINDSPORE, hot_switch=True, table=table) == PUBLISHED["recover", MINDSPORE]
    assert variables([], MINDSPORE, pod_rescheduling=True, table=table) == {"MS_ENABLE_TFT": "{RSC:1}"}
    assert variables([], PYTORCH, pod_rescheduling=True, table=table) == {}
    assert variables(["recover"], Framework.TENSORFLOW, hot_switch=True, table=table) == {}


def test_words_of_several_strategies_are_in_one_variable() -> None:
    """Words are sorted, each once, without blanks."""
    words = ["retry", "recover", "recover-in-place", "dump", "exit"]
    assert variables(words, PYTORCH) == {**IN_PLACE, "HIGH_AVAILABILITY": "dump,recover,retry"}
    found = variables(words, MINDSPORE, pod_rescheduling=True)
    assert found == {**IN_PLACE, **MINDIO, "MS_ENABLE_TFT": "{ARF:1,HCCE:1,RSC:1,TTP:1,UCE:1}"}


def test_the_published_recipe_is_right() -> None:
    """No finding is there, and the job can have the modes that it asks for."""
    (job,) = jobs_of(RECIPE.read_text())
    assert findings(job) == []
    assert injected(job, Table.OPERATOR)["HIGH_AVAILABILITY"] == "dump,recover,retry"
    possible = {one.mode for one in own.modes(job) if not one.against}
    assert possible >= {Mode.ONLINE_RETRY, Mode.PROCESS_RESCHEDULING, Mode.DYING_GASP, Mode.JOB_RESCHEDULING}


@pytest.mark.parametrize("variant", variants(), ids=lambda variant: variant["name"])
def test_what_is_wrong_is_found_with_what_to_write(variant: Variant) -> None:
    """Lines name the field, what is wrong, and what is accepted."""
    assert said(variant) == variant["says"]
    assert variant["says"]


def test_enough_files_are_tried() -> None:
    """Variants have different names."""
    assert len({variant["name"] for variant in variants()}) >= 60


@pytest.mark.parametrize("file", sorted((FOLDER / "kinds").glob("*.yaml")), ids=lambda file: file.stem)
def test_jobs_of_all_kinds_are_read(file: Path) -> None:
    """No error is found in a file that is right, and a wrong sub-health strategy is found in each."""
    (job,) = jobs_of(file.read_text())
    assert [one for one in findings(job) if one.level is Level.ERROR] == []
    assert job.containers
    wrong = yaml.safe_load(file.read_text())
    wrong["metadata"].setdefault("labels", {})["subHealthyStrategy"] = "hotSwich"
    (job,) = jobs_of(yaml.safe_dump(wrong))
    assert "subHealthyStrategy" in {one.field.rpartition(".")[2] for one in findings(job)}


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/**/*.yaml")), ids=lambda file: file.stem)
def test_the_examples_are_right(file: Path) -> None:
    """Examples show what a job of each kind looks like. The manager of a job is no job."""
    (job,) = jobs_of(file.read_text())
    assert [one for one in findings(job) if one.level is Level.ERROR] == []


@pytest.mark.parametrize(
    ("trainer", "annotations", "expected"),
    [
        ({"numNodes": 1}, {}, []),
        ({}, {}, ["spec.trainer.numNodes: missing: the job counts as one pod, whatever its runtime specifies"]),
        (
            {"numNodes": 2},
            {"rekindle.io/training-side": "mindio", "recover-strategy": "recover"},
            ["spec.runtimeRef: its ports, mounts and restarts are those of its runtime, which are not examined"],
        ),
    ],
    ids=["of one node", "without a number", "of MindIO"],
)
def test_what_the_runtime_of_a_train_job_specifies_is_not_guessed(
    trainer: dict[str, Any], annotations: dict[str, str], expected: list[str]
) -> None:
    """The file of the job does not have it. The number of pods is the one that the watcher registers."""
    job = yaml.safe_load((FOLDER / "kinds" / "train_job.yaml").read_text())
    job["metadata"] |= {"labels": {}, "annotations": annotations}
    command = ["sh", "-c", "python manager.py & torchrun train.py"]
    job["spec"]["trainer"] = {"image": "registry/qwen:1", "command": command, **trainer}
    (read,) = jobs_of(yaml.safe_dump(job))
    assert sum(template.replicas for template in read.templates) == trainer.get("numNodes", 1)
    found = [f"{one.field}: {one.message}" for one in findings(read)]
    assert [
        line for line in found if line.startswith(("spec.trainer.numNodes", "spec.runtimeRef", "spec.trainer.ports"))
    ] == expected


def test_each_kind_has_a_file() -> None:
    """A new kind cannot be forgotten."""
    kinds = {jobs_of(file.read_text())[0].kind for file in [RECIPE, *(FOLDER / "kinds").glob("*.yaml")]}
    assert kinds == set(KINDS)


MASTER = "spec.replicaSpecs.Master.template.spec"
COMMAND = f"{MASTER}.containers.0.command.2"


@pytest.mark.parametrize(
    "changes",
    [
        {f"{MASTER}.containers.0.env.3": {"name": "HTTP_PORT", "value": "80"}},
        {f"{MASTER}.containers.0.env.3": {"name": "TORCH_NCCL_ASYNC_ERROR_HANDLING", "value": "1"}},
        {COMMAND: "python manager.py & torchrun --max_restarts=$MAX_RESTARTS --monitor_interval=0.1 train.py"},
        {COMMAND: "python manager.py & torchrun --max_restarts=3; exit $?"},
        {COMMAND: "python manager.py & t.sh --enable-high-availability --enable-hbmfault-repair; exit $?"},
        {COMMAND: 'HA="--enable-high-availability"; python manager.py & t.sh $HA --enable-worker-reboot'},
        {COMMAND: "cat <<E\nit's\nE\npython manager.py & torchrun --max_restarts \\\n32767 train.py"},
        {COMMAND: "python -c 'from taskd.api import *; init_taskd_manager({})' & torchrun train.py"},
        {f"{MASTER}.volumes.1": {"name": "ranktable", "configMap": {"name": "rings-config-llama"}}},
        {"spec.successPolicy": None},
        {"metadata.annotations.huawei.com/schedule.filter.faultCode": "81078603:30"},
        {"metadata.name": None, "metadata.generateName": "llama"},
    ],
    ids=str,
)
def test_what_is_right_in_a_job_of_others_is_not_complained_about(changes: dict[str, Any]) -> None:
    """Variables of other libraries, scripts of shells, and other ways in which MindCluster's manual has it."""
    (job,) = jobs_of(text(changes))
    assert findings(job) == []


def test_a_job_is_found_in_a_list() -> None:
    """Lists are what kubectl prints for several objects. Text in base 60 stays text, as Kubernetes reads it."""
    config, job = yaml.safe_load_all(RECIPE.read_text())
    job["metadata"]["annotations"]["huawei.com/schedule.filter.faultCode"] = "REPLACED"
    listed = yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": [config, job]})
    (found,) = jobs_of(listed.replace("REPLACED", "81078603:30"))
    assert found.annotations["huawei.com/schedule.filter.faultCode"] == "81078603:30"
    assert findings(found) == []


def test_the_operator_turns_recoveries_on_where_strategies_are_named() -> None:
    """A job without the label can have them, as on a cluster."""
    (job,) = jobs_of(text({}, ["metadata.labels.subHealthyStrategy"]))
    possible = {one.mode for one in own.modes(job) if not one.against}
    assert possible >= {Mode.ONLINE_RETRY, Mode.PROCESS_RESCHEDULING, Mode.DYING_GASP}


def test_the_container_of_the_ranks_is_checked(tmp_path: Path) -> None:
    """Containers before it need no ports of TaskD."""
    config, job = yaml.safe_load_all(text({}))
    containers = job["spec"]["replicaSpecs"]["Master"]["template"]["spec"]["containers"]
    containers.insert(0, {"name": "log", "image": "fluentd"})
    (found,) = jobs_of(yaml.safe_dump_all([config, job]))
    assert [one.message.partition(":")[0] for one in findings(found)] == ["2 containers"]


BOMB = "\n".join(["b0: &b0 x", *(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, 11))])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"kind: Job\napiVersion: batch/v1\n{BOMB}", "values if its aliases are followed, accepted are at most 200000"),
        (f"kind: Job\napiVersion: batch/v1\nn: {'9' * 5000}", "line 3: a number of 5000 digits is not accepted"),
        ("kind: Job\napiVersion: batch/v1\nspec: &spec {template: *spec}", "too many values if its aliases are followed"),
        ('kind: Job\napiVersion: batch/v1\nn: "\\ud800"', "line 3: a text with half a surrogate pair is not accepted"),
    ],
    ids=["aliases", "digits", "itself", "surrogate"],
)
def test_a_file_that_would_take_all_time_or_cannot_be_printed_is_refused(content: str, words: str) -> None:
    """The message names the line, and what is accepted."""
    with pytest.raises(BadInput) as refused:
        jobs_of(content)
    assert words in str(refused.value)


@pytest.mark.parametrize("key", ["labels.fault-retry-times", "annotations.rekindle.io/ranks-per-pod"])
def test_a_number_as_text_may_be_of_any_length(key: str) -> None:
    """Numbers of any length are refused like others that are out of range."""
    (job,) = jobs_of(text({f"metadata.{key}": "9" * 5000, "spec.runPolicy.backoffLimit": 3}))
    assert findings(job)


def test_a_truth_value_is_not_proposed_where_it_is_not_accepted() -> None:
    """YAML reads `yes` as one. The accepted words are said, since no fix is known."""
    (job,) = jobs_of("{apiVersion: batch/v1, kind: Job, metadata: {name: gpt, labels: {subHealthyStrategy: yes}}}")
    found = next(one for one in findings(job) if one.field == "metadata.labels.subHealthyStrategy")
    assert found.message == "true is no string (accepted: ignore, graceExit, forceExit, hotSwitch)"
    assert not found.fix


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("limits", '{"paus": 60}', "limits.paus: unknown field, did you mean pause?"),
        ("limits", '{"pause": -1}', "limits.pause: input should be greater than 0 seconds"),
        ("limits", '{"nextOrder": 1}', "limits: settle (0:00:01), release (0:00:10) and look (0:00:05) must together be shorter"),
        ("limits", "[1]", "limits: must be a mapping of limits to seconds"),
        ("limits", "a: &a [1]\nb: *a", "limits: is not YAML: it refers to another part of itself"),
        ("standbys", "17", "standbys: '17' is not accepted, use a whole number from 0 to 16"),
        ("ranks-per-pod", "two", "ranks-per-pod: 'two' is not accepted, use a whole number from 1"),
        ("training-side", "torch", "training-side: 'torch' is not accepted (accepted: rekindle, mindio)"),
    ],
)
def test_what_the_cluster_would_refuse_of_a_job_of_others_is_found(key: str, value: str, words: str) -> None:
    """Annotations that the cluster refuses are errors of `check`: nothing would recover their job."""
    metadata = {"name": "gpt", "annotations": {f"rekindle.io/{key}": value}}
    template = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
    document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"parallelism": 2, "template": template}}
    (job,) = jobs_of(yaml.safe_dump(document))
    assert [one for one in findings(job) if f"{one.field}: {one.message}".startswith(f"metadata.annotations.rekindle.io/{words}")]


def test_json_may_be_indented_by_tabs() -> None:
    """`kubectl` reads such a file too."""
    (job,) = jobs_of('{\n\t"apiVersion": "batch/v1",\n\t"kind": "Job",\n\t"metadata": {"name": "gpt"}\n}')
    assert job.name == "gpt"


def test_another_value_is_proposed_for_short_ones_only() -> None:
    """A long one takes too much time, and is no typing error."""
    (job,) = jobs_of(text({"metadata.annotations.wait-reschedule-timeout": f"1{' ' * 60000}x"}))
    (finding,) = findings(job)
    assert not finding.fix


def test_nothing_in_a_file_breaks_the_checks() -> None:
    """Values of the recipe are replaced by ones of other types. Each file gets findings, or an error."""
    document = yaml.safe_load_all(RECIPE.read_text())
    (_, job) = document
    roles = ("spec", "replicaSpecs")
    places = (path for path in paths(job) if path[:2] != roles or path[2:3] in ((), ("Master",)))
    for changed in with_strange_values(job, places):
        with contextlib.suppress(BadInput):
            for one in jobs_of(yaml.safe_dump(changed)):
                findings(one)
                own.modes(one)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [", "the file is not YAML"),
        ("", "the file holds no training job but no object"),
        ("kind: Deployment\napiVersion: apps/v1", "no training job but Deployment (accepted: TrainingJob (rekindle.io/v1)"),
        ("kind: AscendJob\napiVersion: example.com/v1", "no training job but AscendJob"),
        ("a: 1\na: 2", "'a' is there twice"),
    ],
)
def test_a_file_without_a_job_is_refused(content: str, words: str) -> None:
    """The error names what is there, and what is accepted."""
    with pytest.raises(BadInput) as refused:
        jobs_of(content)
    assert words in str(refused.value)


def ended(*arguments: str) -> object:
    """Returns the exit code of a command."""
    with pytest.raises(SystemExit) as end:
        sys.exit(run(arguments))
    return end.value.code


def test_check_prints_what_is_wrong_and_ends_with_its_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text for people names what to write; JSON has the same findings. The exit code is 2 for errors, and 0 without."""
    file = tmp_path / "job.yaml"
    file.write_text(text({"metadata.annotations.recover-strategy": "retry, recover"}))
    assert ended("check", str(file)) == 2
    printed = capsys.readouterr().out
    assert "AscendJob train/llama" in printed
    assert 'write: recover-strategy: "retry,recover"' in printed
    assert "1 error, 0 warnings" in printed
    assert ended("check", str(file), "--output", "json") == 2
    (job,) = json.loads(capsys.readouterr().out)
    assert (job["name"], [one["level"] for one in job["findings"]]) == ("llama", ["error"])
    assert ended("check", str(RECIPE)) == 0


def test_check_names_the_jobs_that_it_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file may hold a job of another kind, or of another version, beside one that is known. Each is a warning."""
    file, job = tmp_path / "job.yaml", yaml.safe_load(text({}).split("\n---\n")[-1])
    others = [{**job, "apiVersion": "ray.io/v1", "kind": "RayJob"}, {**job, "apiVersion": "mindxdl.gitee.com/v9"}]
    file.write_text(yaml.safe_dump_all([job, *others]))
    assert ended("check", str(file), "--output", "json") == 0
    found = {
        (one["kind"], said["field"], said["message"]) for one in json.loads(capsys.readouterr().out) for said in one["findings"]
    }
    (version,) = {message for kind, field, message in found if (kind, field) == ("AscendJob", "apiVersion")}
    assert version == "'mindxdl.gitee.com/v9' is no version that Rekindle reads (accepted: mindxdl.gitee.com/v1)"
    (unknown,) = {message for kind, field, message in found if (kind, field) == ("RayJob", "kind")}
    assert unknown.startswith(
        "not checked: it is no kind of training job that Rekindle reads (accepted: TrainingJob (rekindle.io/v1)"
    )


def test_check_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The object of a job in a cluster is checked without a file: kubectl get -o yaml | rekindle check -"""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text({"metadata.labels.hotReset": "1"})))
    assert ended("check", "-") == 2
    assert "hotReset: 1 asks for graceful fault tolerance" in capsys.readouterr().out


def test_render_prints_variables_and_modes(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason of each mode that the job cannot have is there."""
    assert ended("render", str(RECIPE)) == 0
    printed = capsys.readouterr().out
    assert "- name: HIGH_AVAILABILITY\n  value: dump,recover,retry\n" in printed
    assert "its owner does not allow recover-in-place (annotation recover-strategy)" in printed
    assert ended("render", str(RECIPE), "--table", "published", "-o", "json") == 0
    (job,) = json.loads(capsys.readouterr().out)
    assert "HCCL_ASYNC_ERROR_HANDLING" not in job["env"]
    assert {"mode": "online retry", "pods": [], "against": []} in job["modes"]


def test_render_says_who_injects(capsys: pytest.CaptureFixture[str]) -> None:
    """The Ascend Operator knows no Job: only the admission webhook gives it variables."""
    assert ended("render", str(FOLDER / "kinds" / "job.yaml")) == 0
    assert (
        "env:  # by the admission webhook, if it is installed\n- name: ELASTIC_PROCESS_RECOVER_ENABLE\n"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("part", "key", "right", "wrong"),
    [
        ("labels", "subHealthyStrategy", "hotSwitch", "hotswitch"),
        ("labels", "fault-retry-times", "3", "three"),
        ("annotations", "recover-strategy", "retry,recover", "retry, recover"),
        ("annotations", "wait-reschedule-timeout", "120", "2m"),
        ("annotations", "huawei.com/schedule.filter.faultCode", "8C084E00:60,81078603", "8C084E00:60:1"),
    ],
)
def test_the_schema_accepts_what_the_checks_accept(part: str, key: str, right: str, wrong: str) -> None:
    """Values that they refuse do not match it."""
    of_value = schema()["properties"][part]["properties"][key]

    def accepts(value: str) -> bool:
        return value in of_value["enum"] if "enum" in of_value else re.search(of_value["pattern"], value) is not None

    assert (accepts(right), accepts(wrong)) == (True, False)


def test_each_parameter_accepts_its_default() -> None:
    """A default that is not accepted would be advice that cannot be followed."""
    assert [one.name for one in PARAMETERS if one.default and one.values.problem(one.default)] == []
