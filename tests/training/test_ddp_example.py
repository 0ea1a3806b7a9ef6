"""The example with DDP, loader workers, autocast, accumulation and an average ends with the bits of its plain version."""

import re
from pathlib import Path

import pytest
import pytest_asyncio

from rekindle_training import examples
from tests.training.processes import Zygote
from tests.training.scripts.plain import final, run_plain
from tests.training.standalone import Standalone

pytestmark = pytest.mark.xdist_group("the example with DDP")
"""A mark for tests that compare with one run of the plain version."""

EXAMPLES = Path(examples.__path__[0])
STRUCK = str(Path(__file__).with_name("scripts").joinpath("struck.py"))
DDP = str(EXAMPLES / "ddp.py")
RANKS = 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> list[bytes]:
    """The final parameters of the plain version."""
    return await run_plain(zygote, tmp_path_factory.mktemp("plain"), RANKS, str(EXAMPLES / "ddp_plain.py"))


async def test_an_undisturbed_run_is_the_plain_one(alone: Standalone, plain: list[bytes]) -> None:
    """Bit for bit, with the same batches in the same order. Its log has its own lines and ours."""
    printed = await alone.run(script=DDP, ranks=RANKS)
    assert final(alone.folder, RANKS) == plain
    others = [line for line in printed.splitlines() if not re.search(r" rekindle-\w+ (INFO|WARNING) |^epoch \d accuracy ", line)]
    assert not others


@pytest.mark.same_path("a step of the example with DDP is repeated")
@pytest.mark.parametrize("kind", ["kill", "raise"])
async def test_a_step_is_repeated_with_the_same_batches(kind: str, alone: Standalone, plain: list[bytes]) -> None:
    """A step is repeated in the middle of an epoch, where the workers of the loader are ahead of training."""
    printed = await alone.run("--spares=1", STRUCK, script=DDP, ranks=RANKS, FAULTS=f"1:5:{kind},0:13:{kind}")
    assert printed.count("repaired step=") == 2
    assert final(alone.folder, RANKS) == plain


async def test_a_restart_goes_on_in_the_middle_of_an_epoch(alone: Standalone, plain: list[bytes]) -> None:
    """A job restarts from a checkpoint, with the batches that follow it."""
    printed = await alone.run("--max-restarts=1", STRUCK, script=DDP, ranks=RANKS, FAULTS="0:8:kill,1:8:kill")
    assert "all ranks restarted from the last checkpoint" in printed
    assert final(alone.folder, RANKS) == plain
