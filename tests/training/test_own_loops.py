"""A loop and an optimizer of another library, adapted by callbacks: the example ends with the bits of its plain version."""

from pathlib import Path

import pytest
import pytest_asyncio

from rekindle_training import examples
from tests.training.gateway_service import GatewayPeer
from tests.training.job import WORLD, Job
from tests.training.processes import Zygote
from tests.training.scripts.plain import final, run_plain
from tests.training.standalone import Standalone, last_words
from tests.training.test_hot_switch import prepared
from tests.training.test_repair import at_places

pytestmark = pytest.mark.xdist_group("own loops")
"""A mark for tests that compare with one run of the plain version."""

EXAMPLES = Path(examples.__path__[0])
STRUCK = str(Path(__file__).with_name("scripts").joinpath("struck_megatron.py"))
OWN_LOOP = str(Path(__file__).with_name("scripts").joinpath("own_loop.py"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> list[bytes]:
    """The final parameters of the plain version."""
    return await run_plain(zygote, tmp_path_factory.mktemp("plain"), WORLD, str(EXAMPLES / "megatron_plain.py"), "--steps=12")


@pytest.mark.parametrize("kind", ["raise", "kill"])
@pytest.mark.parametrize(
    "faults",
    at_places(
        "a rank of a job with an optimizer that is not torch's fails",
        in_the_first_step="1:1:behind",
        before_an_asynchronous_sum_has_ended="2:5:reducing",
        when_the_update_is_agreed_on="3:5:agreed",
        before_it_has_told_its_update="0:6:telling",
        with_its_last_update="1:12:telling",
        on_two_ranks_with_different_parts="0:5:telling,3:5:telling",
        one_rank_after_the_other="1:5:reducing,1:6:agreed,2:6:telling",
    ),
)
async def test_an_optimizer_that_is_spread_over_ranks_goes_on(
    faults: str, kind: str, alone: Standalone, plain: list[bytes]
) -> None:
    """A rank takes its part of the state from the rank that has the same one, and the parameters of all parts are sent again."""
    printed = await alone.run("--spares=1", script=STRUCK, KIND=kind, FAULTS=faults)
    assert "repaired step=" in printed
    assert final(alone.folder, WORLD) == plain


async def test_a_part_that_nobody_has_any_more_is_the_checkpoint_s(alone: Standalone, plain: list[bytes]) -> None:
    """Each part is written to the checkpoint, and read by the ranks that had it."""
    printed = await alone.run("--max-restarts=1", script=STRUCK, KIND="kill", FAULTS="1:8:behind,3:8:behind")
    assert "all ranks restarted from the last checkpoint reason=no rank that is left holds the shard of rank 1" in printed
    assert final(alone.folder, WORLD) == plain


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("replicas of another job", "session(replicas): rank 0 names [0, 7]; accepted are 0 to 1, itself among them"),
        ("nobody else", "session(replicas): rank 0 names itself alone, so a rank that is lost takes its state along"),
        ("contradiction", "session(replicas): rank 0 names [0, 1], and rank 1 names [1]; ranks that have the same"),
        ("late groups", "session(after_update): process groups were made inside the session; make them before it"),
        ("a step too many", "training.guard: all 4 steps are done; the loop begins after `training.step`"),
        ("no checkpoints", "session(checkpoints): Nothing has no newest and no write and no read"),
    ],
)
async def test_what_cannot_work_is_refused(wish: str, words: str, alone: Standalone) -> None:
    """The script is refused by all ranks alike, with what is accepted."""
    assert words in await alone.run(ranks=2, code=1, script=OWN_LOOP, WISH=wish)


async def test_checkpoints_are_in_a_form_of_the_script_s_own(alone: Standalone) -> None:
    """A job that is restarted reads them."""
    printed = await alone.run("--max-restarts=1", ranks=2, script=OWN_LOOP, WISH="own checkpoints", FAULT="3")
    assert printed.count("wrote 2") == 2
    assert printed.count("read 2") == 2
    assert len(set(last_words(printed))) == 1
    assert "final 4" in printed


async def test_a_script_is_told_of_a_pause_before_it(job: Job, gateway: GatewayPeer) -> None:
    """The callback is called on each rank that trains, and not on the backup."""
    job.script, job.arguments = OWN_LOOP, []
    job.environment["STEPS"] = "40"
    await prepared(job, gateway, pod_rank=1)
    await gateway.migrate()
    assert await gateway.status() == 0
    assert await job.codes() == {0}
    assert sorted(line for line in job.outputs().splitlines() if line.startswith("pausing")) == [
        f"pausing {rank}" for rank in range(WORLD)
    ]
