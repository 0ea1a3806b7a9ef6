"""A job says in several places that it wants graceful fault tolerance (`hotReset=1`)."""

import copy
from typing import Any

import pytest

from activities.clusters.kubernetes.kind import Kind, Workload
from activities.clusters.kubernetes.kinds import ASCEND_JOB, BATCH_JOB, JOB_SET, PYTORCH_JOB
from activities.clusters.kubernetes.objects import job_object_of
from rekindle.model import keys
from rekindle.model.cluster import JobObject, JobSpec, ObjectMeta, PodTemplate
from rekindle.model.job import Job
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from tests.support.valid_objects import JOBS


def read(kind: Kind, change: Any) -> Job:
    """Returns the job of a valid object after a change of it and of the template of its workers."""
    body = copy.deepcopy(JOBS[kind])
    change(body, [template.body for template in Workload(kind, body).workers][-1])
    return job_of(job_object_of(Workload(kind, body), observe=False), Limits())


def in_metadata(field: str, value: str) -> Any:
    return lambda body, _template: body["metadata"].setdefault(field, {}).update({keys.HOT_RESET: value})


def in_template(field: str, value: str) -> Any:
    return lambda _body, template: template.setdefault("metadata", {}).setdefault(field, {}).update({keys.HOT_RESET: value})


def in_environment(value: str) -> Any:
    def change(_body: Any, template: Any) -> None:
        container = template["spec"]["containers"][-1]
        container["env"] = [*container.get("env", []), {"name": keys.HOT_RESET, "value": value}]

    return change


@pytest.mark.parametrize("kind", [ASCEND_JOB, BATCH_JOB, JOB_SET, PYTORCH_JOB], ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    "change",
    [
        in_metadata("labels", "1"),
        in_metadata("annotations", "1"),
        in_template("labels", "1"),
        in_template("annotations", "1"),
        in_environment("1"),
    ],
    ids=["label", "annotation", "label of its pods", "annotation of its pods", "environment of its pods"],
)
def test_a_job_of_any_kind_asks_for_it(kind: Kind, change: Any) -> None:
    """The object and the template of its pods count."""
    assert read(kind, change).graceful_tolerance


@pytest.mark.parametrize("value", ["0", "2", "-1", "", "true"])
def test_other_values_are_about_something_else(value: str) -> None:
    """The other values are about idle devices and inference, and change nothing for a job."""
    assert not read(ASCEND_JOB, in_metadata("labels", value)).graceful_tolerance
    assert not read(ASCEND_JOB, in_environment(value)).graceful_tolerance


@pytest.mark.parametrize("value", ["0", "1"])
def test_a_local_job_asks_for_it_too(value: str) -> None:
    """The environment of its pods is in its manifest."""
    template = PodTemplate(command=("x",), env={keys.HOT_RESET: value})
    found = JobObject(metadata=ObjectMeta(name="gpt", uid="u"), spec=JobSpec(pods=1, ranks_per_pod=1, template=template))
    assert job_of(found, Limits()).graceful_tolerance == (value == "1")
