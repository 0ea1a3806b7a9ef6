"""Answers to a dry run that say that new pods of a job would be refused, over an API server on loopback."""

import pytest

from rekindle.errors import Refused
from tests.support.tenants import Tenants

PODS = "/api/v1/namespaces/victim/pods"
MEMORY = "requested: requests.memory=1Gi, used: requests.memory={}, limited: requests.memory=4Gi"
QUOTA = f'pods "x" is forbidden: exceeded quota: gpus, {MEMORY}'


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest": host namespaces'),
        (403, QUOTA.format("5000Mi")),
        (422, "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: not today"),
        (400, 'admission webhook "pods.example.com" denied the request: not today'),
    ],
)
async def test_who_would_refuse_the_new_pods_is_heard_before_any_is_stopped(tenants: Tenants, code: int, words: str) -> None:
    """Pod security, a quota of which more is used than it allows, a policy, a webhook: each has a code of its own."""
    await tenants.pod("victim", "worker", "victim.loose")
    tenants.scripted.refused["POST", PODS] = code, words
    with pytest.raises(Refused, match="the cluster would refuse the new pods: "):
        await tenants.cluster.ensure_stopped("victim.loose", 0)
    assert not [method for method, path in tenants.scripted.requests if method == "DELETE" or "podtemplates" in path]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (422, 'Pod "x" is invalid: spec.overhead: Forbidden'),
        (400, 'admission webhook "pods.example.com" does not support dry run'),
        (403, QUOTA.format("4096Mi")),
        (403, 'pods is forbidden: User "u" cannot create resource "pods" in API group ""'),
    ],
)
async def test_what_is_no_refusal_of_the_pods_keeps_no_job_from_being_restarted(tenants: Tenants, code: int, words: str) -> None:
    """A fault of the question, a webhook that cannot be asked, a quota that the job fills itself, a right that others have."""
    await tenants.pod("victim", "worker", "victim.loose")
    tenants.scripted.refused["POST", PODS] = code, words
    assert await tenants.cluster.ensure_stopped("victim.loose", 0)
