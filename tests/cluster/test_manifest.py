"""A job file accepts these fields, and each mistake is answered with what is accepted."""

import tracemalloc
from datetime import timedelta
from typing import Any

import pytest
import yaml

from rekindle.errors import BadInput
from rekindle.model.approval import Unanswered
from rekindle.model.cluster import JobObject, JobSpec, ObjectMeta, PodTemplate
from rekindle.model.job import Capability, Framework, SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of, parse, parse_all
from rekindle.model.mode import Mode
from rekindle.model.training_side import TrainingSide


def written(spec: dict[str, object] | None = None, **changes: object) -> str:
    """Returns a valid manifest with changes."""
    document: dict[str, object] = {
        "apiVersion": "rekindle.io/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "gpt", "labels": {"subHealthyStrategy": "hotSwitch"}},
        "spec": {"pods": 2, "ranksPerPod": 4, "command": ["rekindle-train", "train.py"], **(spec or {})},
        **changes,
    }
    return yaml.safe_dump(document)


def test_defaults_follow_from_the_ranks() -> None:
    """A pod asks for one accelerator per rank, and our own manager comes with its counts."""
    spec = parse(written()).spec
    assert spec.template.accelerators == 4
    assert spec.manager is not None
    assert spec.manager.command == ("rekindle-manager", "--nnodes", "2", "--nproc-per-node", "4")
    assert spec.manager.accelerators == 0


def test_what_is_written_counts() -> None:
    """Accelerators, manager, environment, capabilities and limits reach the job object as written."""
    job = parse(written({"accelerators": 0, "manager": ["mine"], "env": {"A": "1"}, "capabilities": ["megatron", "watchdog"]}))
    assert job.spec.template == PodTemplate(command=("rekindle-train", "train.py"), env={"A": "1"})
    assert job.spec.manager == PodTemplate(command=("mine",), env={"A": "1"})
    known = job_of(job, Limits())
    assert set(known.capabilities) == {Capability.MEGATRON, Capability.WATCHDOG, Capability.REPLACE_RANK_0}


def test_the_priority_of_a_job_is_read() -> None:
    """Priority is absent without the annotation, so that the priority of the pods counts."""
    for said, priority in (("-3", -3), ("1000000000", 1_000_000_000)):
        job = parse(written(metadata={"name": "gpt", "annotations": {"rekindle.io/priority": said}}))
        assert job_of(job, Limits()).priority == priority
    assert job_of(parse(written()), Limits()).priority is None


def test_mindio_brings_its_own_manager() -> None:
    """A MindIO job has no manager's pod, and its rank 0 is not replaceable unless the job says so."""
    job = parse(written({"trainingSide": "mindio"}))
    assert job.spec.manager is None
    known = job_of(job, Limits())
    assert (known.training_side, known.capabilities) == (TrainingSide.MINDIO, ())


def test_a_job_without_a_manager_can_be_asked_for() -> None:
    """An empty manager means none."""
    assert parse(written({"manager": []})).spec.manager is None


@pytest.mark.parametrize("field", ["containers", "restartPolicy", "nodeName"])
def test_what_is_ours_to_say_of_a_pod_is_refused(field: str) -> None:
    """A pod field that we set ourselves is refused, with the field to use instead. All other fields of a pod belong to its
    owner."""
    with pytest.raises(BadInput, match=rf"spec\.kubernetes\.pod.*{field}: "):
        parse(written({"kubernetes": {"image": "x", "pod": {field: "any", "volumes": []}}}))
    assert parse(written({"kubernetes": {"image": "x", "pod": {"volumes": []}}}))


