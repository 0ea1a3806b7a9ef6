"""The token that a manager sends: what its file holds at this moment, and nothing that would end its calls."""

import logging
from pathlib import Path

import pytest

from rekindle_training.environment import ManagerEnvironment
from rekindle_training.manager.identity import LONGEST, Identity


def test_the_file_is_read_for_each_call(tmp_path: Path) -> None:
    """The kubelet replaces it."""
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
    """gRPC would refuse the call by an error of its own. It is said once."""
    (tmp_path / "token").write_bytes(content)
    identity = Identity("a-job", tmp_path / "token")
    with caplog.at_level(logging.WARNING):
        assert [identity.metadata() for _ in range(3)] == [(), (), ()]
    assert [record.message for record in caplog.records] == ["no token is sent"]


def test_a_directory_in_its_place_ends_nothing(tmp_path: Path) -> None:
    """Nor does a file that may not be read."""
    assert Identity("a-job", tmp_path).metadata() == ()


@pytest.mark.parametrize(("said", "file"), [("", "/var/run/secrets/rekindle.io/token"), ("/elsewhere/t", "/elsewhere/t")])
def test_the_cluster_says_where_it_is(said: str, file: str) -> None:
    """Or the owner's template mounts it where we look."""
    source = {"MINDX_TASK_ID": "a-job", "MINDX_SERVER_IP": "10.0.0.1", "REKINDLE_TOKEN_FILE": said}
    assert ManagerEnvironment.read(source).token_file == Path(file)
