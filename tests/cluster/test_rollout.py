"""Revisions of a Deployment that cannot be read, or that nobody has written, are not known."""

from pathlib import Path

import pytest

from rekindle.settings import Settings
from tests.fakes.scripted_api import scripted_api
from workers.rollout import DEPLOYMENT, REVISION, Rollout, rollouts

APPS = "/apis/apps/v1/namespaces/mindx-dl"

ONE = {"metadata": {"annotations": {REVISION: "1"}}}


@pytest.mark.parametrize(
    ("deployment", "replica_set", "expected"),
    [
        (ONE, ONE, Rollout("1", "1")),
        (ONE, {"metadata": {"annotations": {REVISION: "2"}}}, Rollout("2", "1")),
        ({"metadata": {}}, {"metadata": {"annotations": None}}, None),
        ({"metadata": {"annotations": {REVISION: ""}}}, {"metadata": {"annotations": {REVISION: ""}}}, None),
        ({"metadata": None}, ONE, None),
        ([], ONE, None),
        ("<html>", ONE, None),
    ],
)
async def test_only_revisions_that_are_written_are_known(
    deployment: object, replica_set: object, expected: Rollout | None, tmp_path: Path
) -> None:
    """Two that are missing are not equal, and an answer of another service ends no worker."""
    async with scripted_api(tmp_path) as (scripted, _):
        scripted.answers["GET", f"{APPS}/deployments/{DEPLOYMENT}"] = 200, deployment  # type: ignore[assignment]
        scripted.answers["GET", f"{APPS}/replicasets/{DEPLOYMENT}-abc"] = 200, replica_set  # type: ignore[assignment]
        async with rollouts(Settings(kubeconfig=tmp_path / "kubeconfig", pod_template_hash="abc")) as look:
            assert await look() == expected
