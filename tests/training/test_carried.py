"""Variables that a loop carries from turn to turn: those that matter for what is trained are found in the first turns."""

import ast
import textwrap
from pathlib import Path

import pytest
import torch

from rekindle_training.adapter.carried import Carried
from rekindle_training.adapter.flow import Site, reaching
from rekindle_training.adapter.reads import Reads
from tests.training.standalone import Standalone, last_words

HEAD = """
import os
import signal
import time
from pathlib import Path

import torch

import rekindle_training

model = torch.nn.Linear(4, 1)
with torch.no_grad():
    model.weight.fill_(1)
model.center = torch.zeros(1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
average, turns, hidden, history, losses, end = 0.0, 0, torch.zeros(1), {"loss": 0.0}, [], time.time()


class Kept:
    turns = 0

    def state_dict(self):
        return {"turns": self.turns}

    def load_state_dict(self, state):
        self.turns = state["turns"]


def struck(step):
    mark = Path(os.environ["REKINDLE_JOB_DIR"]) / "struck"
    if os.environ.get("FAULT") == os.environ["RANK"] and step == 5 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


kept, trainer = Kept(), Kept()
accept = os.environ.get("ACCEPT", "").split()
with rekindle_training.session(model, optimizer, state=[kept], checkpoint_every=0, accept=accept) as training:
    for step in training.steps(8):
        with step:
            struck(step)
            scale = 1.0
"""
MIDDLE = """
            loss = model(torch.full((2, 4), scale)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
END = """
    os.write(1, f"final {training.rank} {model.weight.tolist()}\\n".encode())
