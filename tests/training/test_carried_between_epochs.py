"""Variables of the loop of epochs: those that matter for what is trained are found in the second step."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rekindle_training.adapter.carried import Carried
from tests.training.standalone import Standalone, last_words

SESSION = """
from contextlib import contextmanager


class Step(int):
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


class Training:
    step = rank = 0

    def __init__(self, carried):
        self.carried, self.found = carried, []

    def turns(self, count):
        for number in range(count):
            self.found.append(self.carried.look())
            self.step += 1
            yield Step(self.step)

    steps = turns

    def epochs(self, count, steps):
        for _ in range(count):
            yield self.turns(steps)

    def finish(self):
        pass


@contextmanager
def session(model, optimizer, state=()):
    training = Training(Carried([model, optimizer, *state]))
    optimizer.register_step_pre_hook(lambda *_: training.carried.begin_update(at_end=False))
    results.append(training)
    yield training
"""
"""A session without other ranks, which is no file of the script's."""

HEAD = """
import copy
import json
import time
from collections import defaultdict, deque

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
batch = torch.ones(2, 4)
best, bad, lr, patience, log, shown, meters = 9.0, 0, 0.01, 2, [], None, defaultdict(float)
history = {"loss": [], "accuracy": []}


class Meter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum = self.count = 0

    def update(self, value):
        self.sum += value
        self.count += 1

    @property
    def average(self):
        return self.sum / max(1, self.count)


class Stopper:
    def __init__(self, patience=3):
        self.patience, self.bad, self.best, self.stop = patience, 0, None, False

    def __call__(self, value):
        if self.best is None or value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
            self.stop = self.bad >= self.patience

    def is_over(self, value):
        self(value)
        return self.stop


class Evaluator:
    def run(self):
        self.sum = 0.0
        self.sum += evaluate()
        return self.sum


class Kept:
    best = 9.0

    def state_dict(self):
        return {"best": self.best}

    def load_state_dict(self, state):
        self.best = state["best"]


class Writer:
    def add_scalar(self, name, value, epoch):
        self.last = value


def evaluate(model=model):
    return model(batch).sum().item()


def adjust(rate):
    for group in optimizer.param_groups:
        group["lr"] = rate


def save_model(name):
    pass


meter, stopper, writer, evaluator, kept = Meter(), Stopper(), Writer(), Evaluator(), Kept()
"""
LOOP = """
with session(model, optimizer, state=[scheduler, kept]) as training:
    {begin}
    for {loop}:
        {top}
        for step in epoch:
            with step:
                loss = model(batch).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                {inside}
        {between}
{after}
"""


def found(source: str, folder: Path) -> list[str]:
    """Returns what is said of a script, turn for turn."""
    path = folder / "carrying.py"
    path.write_text(source)
    names: dict[str, Any] = {"__name__": "rekindle_training.without_others", "Carried": Carried, "results": []}
    exec(compile(SESSION, "<session>", "exec"), names)
    exec(compile(source, str(path), "exec"), {"__name__": "__main__", "session": names["session"]})
    (training,) = names["results"]
    return [words for words in training.found if words]


def script(
    between: str,
    *,
    begin: str = "",
    loop: str = "epoch in training.epochs(2, steps=3)",
    top: str = "",
    inside: str = "",
    after: str = "",
) -> str:
    parts = {"begin": (begin, 4), "top": (top, 8), "inside": (inside, 16), "between": (between, 8), "after": (after, 0)}
    lines = {name: textwrap.indent(text, " " * columns).strip() or "pass" for name, (text, columns) in parts.items()}
    return HEAD + LOOP.format(loop=loop, **lines)


VALUE = "value = evaluate()\n"