def test_a_job_object_becomes_the_job_of_recoveries() -> None:
    """Ranks follow pod ranks, labels give policy and framework, and the job's limits come before the installation's."""
    job = parse(written({"limits": {"pause": 30, "resume": "PT2M"}}))
    known = job_of(job, Limits(pause=timedelta(seconds=99), order=timedelta(seconds=7)))
    assert (known.pods, known.ranks_per_pod, known.ranks) == (2, 4, 8)
    assert [known.layout.ranks_of(pod_rank) for pod_rank in range(2)] == [range(4), range(4, 8)]
    assert (known.sub_health, known.framework) == (SubHealthStrategy.HOT_SWITCH, Framework.PYTORCH)
    limits = known.limits
    assert (limits.pause, limits.resume, limits.order) == (
        timedelta(seconds=30),
        timedelta(minutes=2),
        timedelta(seconds=7),
    )


def test_modes_that_need_approval_are_read_with_what_happens_without_an_answer() -> None:
    """A mode counts as denied unless its owner says otherwise. Blanks and a comma at the end are accepted."""
    annotations = {"rekindle.io/approval": " process-rescheduling , job-rescheduling:approve,"}
    known = job_of(parse(written(metadata={"name": "gpt", "annotations": annotations})), Limits())
    assert known.approvals == {
        Mode.PROCESS_RESCHEDULING: Unanswered.DENY,
        Mode.JOB_RESCHEDULING: Unanswered.APPROVE,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (written({"pods": 0}), ["spec.pods", "greater than or equal to 1", "got 0"]),
        (written({"pods": 5001}), ["spec.pods", "less than or equal to 5000", "got 5001"]),
        (
            written({"pods": 5000, "ranksPerPod": 1024}),
            ["spec: 5000 pods of 1024 ranks each are too many", "at most 10000 ranks"],
        ),
        (written({"pds": 1}), ["spec.pds: unknown field", "accepted: pods, ranksPerPod, command"]),
        (written().replace("ranksPerPod", "ranks_per_pod"), ["spec.ranks_per_pod: unknown field, did you mean ranksPerPod?"]),
        (written({"limits": {"pods_running": 4}}), ["spec.limits.pods_running: unknown, did you mean podsRunning?"]),
        (written({"standbys": 17}), ["spec.standbys", "less than or equal to 16", "got 17"]),
        (written({"standbys": -1}), ["spec.standbys", "greater than or equal to 0"]),
        (written({"command": "train.py"}), ["spec.command: must be a list"]),
        (written({"command": []}), ["spec.command", "at least 1"]),
        (written({"env": {"A": 1}}), ["spec.env.A: must be a string: put it in quotes (got 1)"]),
        (written({"trainingSide": "other"}), ["spec.trainingSide", "'rekindle' or 'mindio'"]),
        (written({"capabilities": ["fly"]}), ["spec.capabilities.0", "'watchdog'"]),
        (written({"limits": {"pauze": 1}}), ["spec.limits.pauze: unknown field", "oldPodDeleted"]),
        (written({"limits": {"pause": "soon"}}), ["spec.limits.pause: must be a number of seconds", "PT15M", "'soon'"]),
        (written({"limits": {"pause": 0}}), ["spec.limits.pause", "greater than 0"]),
        (written({"limits": {"oldPodDeleted": 30}}), ["spec.limits: oldPodDeleted", "shorter than migrationDelivered"]),
        (written(metadata={"name": "Not OK"}), ["metadata.name", "'Not OK'"]),
        (
            written(metadata={"name": "gpt", "labels": {"subHealthyStrategy": "hotswitch"}}),
            ["metadata.labels.subHealthyStrategy: 'hotswitch' is not accepted", "ignore, graceExit, forceExit, hotSwitch"],
        ),
        (written(metadata={"name": "gpt", "labels": {"framework": "jax"}}), ["metadata.labels.framework", "pytorch"]),
        *(
            (
                written(metadata={"name": "gpt", "labels": {"fault-retry-times": times}}),
                [f"metadata.labels.fault-retry-times: '{times}' is not accepted (accepted: 0 to 100)"],
            )
            for times in ("101", "-1", "many", "")
        ),
        *(
            (written(metadata={"name": "gpt", "annotations": {"rekindle.io/approval": modes}}), [f"metadata.annotations.{words}"])
            for modes, words in (
                ("hot-swich", "rekindle.io/approval: 'hot-swich' is not accepted (accepted: hot-switch, online-retry"),
                ("link-switch", "rekindle.io/approval: 'link-switch' is not accepted"),
                ("in-place, in-place", "rekindle.io/approval: in-place is there twice, accepted is each mode once"),
                ("in-place:maybe", "rekindle.io/approval, in-place: 'maybe' is not accepted (accepted: deny, approve)"),
            )
        ),
        *(
            (
                written(metadata={"name": "gpt", "annotations": {"rekindle.io/priority": said}}),
                [f"rekindle.io/priority: '{said}' is not accepted (accepted: an integer from -1000000000 to 1000000000)"],
            )
            for said in ("high", "", "1.5", "+1", "1000000001", "9" * 30)
        ),
        *(
            (
                written(metadata={"name": "gpt", "labels": {"pod-rescheduling": said}}),
                [f"metadata.labels.pod-rescheduling: '{said}' is not accepted (accepted: on, off)"],
            )
            for said in ("yes", "On", "")
        ),
        (written(kind="Job"), ["kind", "TrainingJob"]),
        (written(status={}), ["status: unknown field", "apiVersion, kind, metadata, spec"]),
        ("- a\n", ["not a mapping"]),
        ("spec: {pods: 2}\nspec: {pods: 4}\n", ["line 1: 'spec' is there twice"]),
        ("a: [\n", ["not YAML"]),
    ],
)
def test_a_mistake_is_named_with_what_is_accepted(text: str, words: list[str]) -> None:
    """Every wrong field is named, with what was written and what is accepted."""
    with pytest.raises(BadInput) as refused:
        parse(text)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("field", "written_as", "meant"),
    [
        ("labels", "subhealthyStrategy", "subHealthyStrategy"),
        ("labels", "sub-healthy-strategy", "subHealthyStrategy"),
        ("labels", "process_recover_enable", "process-recover-enable"),
        ("labels", "framwork", "framework"),
        ("annotations", "recover_strategy", "recover-strategy"),
        ("annotations", "rekindle.io/training_side", "rekindle.io/training-side"),
        ("annotations", "rekindle.io/capabilites", "rekindle.io/capabilities"),
    ],
)
def test_a_slip_in_a_key_of_the_contract_is_refused(field: str, written_as: str, meant: str) -> None:
    """A key that is close to a known one would be ignored silently: it is refused with the known one."""
    with pytest.raises(BadInput, match=f"metadata.{field}.{written_as}: unknown, did you mean {meant}?"):
        parse(written(metadata={"name": "gpt", field: {written_as: "x"}}))


