"""A training script that is interrupted where `STRIKES` says, each time once: `PLACE:RANK:KIND`, separated by commas.

KIND is `kill`, `raise`, `interrupt`, or `lose`, which is the error of a rank that loses the manager's store. A strike waits for
the previous one, on any rank, and happens during what follows that one.
"""

import hashlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import rekindle_training
from rekindle_training.adapter.checkpoint import Checkpoints
from rekindle_training.adapter.communicator import Communicator
from rekindle_training.adapter.step_log import StepLog

FOLDER = Path(os.environ["REKINDLE_JOB_DIR"])
STRIKES = [tuple(strike.split(":")) for strike in os.environ.get("STRIKES", "").split(",") if strike]
STEPS = int(os.environ.get("STEPS", "8"))
LAST = os.environ.get("LAST", "")
"""`RANK:STEP` after which a rank waits, once, until all others have given up the next step."""


def struck(index: int) -> Path:
    return FOLDER / f"struck-{index}"


def strike(place: str) -> None:
    for index, (where, rank, kind) in enumerate(STRIKES):
        if (where, rank) != (place, os.environ["RANK"]) or struck(index).exists():
            continue
        if index:
            wait_for(struck(index - 1))
        struck(index).touch()
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise {"raise": ValueError, "interrupt": KeyboardInterrupt, "lose": dist.DistNetworkError}[kind](f"struck {place}")


def wait_for(*files: Path) -> None:
    while not all(file.exists() for file in files):
        time.sleep(0.005)


def given_up(rank: int, step: int) -> Path:
    return FOLDER / f"given-up-{rank}-{step}"


def entered(rank: int, step: int) -> Path:
    return FOLDER / f"entered-{rank}-{step}"


def others_than(rank: int) -> list[int]:
    return [other for other in range(4) if other != rank]


def striking(kind: type, place: Callable[[Any], str], method: str) -> None:
    called = getattr(kind, method)

    def replaced(thing: Any, *arguments: Any) -> Any:
        strike(place(thing))
        return called(thing, *arguments)

    setattr(kind, method, replaced)


striking(Communicator, lambda communicator: f"meeting {communicator._generation}", "_meet")
striking(Communicator, lambda _: "comparing", "refuse_other_groups")
striking(Checkpoints, lambda _: "reading", "_opened")
striking(Checkpoints, lambda _: "read", "set_aside")
record = StepLog.record


def recorded(log: StepLog, step: int, *moment: Any) -> None:
    """Ranks have been compared after the step, and this one has still to say that it has done it."""
    rank, (_, _, generation, _) = int(os.environ["RANK"]), moment
    if f"{rank}:{step}" == LAST and generation > 1:
        wait_for(*(given_up(other, step + 1) for other in others_than(rank)))
    record(log, step, *moment)


StepLog.record = recorded  # type: ignore[method-assign,assignment]
torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
if os.environ.get("ENTERS") == "early":
    rekindle_training.init_process_group()


def tell() -> None:
    """Averages the parameters over all ranks, as an optimizer does that is spread over ranks."""
    if struck(0).exists():
        strike("telling")
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= 4


with rekindle_training.session(
    model, optimizer, checkpoint_every=int(os.environ.get("EVERY", "0")), after_update=tell if os.environ.get("TELLS") else None
) as training:
    training.on_repeat(lambda: given_up(training.rank, training.step + 1).touch())
    strike("begun")
    torch.manual_seed(1 + training.rank)
    for step in training.steps(STEPS):
        try:
            with step:
                if LAST.endswith(f":{step - 1}") and training.generation > 1:  # a slow rank still compares itself with others
                    entered(training.rank, step).touch()
                    wait_for(*(entered(other, step) for other in others_than(int(LAST.split(":")[0]))))
                strike(f"step {step}")
                loss = model(torch.randn(2, 4)).pow(2).mean()
                loss.backward()
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    dist.all_reduce(parameter.grad)
                strike(f"gradients {step}")
                optimizer.step()
                optimizer.zero_grad()
        except BaseException:
            if os.environ.get("CATCHES") == "and leaves":
                break
            if not os.environ.get("CATCHES"):
                raise
    content = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    os.write(1, f"final {training.rank} {hashlib.sha256(content).hexdigest()[:16]} {torch.rand(1).item()!r}\n".encode())
if os.environ.get("FAILS"):
    raise OSError("no room on the disk")
