"""The example with DDP, loader workers, autocast, accumulation and an average ends with the bits of its plain version."""

import os
import re
import sys
from pathlib import Path
from subprocess import run

import pytest

from rekindle_training import examples
from tests.training.standalone import Standalone

pytestmark = pytest.mark.xdist_group("the example with DDP")
"""They compare with one run of the plain version."""

EXAMPLES = Path(examples.__path__[0])
STRUCK = str(Path(__file__).with_name("struck.py"))
DDP = str(EXAMPLES / "ddp.py")
RANKS = 2


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The final parameters of the plain version, by torchrun."""
    folder = tmp_path_factory.mktemp("plain")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    run([*torchrun, EXAMPLES / "ddp_plain.py"], env={**os.environ, "REKINDLE_JOB_DIR": str(folder)}, check=True, timeout=120)
    return final(folder)


def final(folder: Path) -> list[bytes]:
    files = sorted((folder / "final").iterdir())
    assert len(files) == RANKS
    return [file.read_bytes() for file in files]


async def test_an_undisturbed_run_is_the_plain_one(alone: Standalone, plain: list[bytes]) -> None:
    """Bit for bit, with the same batches in the same order. Its log has its own lines and ours."""
    printed = await alone.run(script=DDP, ranks=RANKS)
    assert final(alone.folder) == plain
    others = [line for line in printed.splitlines() if not re.search(r" rekindle-\w+ (INFO|WARNING) |^epoch \d accuracy ", line)]
    assert not others


@pytest.mark.parametrize("kind", ["kill", "raise"])
async def test_a_step_is_repeated_with_the_same_batches(kind: str, alone: Standalone, plain: list[bytes]) -> None:
    """In the middle of an epoch, where the workers of the loader are ahead of training."""
    printed = await alone.run("--spares=1", STRUCK, script=DDP, ranks=RANKS, FAULTS=f"1:5:{kind},0:13:{kind}")
    assert printed.count("repaired step=") == 2
    assert final(alone.folder) == plain


async def test_a_restart_goes_on_in_the_middle_of_an_epoch(alone: Standalone, plain: list[bytes]) -> None:
    """From a checkpoint, with the batches behind it."""
    printed = await alone.run("--max-restarts=1", STRUCK, script=DDP, ranks=RANKS, FAULTS="0:8:kill,1:8:kill")
    assert "all ranks begin again at the last checkpoint" in printed
    assert final(alone.folder) == plain