"""


def script(folder: Path, before: str, after: str) -> str:
    """Returns the file of a script with these lines before and after the update of a step."""
    path = folder / "carrying.py"
    lines = [HEAD, textwrap.indent(before, " " * 12), MIDDLE, textwrap.indent(after, " " * 12), END]
    path.write_text("".join(f"{part.strip(chr(10))}\n" for part in lines))
    return str(path)


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("scale += average", "average = 0.9 * average + 0.1 * loss.item()", "average"),
        ("scale += 1 / (turns + 1)", "turns += 1", "turns"),
        ("if turns % 2:\n    scale = 2.0", "turns += 1", "turns"),
        ("hidden = 0.5 * hidden + 1\nscale += hidden.item()", "", "hidden"),
        ("scale += history['loss']", "history['loss'] = loss.item()", "history['loss']"),
        ("scale += sum(losses)", "losses.append(loss.item())", "losses"),
        ("scale += trainer.turns", "trainer.turns += 1", "trainer.turns"),
        ("scale += model.center.item()", "model.center = 0.9 * model.center + loss.detach()", "model.center"),
        ("scale += model.center.item()", "model.center.mul_(0.9).add_(loss.detach())", "model.center"),
        ("", "turns += 1\nif turns > 2:\n    optimizer.param_groups[0]['lr'] *= 0.5", "turns"),
    ],
)
async def test_a_variable_that_matters_and_is_carried_is_refused(
    before: str, after: str, name: str, alone: Standalone, tmp_path: Path
) -> None:
    """Training ends in the second step, and the line that reads the variable is named."""
    printed = await alone.run(code=1, script=script(tmp_path, before, after), ranks=1)
    assert f"reads `{name}`, which changes from turn to turn, and a rank that is replaced begins with its first value" in printed
    assert "final " not in printed


HARMLESS = [
    ("", "average = 0.9 * average + 0.1 * loss.item()\nprint(average)"),
    ("average += scale\nprint(average / step)", ""),
    ("losses.append(scale)\nif step % 2 == 0:\n    print(sum(losses))\n    average = 0.0", "average += loss.item()"),
    ("if step % 2:\n    print(average)", "average += 1"),
    ("history['turns'] = history.get('turns', 0) + 1", ""),
    ("waited = time.time() - end\nlosses.append(waited)", "end = time.time()"),
    ("hidden = torch.full((1,), float(step))\nscale += hidden.item()", "hidden = hidden + 1"),
    ("scale += kept.turns", "kept.turns += 1"),
    ("model.center = torch.full((1,), float(step))\nscale += model.center.item()", ""),
    ("for turns in range(2):\n    scale += turns", "turns = step"),
    ("is_best = scale + step > average\nif is_best:\n    average = scale + step\n    print(average)", ""),
    ("losses.append(scale * step)\nmean = sum(losses) / len(losses)\nprint(mean)", ""),
]


@pytest.mark.parametrize(("before", "after"), HARMLESS)
async def test_a_variable_that_does_not_matter_may_be_carried(
    before: str, after: str, alone: Standalone, beside: Standalone, tmp_path: Path
) -> None:
    """Training goes on with what is only printed, a time, what each turn assigns and what the session has. Kills are
    recovered."""
    path = script(tmp_path, before, after)
    printed = await alone.run("--spares=1", script=path, ranks=2, FAULT="1")
    assert "repaired step=4" in printed
    assert last_words(printed) == last_words(await beside.run(script=path, ranks=2))


async def test_a_tensor_that_a_module_has_beside_its_forward_pass_may_be_carried(alone: Standalone, tmp_path: Path) -> None:
    """A sum of losses that is kept there and shown is accepted."""
    path = Path(script(tmp_path, "", "model.center = model.center + loss.detach()\nprint(model.center)"))
    lines = (
        "class Net(torch.nn.Linear):\n    def forward(self, given):\n        return super().forward(given)\n\n\nmodel = Net(4, 1)"
    )
    path.write_text(path.read_text().replace("model = torch.nn.Linear(4, 1)", lines))
    assert "final" in await alone.run(script=str(path), ranks=1)


async def test_a_script_may_accept_what_it_carries(alone: Standalone, tmp_path: Path) -> None:
    """The accepted value is `carried-variables`."""
    path = script(tmp_path, "scale += average", "average = 0.9 * average + 0.1 * loss.item()")
    assert "final" in await alone.run(script=path, ranks=1, ACCEPT="carried-variables")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("use(a.b)", {"use", "a", "a.b"}),
        ("a.b = c\nuse(a.b)", {"c", "use", "a"}),
        ("if c:\n    a = 1\nelse:\n    a = 2\nd = a", {"c"}),
        ("if c:\n    a = 1\nd = a", {"c", "a"}),
        ("with open(c) as f:\n    d = f", {"open", "c"}),
        ("try:\n    a = b\nexcept E as e:\n    c = e\nd = a", {"b", "a"}),
        ("try:\n    a = next(b)\nexcept E:\n    b = iter(c)\n    a = next(b)\nd = a", {"next", "b", "iter", "c"}),
        ("try:\n    a = b\nexcept E:\n    continue\nd = a", {"b"}),
        ("while True:\n    try:\n        a = b\n        break\n    except E:\n        pass\nd = a", {"b"}),
        ("while c:\n    a = 1\nd = a", {"c"}),
        ("for n in c:\n    a = n\nd = a", {"c"}),
        ("if c:\n    raise E\nelse:\n    a = 1\nd = a", {"c", "E"}),
        ("if (a := c) > 1:\n    d = a", {"c"}),
        ("out, hidden = model(x, hidden)", {"model", "x", "hidden"}),
        ("a, *b = c\nd = a, b", {"c"}),
        ("match c:\n    case 1:\n        d = a", {"c", "a"}),
        ("a: int = 1\nd = a", set()),
        ("d = [a for a in c]", {"c"}),
        ("d = {a: b for a, b in c}\ne = a", {"c", "a"}),
        ("def f():\n    return a\nd = f()", {"a", "f"}),
    ],
)
def test_what_a_turn_reads_before_it_assigns_it(body: str, expected: set[str]) -> None:
    """A name that the loop's source reads before it assigns it is found."""
    (loop,) = ast.parse(f"for step in steps:\n{textwrap.indent(body, '    ')}").body
    assert isinstance(loop, ast.For)
    assert set(Reads(loop).found) == expected


def test_a_container_that_holds_itself_does_not_end_training() -> None:
    """A container that holds itself, or a whole dataset, is not inspected."""
    found, carried = [], Carried([])
    held: list[object] = []
    held.append(held)
    rows: list[object] = []
    for step in range(3):
        rows.extend(range(10_000 * step))
        found.append(carried.look())
        torch.tensor([len(held), len(rows)], dtype=torch.float32, requires_grad=True).sum().backward()
    assert found == ["", "", ""]