CARRIED = [
    ("lr", {"between": "lr *= 0.5\nadjust(lr)"}),
    ("lr", {"between": "if epoch == 30:\n    lr *= 0.5", "top": "for group in optimizer.param_groups:\n    group['lr'] = lr"}),
    ("best", {"between": VALUE + "if value < best:\n    best = value\nelse:\n    lr *= 0.5\n    adjust(lr)"}),
    ("bad", {"between": VALUE + "bad = 0 if value < 1 else bad + 1\nif bad > patience:\n    break"}),
    ("best", {"between": VALUE + "if value > best:\n    training.finish()\n    break\nbest = value"}),
    ("bad", {"between": "bad += 1\nif bad == 9:\n    training.finish()"}),
    ("best", {"between": VALUE + "if value < best:\n    best = value\n    torch.save(model.state_dict(), '/dev/null')"}),
    ("best", {"between": VALUE + "is_best = value < best\nbest = min(best, value)\nif is_best:\n    save_model('best')"}),
    ("bad", {"top": "bad += 1\nif bad % 2:\n    continue", "between": ""}),
    ("bad", {"between": "bad += 1\nif bad % 2:\n    continue\nscheduler.step(1)"}),
    ("history['loss']", {"between": "history['loss'].append(evaluate())\nif history['loss'][-1] > 3:\n    adjust(0.1)"}),
    ("log", {"between": "log.append(evaluate())\nif len(log) > 3 and log[-1] > log[-2]:\n    break"}),
    ("log", {"between": "log.append(evaluate())\nscheduler.step(sum(log) / len(log))"}),
    ("stopper.best", {"between": "stopper(evaluate())\nif stopper.stop:\n    break"}),
    ("stopper.best", {"between": "if stopper.is_over(evaluate()):\n    training.finish()\n    break"}),
    ("bad", {"begin": "stops = True", "between": "bad += 1\nif stops and bad > 3:\n    break"}),
    ("bad", {"begin": "done = False", "between": "bad += 1\nif bad > 3:\n    done = True\nif done:\n    break"}),
    ("meter.sum", {"between": "meter.update(evaluate())\nscheduler.step(meter.average)"}),
    ("meter.sum", {"top": "meter.reset()", "inside": "meter.update(loss.item())", "between": "scheduler.step(meter.average)"}),
    (
        "losses.sum",
        {"top": "losses = Meter()", "inside": "losses.update(loss.item())", "between": "scheduler.step(losses.average)"},
    ),
    ("lr", {"between": "adjust(lr := lr * 0.5)"}),
    ("lr", {"begin": "lr = 0.02 if training.step >= 0 else 0.1", "between": "lr *= 0.5\nadjust(lr)"}),
    ("lr", {"begin": "lr = 0.1 * len(optimizer.param_groups)", "between": "lr *= 0.5\nadjust(lr)"}),
    (
        "best",
        {
            "between": VALUE + "if value < best:\n    best = value\n    lr = copy.deepcopy(model.state_dict())",
            "after": "model.load_state_dict(lr)",
        },
    ),
    ("bad", {"begin": "bad = training.rank", "between": "bad += 1\nif bad > 3:\n    adjust(bad)"}),
    ("bad", {"inside": "bad += 1\nif bad > 4:\n    break", "between": ""}),
    ("loss_sum", {"top": "loss_sum = 0.0", "inside": "loss_sum += loss.item()", "between": "scheduler.step(loss_sum / 3)"}),
    (
        "loss_sum",
        {
            "top": "loss_sum = 0.0",
            "inside": "loss_sum += loss.item()",
            "between": "if loss_sum > 99:\n    training.finish()\n    break",
        },
    ),
]


@pytest.mark.parametrize(("name", "parts"), CARRIED)
def test_a_variable_of_the_loop_of_epochs_that_matters_is_found(name: str, parts: dict[str, str], tmp_path: Path) -> None:
    """The second step names the variable and the line that reads it: one of a rate, of an early stop, of the best model."""
    words = found(script(**parts), tmp_path)
    assert words
    source = (tmp_path / "carrying.py").read_text().splitlines()
    place, _, rest = words[0].partition(" reads ")
    assert rest.startswith(f"`{name}`, which changes from ")
    assert re.split(r"[.\[]", name)[0] in source[int(place.partition(":")[2]) - 1]


