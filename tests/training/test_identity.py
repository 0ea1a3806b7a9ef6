"""The token that a manager sends: what its file holds at this moment, and nothing that would end its calls."""

import asyncio
import logging
from pathlib import Path

import pytest

from rekindle_training.environment import EnvironmentIncomplete, ManagerEnvironment
from rekindle_training.manager.gateway import Gateway
from rekindle_training.manager.identity import LONGEST, Identity
from rekindle_training.manager.reports import Reports
from tests.training.gateway_service import GatewayPeer


def test_the_file_is_read_for_each_call(tmp_path: Path) -> None:
    """The kubelet replaces the file of the token."""
    file = tmp_path / "token"
    identity = Identity("a-job", file)
    assert identity.metadata() == ()
    for token in ("first.token", "second.token"):
        file.write_text(f"{token}\n")
        assert identity.metadata() == (("authorization", f"Bearer {token}"),)
    file.unlink()
    assert identity.metadata() == ()


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"two words", b"line\nline", "schl\u00fcssel".encode(), b"\xff\x00", b"a" * (LONGEST + 1)]
)
def test_what_is_no_token_is_not_sent(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A value that gRPC would refuse with an error of its own is not sent, and the log says so once."""
    (tmp_path / "token").write_bytes(content)
    identity = Identity("a-job", tmp_path / "token")
    with caplog.at_level(logging.WARNING):
        assert [identity.metadata() for _ in range(3)] == [(), (), ()]
    assert [record.message for record in caplog.records] == ["token not sent"]


def test_a_directory_in_its_place_ends_nothing(tmp_path: Path) -> None:
    """A directory, or a file that may not be read, ends nothing."""
    assert Identity("a-job", tmp_path).metadata() == ()


def test_a_manager_is_of_the_job_of_its_token_where_nobody_says_it(tmp_path: Path) -> None:
    """A manager with neither does not start, and says what it lacks."""
    source = {"MINDX_SERVER_IP": "10.0.0.1", "REKINDLE_TOKEN_FILE": str(tmp_path / "token")}
    with pytest.raises(EnvironmentIncomplete, match=r"neither MINDX_TASK_ID nor a token .*no file .*audience rekindle-gateway"):
        ManagerEnvironment.read(source)
    (tmp_path / "token").write_text("a.b.c")
    assert ManagerEnvironment.read(source).job_id == ""
    identity = Identity("", tmp_path / "token")
    assert (identity.stranger.jobId, identity.client.jobId, identity.known.is_set()) == ("", "", False)
    identity.learn("")
    assert not identity.known.is_set()
    for job_id in ("first", "made-anew"):
        identity.learn(job_id)
        assert (identity.stranger.jobId, identity.client.jobId, identity.known.is_set()) == ("", job_id, True)


@pytest.mark.parametrize(("said", "file"), [("", "/var/run/secrets/rekindle.io/token"), ("/elsewhere/t", "/elsewhere/t")])
def test_the_cluster_says_where_it_is(said: str, file: str) -> None:
    """The path of the token comes from the environment of the cluster, or is where the owner's template mounts it."""
    source = {"MINDX_TASK_ID": "a-job", "MINDX_SERVER_IP": "10.0.0.1", "REKINDLE_TOKEN_FILE": said}
    assert ManagerEnvironment.read(source).token_file == Path(file)


async def test_a_gateway_that_knows_no_job_by_its_token_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A gateway of an older release reports no job. The manager's log says what to set, and the manager comes back."""
    (tmp_path / "token").write_text("a.b.c")
    peer = GatewayPeer()  # type: ignore[abstract]  # what it does not serve is answered with UNIMPLEMENTED
    await peer.start()
    manager = Gateway(f"127.0.0.1:{peer.port}", Identity("", tmp_path / "token"), Reports(), lambda _: None, {})
    running = asyncio.create_task(manager.run())
    try:
        with caplog.at_level(logging.WARNING):
            await peer.until(lambda: len(peer.all("Init")) == 2)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await peer.stop()
    assert "Init named no job: this gateway is an older one, set MINDX_TASK_ID" in str([one.__dict__ for one in caplog.records])
    assert not peer.all("Register")
