"""A training script on which `FAULTS` act: `RANK:STEP:PLACE`, each once, with commas between them. `KIND` says what
they do: `raise` and `memory`, or `kill`, `stop` and `spin` of the process, once for all processes of the rank.

With `LOSS` each rank reports its loss. `before` and `after` name a rank whose loss is not a number before and after a recovery.

With `WRAP` the model is wrapped in DDP with these options, otherwise gradients are averaged by hand. Its steps have what a
repeated one could get wrong: random numbers, dropout, running statistics, autocast, a scaler, an average of the model, a
schedule, data that moves on, an evaluation, and, with `GATHER=2`, gradients of two turns.
"""

import hashlib
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import rekindle_training
from rekindle_training.adapter import checkpoint, copying
from rekindle_training.adapter.ballot import Ballot
from rekindle_training.adapter.checkpoint import Checkpoints
from rekindle_training.adapter.shared_vote import SharedVote
from rekindle_training.examples.gpt_model import at_least

STEPS = 12

PACE = (float(os.environ.get("PACE_MS", "0")), os.environ.get("PACE_FILE", ""))
FAULTS = {tuple(fault.split(":")) for fault in os.environ.get("FAULTS", "").split(",") if fault}
KIND = os.environ.get("KIND", "raise")
LOSS = dict(pair.split("=") for pair in os.environ.get("LOSS", "").split(",") if pair)
GATHER = int(os.environ.get("GATHER", "1"))
WRAP = os.environ["WRAP"].split() if "WRAP" in os.environ else None
rank = int(os.environ["RANK"])


class Batches:
    """Data of a rank, with a position."""

    def __init__(self) -> None:
        self.drawn = 0

    def __next__(self) -> torch.Tensor:
        self.drawn += 1
        return torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * rank + self.drawn))

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.drawn = state["drawn"]


def strikes(place: str, step: int) -> bool:
    fault = (str(rank), str(step), place)
    if fault not in FAULTS or marker(fault).exists():
        return False
    if os.environ.get("ONCE", "yes") == "yes":
        FAULTS.remove(fault)
    return True


def marker(fault: tuple[str, ...]) -> Path:
    return Path(os.environ["REKINDLE_JOB_DIR"]) / "-".join(("struck", *fault))


def fault(place: str, step: int) -> None:
    if not strikes(place, step):
        return
    if os.environ.get("ONCE", "yes") == "yes":
        marker((str(rank), str(step), place)).touch()
    if KIND == "raise":
        raise ValueError(f"struck {place}")
    if KIND == "memory":
        raise MemoryError(f"struck {place}")
    if KIND == "spin":
        while True:
            pass
    os.kill(os.getpid(), signal.SIGKILL if KIND == "kill" else signal.SIGSTOP)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


class Adam(torch.optim.AdamW):
    def _init_group(self, group: dict[str, Any], *args: Any) -> Any:
        """Called for each group in its turn, when those before it have been updated."""
        if group is self.param_groups[1]:
            fault("updating", current)
        return super()._init_group(group, *args)  # type: ignore[no-untyped-call]


