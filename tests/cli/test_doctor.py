"""`rekindle doctor` finds the link of an installation that is broken, and says how to mend it."""

import asyncio
import json
import re
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from temporalio.api.operatorservice.v1 import RemoveSearchAttributesRequest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from rekindle import doctor
from rekindle.cli import doctor as doctor_command
from rekindle.cli.doctor import on_kubernetes
from rekindle.cli.on_kubernetes import kubeconfig_of, usual_kubeconfig
from rekindle.cli.output import Format
from rekindle.cli.ports import free_ports
from rekindle.client import Rekindle
from rekindle.deployment import Deployment, Version
from rekindle.doctor import examine
from rekindle.errors import BadInput, Unavailable
from rekindle.ids import Updates
from rekindle.model.attachment import Attachment
from rekindle.model.examined import Health, Link
from rekindle.model.explained import NodesNow
from rekindle.nodes import Nodes
from rekindle.temporal import Attributes, register_attributes
from rekindle.worker_plugin import plugin
from tests.fakes.peer import Script
from tests.support.harness import Harness, a_job, harness, training
from tests.support.temporal import skipping_server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own_server() -> AsyncIterator[WorkflowEnvironment]:
    """Starts a server without workers, whose attributes may be removed."""
    env = await skipping_server()
    yield env
    await env.shutdown()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Version:
    """A control worker that is current and asks for work. Tests have workers without a version."""
    version = Version(build_id="0.1.0-abc", current=True, asked_at=datetime.now(UTC))

    async def read(_: Client) -> Deployment:
        return Deployment(versions=(version,))

    async def look(_: Nodes) -> NodesNow:
        return NodesNow(count=4)

    monkeypatch.setattr(doctor, "read_deployment", read)
    monkeypatch.setattr(Nodes, "look", look)
    return version


async def links(client: Client) -> dict[str, Link]:
    return {link.name: link async for link in examine(Rekindle(client))}


async def test_a_namespace_that_is_missing_is_named(own_server: WorkflowEnvironment) -> None:
    """No other link is examined, as none can be."""
    address = own_server.client.service_client.config.target_host
    client = await Client.connect(address, namespace="elsewhere", plugins=[plugin()])
    found = await links(client)
    assert list(found) == ["Temporal"]
    assert found["Temporal"].health is Health.FAILED
    assert "namespace elsewhere" in found["Temporal"].words
    assert "temporal operator namespace create --namespace elsewhere" in found["Temporal"].mend


async def test_a_server_without_a_control_worker_says_how_to_start_one(own_server: WorkflowEnvironment) -> None:
    """Links that depend on it are left out."""
    found = await links(own_server.client)
    assert [(name, link.health) for name, link in found.items()] == [
        ("Temporal", Health.OK),
        ("search attributes", Health.OK),
        ("control worker", Health.FAILED),
    ]
    assert found["Temporal"].words.endswith("keeps closed workflows for 1 day")
    assert "none has ever started" in found["control worker"].words
    assert "rekindle dev" in found["control worker"].mend


async def test_missing_attributes_come_with_the_commands_that_create_them(own_server: WorkflowEnvironment) -> None:
    """Lists of jobs and recoveries are made by them."""
    name = Attributes.NODE.name
    request = RemoveSearchAttributesRequest(namespace=own_server.client.namespace, search_attributes=[name])
    await own_server.client.operator_service.remove_search_attributes(request)
    found = (await links(own_server.client))["search attributes"]
    await register_attributes(own_server.client, [name])
    assert (found.health, found.words) == (Health.FAILED, f"missing: {name}")
    assert found.mend == f"temporal operator search-attribute create --namespace default --name {name} --type KeywordList"


async def test_a_control_worker_of_another_release_is_a_warning(own_server: WorkflowEnvironment, served: Version) -> None:
    """Neither the watcher nor a gateway is seen without a job."""
    found = await links(own_server.client)
    assert found["version of this command"].health is Health.OK
    assert found["cluster"].words == "the control worker reads it: 4 nodes, 4 of them well"
    assert found["jobs"].health is Health.UNKNOWN


