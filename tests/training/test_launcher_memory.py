"""State that a rank leaves in memory for the process that follows it, whenever the rank was killed."""

import fcntl
import os

import pytest

from rekindle_training.adapter.launcher_memory import LauncherMemory


def test_what_was_left_last_of_a_step_is_found_by_the_next_process() -> None:
    """A boundary is written again when its step is repeated."""
    memory = os.memfd_create("test")
    before = LauncherMemory(memory)
    for step, own in ((4, b"at first"), (5, b"before an update"), (4, b"again"), (5, b"before the same update")):
        before.leave(step, own)
    after = LauncherMemory(memory)
    assert [after.behind(step) for step in (3, 4, 5, 6)] == [None, b"again", b"before the same update", None]
    after.leave(5, b"of the next process")
    assert LauncherMemory(memory).behind(5) == b"of the next process"


def test_a_torn_writing_does_not_count() -> None:
    """A process that is killed in the middle of a write has left the state of the write before it."""
    memory = os.memfd_create("test")
    before = LauncherMemory(memory)
    for number in range(6):
        before.leave(7, bytes([number]) * 1000)
    newest = next(slot for slot in range(4) if os.pread(memory, 1032, slot << 32).endswith(b"\5"))
    os.pwrite(memory, b"half of another one", newest << 32 | 40)
    assert LauncherMemory(memory).behind(7) == b"\4" * 1000


def test_without_memory_nothing_is_left() -> None:
    """A rank whose launcher gave it none trains all the same."""
    nothing = LauncherMemory(None)
    nothing.leave(1, b"lost")
    assert nothing.behind(1) is None


def test_memory_that_cannot_be_written_does_not_end_training(caplog: pytest.LogCaptureFixture) -> None:
    """The log says it once. Earlier state stays, and is not taken for that of a later step."""
    memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    before = LauncherMemory(memory)
    before.leave(4, b"left")
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    for step in (5, 6):
        before.leave(step, b"lost")
    assert [record.message for record in caplog.records] == [
        "own state not left, a process that replaces this one would go back to the checkpoint: [Errno 1] Operation not permitted"
    ]
    assert [LauncherMemory(memory).behind(step) for step in (4, 5, 6)] == [b"left", None, None]