def test_a_failure_of_the_check_is_none_of_training(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged, and the check is over."""

    def fails(*_: object) -> None:
        raise ValueError("unheard of")

    monkeypatch.setattr("rekindle_training.adapter.carried.chain_of", fails)
    carried = Carried([])
    assert carried.look() == ""
    assert carried.is_over
    assert "loop variables not checked" in caplog.text


def test_a_loop_whose_source_is_not_known_is_not_judged() -> None:
    """A loop of a string that is executed has no source."""
    found: list[str] = []
    exec(
        "for step in range(3):\n    n = globals().get('n', 0) + 1\n    found.append(carried.look())",
        {"found": found, "carried": Carried([])},
    )
    assert found == ["", "", ""]


def matters(body: str, name: str, update: str = "optimizer.step()") -> bool:
    """Returns whether this variable matters in a loop with these lines."""
    lines = f"for step in steps:\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    (loop,) = ast.parse(lines).body
    assert isinstance(loop, ast.For)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    kinds = torch.nn.Module, torch.optim.Optimizer

    def adjust_rate(rate: float) -> None:
        optimizer.param_groups[0]["lr"] = rate

    def report(rate: float) -> str:
        return f"{model}: {rate}"

    exec("def nameless(rate): return rate", nowhere := {"__name__": None})
    found = {
        "nameless": nowhere["nameless"],
        "model": model,
        "optimizer": optimizer,
        "adjust_rate": adjust_rate,
        "report": report,
    }
    at = next((number for number, line in enumerate(lines.splitlines(), 1) if update in line), 0)
    site = Site([loop], found.get, at, [loop], loop)
    return bool(reaching([name], loop, [site], lambda thing: isinstance(thing, kinds), epochs=False))


TRAINED = "\nloss = model(x).sum() * weight\nloss.backward()\noptimizer.step()"


@pytest.mark.parametrize(
    "body",
    [
        f"weight = 1 / (a + 1){TRAINED}",
        f"b = a\nc = [b]\nweight = c[0]{TRAINED}",
        f"if a > 3:\n    weight = 2{TRAINED}",
        f"while a > b:\n    weight = 2{TRAINED}",
        f"for weight in range(a):\n    pass{TRAINED}",
        f"held.append(a)\nweight = sum(held){TRAINED}",
        f"try:\n    weight = a\nexcept ValueError:\n    weight = 1{TRAINED}",
        f"with scaled(a) as weight:\n    pass{TRAINED}",
        f"match a:\n    case 1:\n        weight = 2{TRAINED}",
        f"this.b = a\nweight = this.b{TRAINED}",
        f"if (weight := a) > 1:\n    pass{TRAINED}",
        "if a % 2:\n    continue\noptimizer.step()",
        "if a % 2:\n    optimizer.step()",
        "optimizer.step()\nif a > 3:\n    optimizer.param_groups[0]['lr'] *= 0.5",
        "for group in optimizer.param_groups:\n    group['lr'] = a\noptimizer.step()",
        "group = optimizer.param_groups[0]\ngroup.update(lr=a)",
        "for p in model.parameters():\n    p.grad.mul_(a)\noptimizer.step()",
        "adjust_rate(a)",
        "rate = a\nif rate > 3:\n    adjust_rate(1)",
        "torch.manual_seed(a)",
        "b, *c = a\nmodel.weight = c",
        "loss = train(x, a)",
        "if b:\n    a += 1\nb = c\nc = a\nif b > 2:\n    optimizer.zero_grad()",
    ],
)
def test_a_value_that_reaches_training_is_followed(body: str) -> None:
    """A value is followed through computations and decisions into gradients, updates, options and random numbers."""
    assert matters(body, "a", "train(" if "train(x" in body else "optimizer.step()")


@pytest.mark.parametrize(
    "body",
    [
        f"a += 1\nmean = a / step\nweight = 1{TRAINED}\nprint(mean)",
        f"weight = a\nweight = 1{TRAINED}",
        f"best = x > a\nif best:\n    a = x\n    save(model, a){TRAINED}",
        f"took = now() - a\na = now(){TRAINED}\nlogs = dict(took=took)\nlogger.log(logs)",
        f"text = f'{{a}}'\nshown[text] = report(step){TRAINED}",
        "if a % 2:\n    report(a)\noptimizer.step()",
        "if a % 2:\n    gc.collect()\noptimizer.step()",
        "optimizer.step()\nif a % 2:\n    model.eval()\n    seen = model(x)\n    model.train()",
        "optimizer.step()\nif a % 2:\n    torch.save(model.state_dict(), f'{a}.pt')",
        "optimizer.step()\nrecord['lr'] = optimizer.param_groups[0]['lr']\nrecord['turns'] = a\ntell(record)",
        "optimizer.step()\nif a > 9:\n    continue",
        "optimizer.step()\nif a > 9:\n    break",
        "if a > 9:\n    raise ValueError(a)\noptimizer.step()",
        "nameless(a)\noptimizer.step()",
        "a.append(train(x))",
        "a += float(train(x))",
        "a = max(a, train(x))\nprint(a)",
        "def closure():\n    return model(x)\noptimizer.step(closure)",
    ],
)
def test_a_value_that_is_only_shown_or_kept_reaches_nothing(body: str) -> None:
    """A metric that is computed before the update, a best value, a time, the turn of an evaluation or of a file."""
    assert not matters(body, "a", "train(" if "train(x" in body else "optimizer.step()")