@pytest.mark.parametrize(
    ("version", "words", "mend"),
    [
        (
            Version(build_id="0.1.0-abc", asked_at=datetime.now(UTC) + timedelta(hours=1)),
            "no version is current",
            "rekindle versions use 0.1.0-abc",
        ),
        (Version(build_id="0.1.0-abc"), "no version is current", "rekindle-control"),
        (Version(build_id="0.1.0-abc", current=True), "is current and has no worker", "rekindle-control"),
    ],
)
async def test_a_version_that_does_no_work_is_found(
    version: Version, words: str, mend: str, own_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New recoveries begin on the current version only."""

    async def read(_: Client) -> Deployment:
        return Deployment(versions=(version,))

    monkeypatch.setattr(doctor, "read_deployment", read)
    found = (await links(own_server.client))["control worker"]
    assert found.health is Health.FAILED
    assert words in found.words
    assert mend in found.mend


async def test_a_version_that_a_person_has_named_is_not_compared(
    own_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`REKINDLE_BUILD_ID` may be any word, and no distribution has it as its release."""

    async def read(_: Client) -> Deployment:
        return Deployment(versions=(Version(build_id="canary-7", current=True, asked_at=datetime.now(UTC)),))

    async def look(_: Nodes) -> NodesNow:
        return NodesNow()

    monkeypatch.setattr(doctor, "read_deployment", read)
    monkeypatch.setattr(Nodes, "look", look)
    found = (await links(own_server.client))["version of this command"]
    assert (found.health, found.mend) == (Health.UNKNOWN, "")
    assert "canary-7" in found.words


async def test_the_gateway_of_a_job_is_examined(temporal: WorkflowEnvironment, served: Version) -> None:
    """Gateways that hold a stream have to ask for work. One that does not is found."""
    async with training(temporal, a_job(), Script()) as (world, _peer):
        name = f"gateway {world.gateway.name}"
        await listed(world)
        link = (await links(temporal.client))[name]
        assert (link.health, link.words) == (Health.OK, "holds the streams of 1 job, and asks for work")
        attachment = Attachment(queue="gateway/gone", session="session-gone", since=datetime.now(UTC))
        await world.tell(Updates.ATTACH, attachment)
        link = (await links(temporal.client))["gateway gone"]
        assert (link.health, "has not asked for work" in link.words) == (Health.FAILED, True)


async def test_a_job_without_a_stream_is_named(temporal: WorkflowEnvironment, served: Version) -> None:
    """Only restarts recover it."""
    async with harness(temporal, a_job()) as world:
        await listed(world)
        found = await links(temporal.client)
        assert found["training sides"].health is Health.WARNING
        assert world.job.name in found["training sides"].words


async def listed(world: Harness) -> None:
    """Waits until the server lists the job."""
    async with asyncio.timeout(60):
        while world.job.id not in {row.id for row in await Rekindle(world.client).jobs()}:
            await asyncio.sleep(0.03)


# ---- without a cluster that can be seen


async def test_without_a_kubeconfig_one_line_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing fails for it, and the line says what to give."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("REKINDLE_STATE_DIR", str(tmp_path))
    (link,) = [link async for link in on_kubernetes(None, "")]
    assert (link.name, link.health) == ("Kubernetes", Health.UNKNOWN)
    assert link.words == "not examined, because there is no kubeconfig"
    assert "--kubeconfig" in link.mend


def test_several_kubeconfigs_are_given_on_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """KUBECONFIG may name several files, of which those that are there are merged, as kubectl does."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("{}")
    two.write_text("{}")
    monkeypatch.setenv("KUBECONFIG", f"{one}:{tmp_path / 'none'}:{two}")
    assert usual_kubeconfig() == kubeconfig_of(None, "anybody") == f"{one}:{two}"


async def test_without_the_client_of_kubernetes_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's wheel comes without it."""
    monkeypatch.setattr(doctor_command, "is_installed", lambda: False)
    (link,) = [link async for link in on_kubernetes(None, "")]
    assert link.health is Health.UNKNOWN
    assert 'pip install "rekindle-recovery[kubernetes]"' in link.words


@pytest.mark.costly
async def test_an_api_server_that_does_not_answer_is_a_broken_link(tmp_path: Path) -> None:
    """No other link is examined. A kubeconfig that cannot be read is one too."""
    config = {
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{free_ports(1)[0]}"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "users": [{"name": "me", "user": {"token": "none"}}],
        "current-context": "here",
    }
    for text, words in ((yaml.safe_dump(config), "the API server does not answer"), ("{}", str(tmp_path / "config"))):
        (tmp_path / "config").write_text(text)
        (link,) = [link async for link in on_kubernetes(tmp_path / "config", "")]
        assert (link.name, link.health, words in link.words) == ("Kubernetes", Health.FAILED, True), link


async def test_kubernetes_is_examined_although_temporal_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The reason may be there. The command ends as if nothing had been examined: Temporal does not answer."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("REKINDLE_STATE_DIR", str(tmp_path))
    with pytest.raises(Unavailable, match="Temporal does not answer"):
        await doctor_command.doctor(output=Format.JSON)
    of_temporal, of_kubernetes = json.loads(capsys.readouterr().out)
    assert (of_temporal["name"], of_temporal["health"]) == ("Temporal", "failed")
    assert of_kubernetes["words"] == "not examined, because there is no kubeconfig"


async def test_a_name_that_no_namespace_has_is_bad_input(tmp_path: Path) -> None:
    """A bad name is refused before the cluster is asked: it would become a part of the paths."""
    (tmp_path / "config").write_text("{}")
    for name in ("A_b", "../kube-system"):
        with pytest.raises(BadInput, match=re.escape(f"--namespace: {name!r} is not accepted")):
            [link async for link in on_kubernetes(tmp_path / "config", name)]


async def test_what_the_examination_says_on_its_way_does_not_stop_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A library may write more warnings than a pipe holds before the first link is there."""
    (tmp_path / "kubeconfig").write_text("{}")
    link = Link(name="Kubernetes", health=Health.OK, words="it answers")
    script = f"import sys; sys.stderr.write('warning\\n' * 100_000); print({link.model_dump_json()!r})"

    async def started(*_: object, **streams: Any) -> Process:
        return await asyncio.create_subprocess_exec(sys.executable, "-c", script, **streams)

    monkeypatch.setattr(doctor_command, "started", started)
    async with asyncio.timeout(60):
        assert [one async for one in on_kubernetes(tmp_path / "kubeconfig", "")] == [link]
