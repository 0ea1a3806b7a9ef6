"""A model that is sharded over ranks, and groups of the script's own: a replacement takes its shard from a rank that has it."""

from pathlib import Path
from typing import Any

import pytest

from rekindle_training import examples
from tests.training.gateway_service import GatewayPeer
from tests.training.job import WORLD, Job
from tests.training.processes import Zygote
from tests.training.scripts.plain import final, run_plain
from tests.training.standalone import Standalone, last_words
from tests.training.test_hot_switch import prepared
from tests.training.test_repair import at_places

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("sharded.py"))
STRUCK = str(Path(__file__).with_name("scripts").joinpath("struck.py"))
OWN_GROUPS = str(Path(__file__).with_name("scripts").joinpath("own_groups.py"))
BOTH_THAT_HAVE_ONE_SHARD = "1:5:behind,3:5:behind"


@pytest.mark.parametrize("kind", ["raise", "kill"])
@pytest.mark.parametrize(
    "faults",
    at_places(
        "a rank of a sharded job fails",
        behind_an_evaluation="2:4:beginning",
        between_the_collectives_of_two_layers="1:5:backward",
        on_two_ranks_that_have_different_shards="0:5:behind,3:5:behind",
        behind_the_update="3:7:updated",
        one_rank_after_the_other="1:5:behind,1:6:behind,2:6:backward",
    ),
)
async def test_a_sharded_step_is_repeated(faults: str, kind: str, alone: Standalone, beside: Standalone) -> None:
    """A rank ends with the shards of parameters and moments that it has in an undisturbed run, to the bit."""
    printed = await alone.run("--spares=1", script=SCRIPT, KIND=kind, FAULTS=faults)
    assert "repaired step=" in printed
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT))


async def test_a_registered_evaluation_of_a_sharded_model_changes_nothing(alone: Standalone, beside: Standalone) -> None:
    """Parameters that it leaves gathered are the same in another place: it is not refused, and training ends as without it."""
    printed = await alone.run(script=SCRIPT, EVALUATES="yes")
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT))


@pytest.mark.same_path("nobody has a shard any more")
@pytest.mark.parametrize("wishes", [{"FAULTS": BOTH_THAT_HAVE_ONE_SHARD}, {"FAULTS": "1:5:behind", "UNIQUE": "accepted"}])
async def test_a_shard_that_nobody_has_any_more_is_the_checkpoint_s(
    wishes: dict[str, Any], alone: Standalone, beside: Standalone
) -> None:
    """All ranks begin again at the checkpoint, which the log says, and end like an undisturbed run."""
    printed = await alone.run("--max-restarts=1", script=SCRIPT, KIND="kill", EVERY="3", **wishes)
    assert "all ranks restarted from the last checkpoint reason=no rank that is left holds the shard of rank 1" in printed
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT, **{**wishes, "FAULTS": ""}))


async def test_a_shard_without_a_replica_is_refused(alone: Standalone) -> None:
    """The shard is refused at the start by its name, with what can be done."""
    printed = await alone.run(code=1, script=SCRIPT, UNIQUE="refused")
    assert (
        "ValueError: session(model): 0.weight is sharded over ranks [0, 1, 2, 3], and no other rank has the same shard" in printed
    )
    assert "or say session(unique_shards=True)" in printed


async def test_gradients_that_were_not_reduced_are_refused(alone: Standalone) -> None:
    """A rank has gradients of its own between two steps, and no replica has them."""
    printed = await alone.run(code=1, script=SCRIPT, GATHERS="yes")
    assert "gradients are held after step 1 that were not reduced: put all backward passes of one update into one" in printed


async def test_a_step_that_adds_to_sharded_gradients_is_repeated(alone: Standalone, beside: Standalone) -> None:
    """A script that never drops its gradients ends with the bits of its undisturbed run: each rank holds those of its shard."""
    printed = await alone.run("--spares=1", script=SCRIPT, KIND="kill", FAULTS="1:5:behind", ADDS="yes")
    assert "repaired step=" in printed
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT, ADDS="yes"))


async def test_a_sharded_job_is_switched(job: Job, gateway: GatewayPeer, beside: Standalone) -> None:
    """The ranks of a pod pass to a backup, which builds its shards with the others and takes their content over."""
    expected = last_words(await beside.run(script=SCRIPT))
    job.script, job.arguments = SCRIPT, []
    await prepared(job, gateway, pod_rank=1)
    await gateway.migrate()
    assert await gateway.status() == 0
    assert await job.codes() == {0}
    assert last_words(job.outputs()) == expected


async def test_a_group_of_the_script_s_own_is_asked_for_again(alone: Standalone, beside: Standalone) -> None:
    """Survivors get the group in `on_rebuild` by the same call by which a replacement makes it. Neither waits for the other."""
    printed = await alone.run("--spares=1", script=OWN_GROUPS, FAULTS="1:3,2:6")
    assert printed.count("repaired step=") == 2
    assert last_words(printed) == last_words(await beside.run(script=OWN_GROUPS))


async def test_a_replacement_that_makes_other_groups_says_so(alone: Standalone) -> None:
    """A replacement reports the error before its loop, and does not leave the others waiting for it."""
    printed = await alone.run("--spares=1", code=1, script=OWN_GROUPS, FAULTS="1:3", REPLACEMENTS="careless")
    assert "have made 1 process groups of the script's own, and this replacement 0" in printed


async def test_the_example_ends_as_its_plain_version(alone: Standalone, tmp_path: Path, zygote: Zygote) -> None:
    """Each rank's shards are those of a run in plain PyTorch, also where a rank was replaced in between."""
    folder, steps = Path(examples.__path__[0]), "--steps=24"
    printed = await alone.run("--spares=1", STRUCK, str(folder / "hsdp.py"), script=steps, FAULTS="1:21:kill")
    assert "repaired step=20" in printed
    (tmp_path / "plain").mkdir()
    assert final(alone.folder, WORLD) == await run_plain(zygote, tmp_path / "plain", WORLD, str(folder / "hsdp_plain.py"), steps)


async def test_a_replacement_that_speaks_to_others_before_its_loop_says_so(alone: Standalone) -> None:
    """The error names the line; the others do not wait until a limit is over."""
    printed = await alone.run("--spares=1", code=1, script=OWN_GROUPS, FAULTS="1:3", REPLACEMENTS="talkative")
    assert "recv at own_groups.py:27: this process replaces another one and is alone before its loop" in printed


async def test_a_standstill_after_a_repair_is_said_with_its_usual_cause(alone: Standalone) -> None:
    """A replacement does not come to its loop, and the others wait for it."""
    printed = await alone.run(
        "--spares=1", code=1, script=OWN_GROUPS, FAULTS="1:3", REPLACEMENTS="slow", REKINDLE_REBUILD_TIMEOUT="3"
    )
    assert "no step was completed within 3 s: as a rule a rank waits in a collective that others take no part in" in printed