ORDINARY = [
    {"top": "losses = Meter()", "inside": "losses.update(loss.item())", "between": "print(losses.average)"},
    {"between": "if (value := evaluate()) > 3 and (shown := value):\n    print(shown)"},
    {"between": VALUE + "best = min(best, value)\nprint(best)"},
    {"between": VALUE + "if value < best:\n    best, bad = value, epoch\nprint(best, bad)"},
    {"top": "total, seen = 0.0, 0", "inside": "total += loss.item()\nseen += 2", "between": "print(total / seen)"},
    {"top": "began = time.time()", "between": "log.append(time.time() - began)\nprint(sum(log))"},
    {"between": "history['loss'].append(evaluate())\nprint(json.dumps(history))", "after": "json.dumps(history)"},
    {"between": "log.append(evaluate())", "after": "print(max(log))\ntorch.save(log, '/dev/null')"},
    {"top": "meter.reset()", "inside": "meter.update(loss.item())", "between": "print(meter.average)"},
    {"inside": "meter.update(loss.item())", "between": "print(meter.average)\nmeter.reset()"},
    {"top": "meter.reset()", "between": "meter.update(evaluate())\nscheduler.step(meter.average)"},
    {"between": "scheduler.step(evaluate())"},
    {"begin": "one = 0.0", "between": "scheduler.step(sum(model(one).sum().item() for one in [batch, batch]))"},
    {"between": "scheduler.step(evaluator.run())"},
    {"between": "value = evaluate()\nscheduler.step(value)\nhistory['accuracy'].append(value)"},
    {"between": "adjust(0.1 / training.step)"},
    {"between": "kept.best = min(kept.best, evaluate())\nif kept.best < 0:\n    training.finish()\n    break"},
    {"begin": "lr = optimizer.param_groups[0]['lr']", "between": "lr *= 0.5\nadjust(lr)"},
    {"begin": "best = kept.best", "between": "best = kept.best = min(best, evaluate())\nif best < 0:\n    save_model('best')"},
    {"begin": "bad = training.step // 3", "between": "bad += 1\nadjust(0.1 / bad)"},
    {"inside": "bad += 1\nwriter.add_scalar('loss', loss.item(), bad)", "between": "writer.add_scalar('best', best, bad)"},
    {"begin": "stops = False", "between": "bad += 1\nif stops and bad > 3:\n    break"},
    {"begin": "fresh = True", "top": "if fresh:\n    lr = 0.1 / (1 + training.step)", "between": "adjust(lr)"},
    {
        "begin": "from argparse import Namespace\nargs = Namespace(stops=0)",
        "between": "bad += 1\nif args.stops > 0:\n    if bad > args.stops:\n        break",
    },
    {"between": "bad += 1\nif bad % 5 == 0:\n    print(evaluate())"},
    {"between": VALUE + "if value >= best:\n    continue\nbest = value\nprint(best)"},
    {"between": "for number, value in enumerate([3]):\n    if value < best:\n        best = value\n        break\nprint(best)"},
    {"top": "do = bool(training.step % 2)\nif do:\n    shown = evaluate()", "between": "if do:\n    scheduler.step(shown)"},
    {
        "begin": "shown = 0.0",
        "top": "do = bool(training.step % 2)\nif do:\n    shown = evaluate()",
        "between": "if do:\n    scheduler.step(shown)",
    },
    {"between": "meters['loss'] += loss.item()\nprint(dict(meters))"},
    {"between": "print(f'{lr}')\nlr = optimizer.param_groups[0]['lr']"},
    {"between": "torch.save({'model': model.state_dict(), 'best': best}, '/dev/null')\nbest = min(best, evaluate())"},
    {"between": "if training.rank == 0:\n    torch.save(model.state_dict(), '/dev/null')\n    bad += 1"},
    {"between": "recent = deque(log, 5)\nlog.append(evaluate())\nprint(sum(recent))"},
    {"between": "with torch.no_grad():\n    value = evaluate()\n    bad += value > best\nassert bad >= 0"},
    {"after": "best = evaluate()\nif best < 1:\n    print('good')", "between": "best = evaluate()"},
    {"between": "try:\n    value = evaluate()\nexcept ValueError:\n    bad += 1\n    print('failed', bad)"},
]


@pytest.mark.parametrize("parts", ORDINARY)
def test_an_ordinary_loop_of_epochs_is_left_alone(parts: dict[str, str], tmp_path: Path) -> None:
    """Meters, times, lists for a plot, best values that are shown, and what the session has."""
    assert found(script(**parts), tmp_path) == []


FUNCTIONS = """
def train_epoch(epoch{parameters}):
    total = 0.0
    for step in epoch:
        with step:
            loss = model(batch).sum(){scale}
            loss.backward()
            optimizer.step()
            total += loss.item()
            {inside}
    return {result}


def main():
    best, bad, weight, log, state, writer = 9.0, 0, 1.0, [], Kept(), Writer()
    with session(model, optimizer, state=[scheduler]) as training:
        for epoch in training.epochs(2, steps=3):
            value = train_epoch(epoch{given})
            {between}


main()
"""


