"""A program starts a job on the cluster of `rekindle dev`, and gets its id."""

from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.client import Rekindle
from rekindle.errors import BadInput, ClusterUnavailable
from tests.support.cluster import cluster_process

JOB = """
apiVersion: rekindle.io/v1
kind: TrainingJob
metadata: {name: gpt}
spec: {pods: 1, ranksPerPod: 1, command: [sleep, "60"]}
"""


@pytest.mark.costly
async def test_a_program_starts_a_job(temporal: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pods are there when the call returns, whether it was given as YAML or as what that contains."""
    async with cluster_process(tmp_path) as running:
        monkeypatch.setenv("REKINDLE_CLUSTER_SOCKET", str(running.socket))
        first = await Rekindle(temporal.client).submit(JOB)
        mapping = {
            "apiVersion": "rekindle.io/v1",
            "kind": "TrainingJob",
            "metadata": {"name": "other"},
            "spec": {"pods": 1, "ranksPerPod": 1, "command": ["sleep", "60"]},
        }
        second = await Rekindle(temporal.client).submit(mapping)
        assert {pod.metadata.owner_uid for pod in await running.client.pods()} == {first, second}


async def test_what_cannot_be_started_is_named(
    temporal: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong field, a cluster that does not run, and one whose jobs are objects each have their own error."""
    monkeypatch.setenv("REKINDLE_CLUSTER_SOCKET", str(tmp_path / "none.sock"))
    client = Rekindle(temporal.client)
    with pytest.raises(BadInput, match=r"spec\.pods"):
        await client.submit(JOB.replace("pods: 1", "pods: many"))
    with pytest.raises(ClusterUnavailable):
        await client.submit(JOB)
    monkeypatch.setenv("REKINDLE_CLUSTER", "kubernetes")
    with pytest.raises(BadInput, match="kubectl apply"):
        await client.submit(JOB)