@pytest.mark.parametrize(
    ("word", "field"),
    [("limits", "limits"), ("training-side", "trainingSide"), ("ranks-per-pod", "ranksPerPod"), ("standbys", "standbys")],
)
def test_an_annotation_of_other_kinds_is_refused_with_its_field(word: str, field: str) -> None:
    """An annotation of other kinds is refused with the field that a TrainingJob has for it. It would be ignored, and seem to
    hold."""
    with pytest.raises(BadInput, match=f"metadata.annotations.rekindle.io/{word}: not read of a TrainingJob, use spec.{field}"):
        parse(written(metadata={"name": "gpt", "annotations": {f"rekindle.io/{word}": "1"}}))


def test_unrelated_keys_are_nobodys_business() -> None:
    """Labels and annotations of other programs are accepted as they are, also those that share a word with ours."""
    ours = ("team", "strategy", "framework-version", "app.kubernetes.io/managed-by", "example.com/framework", "huawei.com/limits")
    job = parse(written(metadata={"name": "gpt", "labels": dict.fromkeys(ours, "x"), "annotations": dict.fromkeys(ours, "x")}))
    assert set(job.metadata.labels) == set(job.metadata.annotations) == set(ours)


def test_all_mistakes_are_told_at_once() -> None:
    """One error lists every wrong field, labels and limits included."""
    spec = {"pods": 0, "typo": 1, "limits": {"pauze": 1, "resume": "x"}}
    with pytest.raises(BadInput) as refused:
        parse(written(spec, metadata={"labels": {"subHealthyStrategy": "x"}}))
    for field in ("spec.pods", "spec.typo", "spec.limits.pauze", "spec.limits.resume", "metadata.name", "subHealthyStrategy"):
        assert field in str(refused.value)