def functions(between: str, **parts: str) -> str:
    filled = {"parameters": "", "scale": "", "inside": "", "result": "None", "given": "", **parts}
    return HEAD + FUNCTIONS.format(between=textwrap.indent(between, " " * 12).strip(), **filled)


@pytest.mark.parametrize(
    ("name", "between", "parts"),
    [
        ("weight", "weight *= 0.5", {"parameters": ", by", "given": ", weight", "scale": " * by"}),
        ("weight", "weight *= 0.5", {"parameters": ", by=1", "given": ", by=weight", "scale": " * by"}),
        ("total", "scheduler.step(value)", {"result": "total / 3"}),
        ("total", "if value > 99:\n    break", {"result": "total / 3"}),
        ("bad", "bad += value > 3\nif bad > 2:\n    return best", {"result": "1.0"}),
        ("state.best", "state.best *= 0.5", {"parameters": ", held", "given": ", state", "scale": " * held.best"}),
    ],
)
def test_a_value_is_followed_between_the_functions_of_a_script(
    name: str, between: str, parts: dict[str, str], tmp_path: Path
) -> None:
    """The loop of epochs calls a function that has the loop of steps: values go in as arguments, and come out as results."""
    words = found(functions(between, **parts), tmp_path)
    assert words
    assert f"reads `{name}`, which changes from " in words[0]


@pytest.mark.parametrize(
    ("between", "parts"),
    [
        ("print(value)\nbest = min(best, value)", {"result": "total"}),
        (
            "log.append(value)\nprint(log)",
            {"result": "total", "parameters": ", log", "given": ", log", "inside": "log.append(1)"},
        ),
        (
            "writer.add_scalar('best', bad, 1)\nbad += 1",
            {"parameters": ", writer", "given": ", writer", "inside": "writer.add_scalar('loss', total, step)"},
        ),
        ("bad += 1\nstate.best = bad", {"parameters": ", n, held", "given": ", bad, state", "inside": "print(n, held.best)"}),
    ],
)
def test_a_value_that_a_function_only_shows_is_left_alone(between: str, parts: dict[str, str], tmp_path: Path) -> None:
    """A counter, a list and a writer that are given to the function with the loop of steps."""
    assert found(functions(between, **parts), tmp_path) == []


TRAINER = """
class Trainer:
    def __init__(self):
        self.model, self.optimizer, self.best, self.bad, self.lr, self.losses = model, optimizer, 9.0, 0, 0.01, []

    def train_epoch(self, epoch):
        self.total = 0.0
        for step in epoch:
            with step:
                loss = self.model(batch).sum()
                loss.backward()
                self.optimizer.step()
                self.total += loss.item()
                {inside}

    def fit(self, training):
        for epoch in training.epochs(2, steps=3):
            self.train_epoch(epoch)
            {between}


with session(model, optimizer, state=[scheduler]) as training:
    Trainer().fit(training)
"""


@pytest.mark.parametrize(
    ("between", "inside", "name"),
    [
        ("self.bad += 1\nif self.bad > 3:\n    break", "", "self.bad"),
        ("self.lr *= 0.5\nadjust(self.lr)", "", "self.lr"),
        ("scheduler.step(self.total)", "", "self.total"),
        ("self.losses.append(self.total)\nprint(self.losses)", "", ""),
        ("self.best = min(self.best, evaluate())\nprint(self.best)", "", ""),
        ("self.bad += 1", "self.losses.append(self.bad)", ""),
    ],
)
def test_attributes_of_a_trainer_are_followed_as_variables_are(between: str, inside: str, name: str, tmp_path: Path) -> None:
    """Attributes of `self` count in the methods whose loops are going on."""
    parts = {"between": textwrap.indent(between, " " * 12).strip(), "inside": inside}
    words = found(HEAD + TRAINER.format(**parts), tmp_path)
    assert [name in one for one in words[:1]] == ([True] if name else [])


def test_an_object_that_answers_for_its_class_is_not_asked(recwarn: pytest.WarningsRecorder, tmp_path: Path) -> None:
    """The answer may warn, as the deprecated names of torch's modules do."""
    warns = """
import warnings


class Deprecated:
    @property
    def __class__(self):
        warnings.warn("deprecated", FutureWarning)
        return Deprecated


log.append(Deprecated())
stopper.old = shown = Deprecated()
"""
    between = "print(log, shown)\nshown = None\nstopper.is_over(1)\nlog.append(evaluate())"
    head, loop = script(between).split("with session")
    assert found(f"{head}{warns}with session{loop}", tmp_path) == []
    assert not recwarn.list


