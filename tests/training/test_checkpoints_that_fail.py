"""Checkpoints that cannot be written: training goes on as if none had been due, says so, and writes the next one."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job
from tests.training.processes import Zygote
from tests.training.standalone import Standalone, last_words

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("protected.py"))
REPAIRED = str(Path(__file__).with_name("scripts").joinpath("repaired.py"))
RANKS = 2

Undisturbed = Callable[[], Awaitable[list[str]]]


class Disk:
    """Small disk, on which a job keeps its checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.path, self._link = folder / "disk", folder / "checkpoints"
        self.path.mkdir(parents=True)
        self._mount("-t", "tmpfs", "-o", "size=32m", "tmpfs")
        self._link.symlink_to(self.path)

    def fill(self) -> None:
        (self.path / "filler").write_bytes(bytes(shutil.disk_usage(self.path).free))

    def make_room(self) -> None:
        (self.path / "filler").unlink()

    def make_read_only(self) -> None:
        self._mount("-o", "remount,ro")

    def make_writable(self) -> None:
        self._mount("-o", "remount,rw")

    def take_away(self) -> None:
        self._link.unlink()
        self._link.symlink_to(self.path / "nowhere")

    def put_a_file_in_its_place(self) -> None:
        self._link.unlink()
        self._link.touch()

    def bring_back(self) -> None:
        self._link.unlink()
        self._link.symlink_to(self.path)

    def end(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    @property
    def content(self) -> list[str]:
        return sorted(entry.name for entry in self.path.iterdir())

    def _mount(self, *arguments: str) -> None:
        done = subprocess.run(["mount", *arguments, str(self.path)], check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.fail(f"these tests mount a small disk: they take root with the capability SYS_ADMIN ({done.stderr.strip()})")


@pytest.fixture
def disk(alone: Standalone) -> Iterator[Disk]:
    disk = Disk(alone.folder)
    yield disk
    disk.end()


@pytest.fixture(scope="module")
def found() -> list[str]:
    """Returns the final output of an undisturbed run of the script, as soon as there was one."""
    return []


@pytest.fixture
def undisturbed(tmp_path: Path, zygote: Zygote, found: list[str]) -> Undisturbed:
    async def undisturbed() -> list[str]:
        if not found:
            printed = await Standalone(tmp_path / "undisturbed", zygote).run(script=SCRIPT, ranks=RANKS, EVERY="0")
            found.extend(last_words(printed))
        return found

    return undisturbed


def steps(alone: Standalone, rank: int) -> list[dict[str, Any]]:
    """Steps that this rank has completed."""
    return [json.loads(line) for line in (alone.folder / "steps" / f"rank-{rank:05d}.jsonl").read_text().splitlines()]


async def comes_to(alone: Standalone, step: int) -> None:
    """Returns when all ranks wait in this step."""
    async with asyncio.timeout(60):
        while len(list(alone.folder.glob(f"waits-{step}-*"))) < RANKS:
            await asyncio.sleep(0.01)


NEWEST = "the newest is that of step 2"
TROUBLES: dict[str, tuple[Callable[[Disk], None], Callable[[Disk], None], str, str]] = {
    "full": (Disk.fill, Disk.make_room, NEWEST, "OSError: [Errno 28] No space left on device"),
    "read-only": (Disk.make_read_only, Disk.make_writable, NEWEST, "OSError: [Errno 30] Read-only file system"),
    "away": (Disk.take_away, Disk.bring_back, "no other one is found", "FileExistsError: [Errno 17] File exists"),
    "a file": (Disk.put_a_file_in_its_place, Disk.bring_back, NEWEST, "NotADirectoryError: [Errno 20]"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_training_goes_on_without_a_checkpoint_that_cannot_be_written(
    trouble: str, alone: Standalone, disk: Disk, undisturbed: Undisturbed
) -> None:
    """No step is repeated, nothing half-written stays; the log names folder, reason, step, the newest one and the next try."""
    breaks, mends, newest, reason = TROUBLES[trouble]
    launcher = await alone.start(script=SCRIPT, ranks=RANKS, EVERY="2", WAITS="3 7")
    await comes_to(alone, 3)
    breaks(disk)
    (alone.folder / "go-3").touch()
    await comes_to(alone, 7)
    assert [name for name in disk.content if name != "filler"] == ["step-00000002"]
    mends(disk)
    (alone.folder / "go-7").touch()
    assert await launcher.code() == 0
    printed = alone.printed
    for step, again in ((4, 6), (6, 8)):
        assert (
            f"checkpoint after step {step} not written, training goes on; {newest}; tried again after step {again}; " in printed
        )
    assert len(re.findall(rf"reason: .*{alone.folder}/checkpoints.*: rank [01]: {re.escape(reason)}", printed)) == 2
    assert printed.count("not written") == 2, "said once for all ranks"
    assert "checkpoints written again, from step 8 on" in printed
    assert disk.content == ["step-00000002", "step-00000008"]
    assert "repaired" not in printed
    assert last_words(printed) == await undisturbed()


async def test_a_checkpoint_that_one_rank_cannot_write_is_no_failure_of_training(
    alone: Standalone, undisturbed: Undisturbed
) -> None:
    """No rank waits for that rank in a collective. The launcher memory that it cannot write costs no step either."""
    printed = await alone.run(script=SCRIPT, ranks=RANKS, EVERY="4", QUOTA="1")
    assert "checkpoint after step 4 not written" in printed
    assert "rank 1: OSError: [Errno 27] File too large" in printed
    assert printed.count("own state not left") == 1
    assert [path.name for path in (alone.folder / "checkpoints").iterdir()] == ["step-00000008"]
    assert "repaired" not in printed
    assert last_words(printed) == await undisturbed()


async def test_a_checkpoint_is_tried_again_before_the_next_one_is_due(alone: Standalone, disk: Disk) -> None:
    """A disk that was full for a moment leaves no gap."""
    launcher = await alone.start(script=SCRIPT, ranks=RANKS, EVERY="4", WAITS="3 5", SOON="yes")
    await comes_to(alone, 3)
    disk.fill()
    (alone.folder / "go-3").touch()
    await comes_to(alone, 5)
    disk.make_room()
    (alone.folder / "go-5").touch()
    assert await launcher.code() == 0
    printed = alone.printed
    assert "checkpoint after step 4 not written, training goes on; no other one is found; tried again after step 5" in printed
    assert "checkpoints written again, from step 5 on" in printed
    assert disk.content == ["step-00000005", "step-00000008"]


async def test_a_folder_of_checkpoints_that_is_removed_is_made_again(alone: Standalone) -> None:
    """A removed folder costs the checkpoints in it, and no later one."""
    launcher = await alone.start(script=SCRIPT, ranks=RANKS, EVERY="4", WAITS="5")
    await comes_to(alone, 5)
    shutil.rmtree(alone.folder / "checkpoints")
    (alone.folder / "go-5").touch()
    assert await launcher.code() == 0
    assert [path.name for path in (alone.folder / "checkpoints").iterdir()] == ["step-00000008"]
    assert "not written" not in alone.printed


async def test_a_store_of_the_script_s_own_that_fails_does_not_end_training(alone: Standalone, undisturbed: Undisturbed) -> None:
    """The store fails on one rank while the others wait for that rank inside it: all leave it, and no step is repeated."""
    launcher = await alone.start(script=SCRIPT, ranks=RANKS, EVERY="2", WAITS="3 7", STORE="yes")
    await comes_to(alone, 3)
    (alone.folder / "broken").touch()
    (alone.folder / "go-3").touch()
    await comes_to(alone, 7)
    (alone.folder / "broken").unlink()
    (alone.folder / "go-7").touch()
    assert await launcher.code() == 0
    printed = alone.printed
    for step in (4, 6):
        assert f"checkpoint after step {step} not written, training goes on; the newest is that of step 2; " in printed
    assert printed.count("reason: rank 0: OSError: [Errno 28] No space left on device") == 2
    assert "checkpoints written again, from step 8 on" in printed
    assert sorted(path.name for path in alone.folder.glob("[0-9]")) == ["2", "8"]
    assert [line["step"] for line in steps(alone, rank=1)] == list(range(1, 9)), "no step is repeated"
    assert last_words(printed) == await undisturbed()


@pytest.mark.parametrize("loop", [{}, {"NO_SCOPE": "yes"}], ids=["with step:", "no scope"])
async def test_a_store_that_fails_is_no_fault_of_its_rank(loop: dict[str, str], job: Job, gateway: GatewayPeer) -> None:
    """The control plane receives no fault and is asked for nothing, and the next checkpoint is tried when it is due."""
    job.script, job.arguments = SCRIPT, []
    job.environment |= {"EVERY": "4", "STORE": "yes", **loop}
    (job.folder / "broken").touch()
    await job.start()
    assert await job.codes() == {0}
    printed = job.outputs()
    for step in (4, 8):
        assert f"checkpoint after step {step} not written, training goes on; no other one is found; " in printed
    assert "reason: rank 0: OSError: [Errno 28] No space left on device" in printed
    assert not gateway.all("ReportProcessFault")
    assert not gateway.all("ReportRecoverStrategy")


async def test_writing_a_checkpoint_that_kills_a_rank_again_and_again_is_put_off(alone: Standalone) -> None:
    """Training goes on without that checkpoint, as where there is too little memory for it."""
    printed = await alone.run(
        "--spares=1", script=REPAIRED, ranks=RANKS, EVERY="3", KIND="kill", ONCE="no", FAULTS="1:6:checkpoint"
    )
    assert printed.count("repaired step=6") == 1
    assert "checkpoint after step 6 not written" in printed
    assert "reason: ranks were lost while they wrote it" in printed
    names = sorted(path.name for path in (alone.folder / "checkpoints").iterdir())
    assert names == ["step-00000009", "step-00000012"]