def test_a_relation_is_judged_with_the_installations_limits() -> None:
    """A limit that only fits the installation's other limits is accepted there."""
    text = written({"limits": {"oldPodDeleted": 30}})
    assert parse(text, Limits(migration_delivered=timedelta(seconds=60))).metadata.name == "gpt"


def test_a_job_object_with_a_bad_label_is_refused_by_name() -> None:
    """A job object that did not come from a manifest is validated alike."""
    job = JobObject(
        metadata=ObjectMeta(name="x", labels={"subHealthyStrategy": "maybe"}, annotations={"rekindle.io/capabilities": "fly"}),
        spec=JobSpec(pods=1, ranks_per_pod=1, template=PodTemplate(command=("x",)), training_side="else"),
    )
    with pytest.raises(BadInput) as refused:
        job_of(job, Limits())
    for field in ("metadata.labels.subHealthyStrategy", "metadata.annotations.rekindle.io/capabilities", "spec.trainingSide"):
        assert field in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "metadata", "words"),
    [
        ({"pods": 20_000_000}, {}, "spec: 20000000 pods are too many: a job has at most 5000 pods"),
        (
            {"ranks_per_pod": 1_000_000_000},
            {},
            "spec: 1 pods of 1000000000 ranks each are too many: a job has at most 10000 ranks",
        ),
        ({}, {"name": "x" * 254}, "metadata.name: 254 characters are too many: it has at most 253"),
        (
            {},
            {"labels": {"framework": "x" * 2000}},
            "metadata.labels.framework: 2000 characters are too many: it has at most 1024",
        ),
    ],
)
def test_a_job_object_beyond_the_products_sizes_is_refused(spec: dict[str, Any], metadata: dict[str, Any], words: str) -> None:
    """The limit is named, and nothing of that size is built to find out."""
    template = PodTemplate(command=("x",))
    job = JobObject(
        metadata=ObjectMeta(**{"name": "x", **metadata}),
        spec=JobSpec(**{"pods": 1, "ranks_per_pod": 1, **spec}, template=template),
    )
    tracemalloc.start()
    with pytest.raises(BadInput) as refused:
        job_of(job, Limits())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(refused.value) == words
    assert peak < 1_000_000


def test_only_what_recoveries_read_of_labels_and_annotations_is_kept() -> None:
    """An annotation of another program may be as large as Kubernetes allows, and is in no payload of ours."""
    others = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 200_000}
    document = written(metadata={"name": "gpt", "labels": {"framework": "pytorch", "team": "a"}, "annotations": others})
    known = job_of(parse(document), Limits())
    assert (known.labels, known.annotations) == ({"framework": "pytorch"}, {})


def test_a_file_may_have_several_jobs() -> None:
    """A file has one job per document; empty documents, as after a last `---`, are ignored."""
    text = f"---\n{written()}\n---\n{written()}\n---\n"
    assert [job.metadata.name for job in parse_all(text)] == ["gpt", "gpt"]


def test_a_wrong_document_of_several_is_named() -> None:
    """No job of a file starts if one document is wrong."""
    with pytest.raises(BadInput, match=r"^document 2 of 2: .*spec.podz: unknown field"):
        parse_all(f"{written()}\n---\n{written({'podz': 2})}")