def test_a_loop_of_epochs_in_a_generator_is_looked_at(tmp_path: Path) -> None:
    """The steps of all epochs come from a function that yields them."""
    generator = """
with session(model, optimizer) as training:
    def turns():
        bad = 0
        for epoch in training.epochs(2, steps=3):
            yield from epoch
            bad += 1
            if bad > 3:
                break

    for step in turns():
        with step:
            model(batch).sum().backward()
            optimizer.step()
"""
    (words,) = found(HEAD + generator, tmp_path)
    assert "reads `bad`, which changes from epoch to epoch" in words


WRAPPED = """
from contextlib import contextmanager


@contextmanager
def wrapped():
    with session(model, optimizer) as training:
        yield training


for _ in range(1):
    bad += 1
    with wrapped() as training:
        for epoch in training.epochs(2, steps=3):
            for step in epoch:
                with step:
                    (model(batch).sum() * bad).backward()
                    optimizer.step()
            {between}
"""


@pytest.mark.parametrize(("between", "refused"), [("lr *= 0.5; adjust(lr)", ["lr"]), ("print(epoch)", [])])
def test_a_session_that_a_function_of_the_script_has_entered_is_none_less(
    between: str, refused: list[str], tmp_path: Path
) -> None:
    """Loops inside it are judged, and one around it is not, although that function has returned."""
    words = found(HEAD + WRAPPED.format(between=between), tmp_path)
    assert [one.partition("reads `")[2].partition("`")[0] for one in words] == refused


def test_a_loop_around_the_session_is_none_of_its_epochs(tmp_path: Path) -> None:
    """A script that trains several models counts them."""
    around = """
for _ in range(1):
    bad += 1
    with session(model, optimizer) as training:
        for step in training.steps(3):
            with step:
                (model(batch).sum() * bad).backward()
                optimizer.step()
"""
    assert found(HEAD + around, tmp_path) == []


JOB = """
import os
import signal
from pathlib import Path

import torch

import rekindle_training

model = torch.nn.Linear(4, 1)
with torch.no_grad():
    model.weight.fill_(1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def struck(step):
    mark = Path(os.environ["REKINDLE_JOB_DIR"]) / "struck"
    if os.environ.get("FAULT") == os.environ["RANK"] and step == 6 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
    lr = {first}
    for epoch in training.epochs(3, steps=3):
        for step in epoch:
            with step:
                struck(step)
                optimizer.zero_grad()
                model(torch.ones(2, 4)).pow(2).mean().backward()
                optimizer.step()
                for group in optimizer.param_groups:
                    group["lr"] = lr
        lr *= 0.5
    os.write(1, f"final {training.rank} {model.weight.tolist()}\\n".encode())
"""


async def test_a_rate_that_a_variable_lowers_between_epochs_is_refused(alone: Standalone, tmp_path: Path) -> None:
    """Training ends in its second step, and the error names the ways out."""
    path = tmp_path / "carrying.py"
    path.write_text(JOB.replace("{first}", "0.02"))
    printed = await alone.run("--max-restarts=3", code=1, script=str(path), ranks=1)
    assert "all ranks restarted" not in printed, "the same script would be refused again"
    assert "reads `lr`, which changes from epoch to epoch, and a rank that is replaced begins with its first value" in printed
    for way in ("the number of the step or epoch", "optimizer.param_groups[0]['lr']", "session(state=[...])", "accept="):
        assert way in printed
    assert "final " not in printed


async def test_a_rate_that_is_read_from_the_optimizer_is_not_lost(alone: Standalone, beside: Standalone, tmp_path: Path) -> None:
    """The session has put it back where the script reads it, so that the bits are those of an undisturbed run."""
    path = tmp_path / "carrying.py"
    path.write_text(
        JOB.replace("{first}", "optimizer.param_groups[0]['lr']")
        .replace('["lr"] = lr', '["lr"] *= 1')
        .replace("lr *= 0.5", "lr *= 0.5\n        optimizer.param_groups[0]['lr'] = lr")
    )
    printed = await alone.run("--spares=1", script=str(path), ranks=2, FAULT="1")
    assert "repaired step=5" in printed
    assert last_words(printed) == last_words(await beside.run(script=str(path), ranks=2))
