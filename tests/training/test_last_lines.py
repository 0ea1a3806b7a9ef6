"""The last lines of a script for torchrun, inside the session or after it: a training that is finished ends with 0."""

from pathlib import Path

import pytest

from tests.training.standalone import Standalone

SCRIPT = """
import os, signal, torch, torch.distributed as dist
from pathlib import Path
from torch.distributed import destroy_process_group
import rekindle_training

rank = int(os.environ["RANK"])
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def kill_once():
    struck = Path(os.environ["REKINDLE_JOB_DIR"]) / "struck"
    if rank == 1 and not struck.exists():
        struck.touch()
        os.kill(os.getpid(), signal.SIGKILL)

with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
    for step in training.steps(3):
        with step:
            model(torch.ones(2)).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
    INSIDE
BEHIND
os.write(1, f"ended {rank}\\n".encode())
"""

DESTROY = "dist.destroy_process_group()"
IF_THERE = "dist.is_initialized() and dist.destroy_process_group()"
BARRIER = "dist.barrier(); total = torch.ones(1); dist.all_reduce(total); assert total == 2"


@pytest.mark.parametrize(
    ("inside", "behind"),
    [
        ("pass", DESTROY),
        ("pass", f"{BARRIER}; {DESTROY}"),
        ("pass", f"{BARRIER}; destroy_process_group()"),
        ("pass", BARRIER),
        ("pass", f"{DESTROY}; dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1); {DESTROY}"),
        (DESTROY, "pass"),
        (f"{BARRIER}; destroy_process_group()", IF_THERE),
        ("destroy_process_group(); kill_once()", IF_THERE),
    ],
    ids=["destroy", "barrier, destroy", "imported by name", "barrier", "another group", "inside", "both", "killed behind it"],
)
async def test_a_script_ends_with_its_usual_last_lines(inside: str, behind: str, alone: Standalone, tmp_path: Path) -> None:
    """Collectives after the session work as in a script without one. Ranks that have destroyed the group themselves still wait
    for each other, so that a rank that is killed there is replaced."""
    (tmp_path / "train.py").write_text(SCRIPT.replace("INSIDE", inside).replace("BEHIND", behind))
    printed = await alone.run(script=str(tmp_path / "train.py"), ranks=2)
    assert printed.count("ended ") >= 2
    assert "training is complete" in printed
    assert "Traceback" not in printed
