"""Fields of a pod that its backup copies, and fields that cannot be copied."""

import copy

import pytest

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kind import Workload
from activities.clusters.kubernetes.kinds import BATCH_JOB
from activities.clusters.kubernetes.objects import pod_of
from activities.clusters.kubernetes.pod_objects import REQUIRED, backup_of, placed, shared_claim
from rekindle.errors import BadInput
from tests.support.valid_objects import JOBS, pod

JOB = Workload(BATCH_JOB, JOBS[BATCH_JOB])
LONG = f"ErrImagePull: {'x' * 1010}"
UID = "batch.kubernetes.io/controller-uid"


@pytest.mark.parametrize("part", ["containers", "initContainers"])
def test_what_refers_to_a_label_that_is_withheld_has_its_value(part: str) -> None:
    """A backup receives the label later, because a Job's controller counts a pod by it. Its processes read the value at their
    start."""
    old = pod("uid-of-job", "one")
    old["metadata"]["labels"][UID] = "the-uid"
    reference = {"name": "TASK", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{UID}']"}}}
    old["spec"][part] = [{"name": "main", "env": [reference]}]
    old["spec"].setdefault("containers", [{"name": "main"}])
    clone = backup_of(old, JOB, "spare", "0", {})
    assert clone["spec"][part][0]["env"] == [{"name": "TASK", "value": "the-uid"}]
    assert UID not in clone["metadata"]["labels"]


def test_the_name_by_which_peers_know_a_rank_leads_to_its_backup() -> None:
    """The name by which peers reach a rank is copied to its backup, because a pod cannot receive it later."""
    old = pod("uid-of-job", "one")
    name = {"hostname": "job-0", "subdomain": "job"}
    old["spec"] |= name
    assert backup_of(old, JOB, "spare", "0", {})["spec"].items() >= name.items()


def test_an_affinity_of_very_many_terms_is_refused_before_each_of_them_names_each_node() -> None:
    """Such an affinity of a megabyte would become pods of 60 megabytes, many at a time, in the memory of the worker of all
    tenants."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [f"{number}"]}]} for number in range(101)]
    avoided = [f"node-{number}" for number in range(60)]
    few, many = ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": some}}} for some in (terms[:100], terms))
    assert len(placed(few, avoided)["nodeAffinity"][REQUIRED]["nodeSelectorTerms"][99]["matchFields"]) == 60
    with pytest.raises(BadInput, match="101 are too many"):
        placed(many, avoided)


def test_a_claim_that_pods_share_is_told_from_one_of_their_own() -> None:
    """Devices of a shared claim are on one node."""
    one = pod("uid-of-job", "one")
    assert shared_claim(one) == ""
    one["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    assert shared_claim(one) == ""
    one["spec"]["resourceClaims"].append({"name": "nic", "resourceClaimName": "nic-of-rack-7"})
    assert shared_claim(one) == "nic-of-rack-7"


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        ({}, ""),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}]}, ""),
        (
            {
                "initContainerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}],
                "containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}],
            },
            "ImagePullBackOff: no such image",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "x" * 9999}}}]},
            f"ErrImagePull: {'x' * 1010}",
        ),
    ],
)
def test_why_a_container_waits_is_read(statuses: Object, words: str) -> None:
    """The reason why a container waits is read: init containers come first, and long messages of registries are cut."""
    waits = copy.deepcopy(pod("uid-of-job", "one"))
    waits["status"] = {"phase": "Pending", **statuses}
    assert pod_of(waits, JOB, ()).status.waiting == words