optimizer = Adam([{"params": model[:4].parameters()}, {"params": model[4:].parameters()}], lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
data = Batches()
torch.manual_seed(1000 + rank)


def evaluate(step: int) -> float:
    model.eval()
    with torch.no_grad():
        loss = model(torch.ones(2, 16)).mean()
        fault("evaluating", step)
        dist.all_reduce(loss)
    model.train()
    return float(loss)


def report(loss: torch.Tensor) -> None:
    """Reports a loss. In a restart of the whole job, all losses are numbers."""
    broken = LOSS.get("after" if training.generation > 1 else "before")
    is_first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    training.report_loss(loss * float("nan") if broken == f"{rank}" and is_first_life else loss)


def train(step: int) -> None:
    fault("beginning", step)
    if strikes("leaving", step):
        sys.exit(0)
    if strikes("swallowing", step):
        os.environ["SWALLOW"] = "yes"
    for _ in range(2 // GATHER):
        with torch.autocast("cpu", torch.bfloat16):
            loss = wrapped(next(data)).pow(2).mean()
        scaler.scale(loss).backward()
        if LOSS:
            report(loss)
    fault("backward", step)
    if step % GATHER == 0:
        update(step)


def update(step: int) -> None:
    gradients = (parameter.grad for parameter in model.parameters() if parameter.grad is not None and WRAP is None)
    for index, gradient in enumerate(gradients):
        work = dist.all_reduce(gradient, async_op=True)
        if index == 2:
            fault("communicating", step)
        assert work is not None
        work.wait()
        gradient.div_(dist.get_world_size())
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    fault("updated", step)
    scaler.update()
    average.update_parameters(model)
    optimizer.zero_grad()
    scheduler.step()
    fault("ending", step)


def agreed(*_: object) -> None:
    fault("agreed", current)


write = Checkpoints.write


def written(checkpoints: Checkpoints, step: int, *state: Any) -> None:
    fault("checkpoint", step)
    write(checkpoints, step, *state)


Checkpoints.write = written  # type: ignore[assignment,method-assign]
send = copying.send


def sent(state: Any, target: int) -> None:
    fault("sending", current)
    send(state, target)


copying.send = sent
say, decide = SharedVote.say, SharedVote.decide


def voted(vote: SharedVote, number: int, word: int) -> None:
    """Strikes a rank that has all gradients, and for which the others wait in the vote."""
    fault("voting", current)
    say(vote, number, word)


def decided(vote: SharedVote, number: int, found: Ballot) -> None:
    """Strikes the first rank of a pod, when other pods know the result of the vote and the other ranks of its own do not."""
    fault("deciding", current)
    decide(vote, number, found)


SharedVote.say, SharedVote.decide = voted, decided  # type: ignore[method-assign,assignment]
save_tensors, publish = checkpoint.save_tensors, Checkpoints._publish


def saved(*arguments: Any) -> None:
    fault("saving", current)
    save_tensors(*arguments)


def published(checkpoints: Checkpoints, *arguments: Any) -> None:
    publish(checkpoints, *arguments)
    fault("published", current)


checkpoint.save_tensors, Checkpoints._publish = saved, published  # type: ignore[method-assign,assignment]
current = 0
told: list[str] = []
with rekindle_training.session(
    model, optimizer, state=[scheduler, scaler, average], data=data, checkpoint_every=int(os.environ.get("EVERY", "0"))
) as training:
    optimizer.register_step_pre_hook(agreed)
    training.on_rebuild(lambda: fault("rebuilt", current + 1 if current == training.step else current))
    wrapped: nn.Module = model
    if WRAP is not None and (training.generation == 1 or os.environ.get("REPLACEMENTS") != "bare"):  # several buckets
        options: dict[str, Any] = dict.fromkeys(WRAP, True)
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.001, **options)
    for step in training.steps(STEPS):
        if os.environ.get("EARLY"):
            next(data)
        with step if os.environ.get("BARE") != "yes" else nullcontext(), at_least(*PACE):
            current = int(step)
            if step % 4 == 0:
                told.append(f"{evaluate(step):.6f}")
            if (f"{rank}", f"{step}", "breaking") not in FAULTS and any(fault[2] == "breaking" for fault in FAULTS) and step == 5:
                break
            fault("breaking", step)
            try:
                train(step)
            except RuntimeError:
                if os.environ.get("SWALLOW") != "yes":
                    raise
        if os.environ.get("TAIL"):
            dist.barrier()
    tensors = [
        *model.parameters(),
        *average.parameters(),
        *(tensor for state in optimizer.state.values() for tensor in state.values()),
    ]
    content = b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)
    digest = hashlib.sha256(content).hexdigest()[:16]
    drawn = torch.rand(1).item()
    line = f"final {rank} {digest} {data.drawn} {drawn!r} {scheduler.get_last_lr()[0]!r} {scaler.get_scale()}\n"
    os.write(1, f"ended {rank} generation {training.generation}\n{line}".encode())
