"""Variables that functions, methods and iterators of the script carry: followed where a loop calls or draws from them."""

import textwrap
from pathlib import Path

import pytest

from tests.training.test_carried_between_epochs import HEAD, found, script

HELPERS = """
import itertools
from argparse import Namespace
from collections import namedtuple
from dataclasses import dataclass, replace

weight, count, cache, inputs = 1.0, 0, {}, [batch * number for number in range(1, 9)]


class Noam:
    def __init__(self, optimizer):
        self.optimizer, self.turns, self.factor = optimizer, 0, 1.0

    @property
    def rate(self):
        return 0.1 / self.turns

    def current(self):
        return 0.1 * self.turns

    def step(self):
        self.turns += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.current()

    def __call__(self):
        self.step()

    def step_by_property(self):
        self.turns += 1
        self._set(self.rate)

    def _set(self, rate):
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def returns(self):
        self.turns += 1
        if self.turns % 2:
            return
        self._set(0.2)

    def breaks(self):
        for group in self.optimizer.param_groups:
            if self.turns > 3:
                break
            group["lr"] *= 0.5
        self.turns += 1

    def shows(self):
        self.turns += 1
        print(self.current())
        self._set(self.factor)


class Engine:
    def __init__(self):
        self.model, self.optimizer, self.losses, self.turns, self.noam = model, optimizer, [], 0, Noam(optimizer)

    def train_step(self):
        loss = self.model(batch).sum()
        loss.backward()
        self.optimizer.step()
        self.turns += 1
        self.losses.append(loss.item())
        if self.turns % 100 == 0:
            print(sum(self.losses))

    def gathers(self):
        self.turns += 1
        self.model(batch).sum().backward()
        if self.turns % 2 == 0:
            self.optimizer.step()


class Warm(Noam):
    def step(self):
        super().step()


class Decayed:
    def __init__(self):
        self._rate, self.counts, self.rates = 0.1, {"turns": 0}, [0.1]

    @property
    def rate(self):
        return self._rate

    @rate.setter
    def rate(self, rate):
        self._rate = rate
        adjust(rate)

    def count(self):
        self.counts["turns"] += 1
        adjust(0.1 / self.counts["turns"])

    def warms(self, value):
        if value > 99:
            self._rate = 0.1
        adjust(self._rate)
        self._rate *= 0.9

    def validate(self):
        self._rate *= 0.5
        if self._rate < 0.01:
            adjust(0.01)

    def given(self, **options):
        adjust(options["rate"])


class Metric(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.total, self.losses = 0, []

    def update(self, value):
        self.total += 1
        self.losses.append(value)
        print(self.total, self.losses)


class Centered(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(1))

    def forward(self, value):
        self.center.mul_(0.9).add_(value.mean().detach())
        return value - self.center


class Trainer:
    def __init__(self, criterion):
        self.criterion = criterion

    def shown(self, value):
        print(self.criterion(value))


class Cached:
    mask = None

    def get(self):
        if self.mask is None:
            self.mask = torch.ones(1)
        return self.mask


class State:
    def __init__(self):
        self.inner = Cached()
        self.inner.turns = 0


def counter():
    turns = 0

    def count():
        nonlocal turns
        turns += 1
        adjust(0.1 / turns)

    return count


def resume(training):
    return training.step // 3


def first(*rates):
    adjust(rates[0])


class Average:
    def __init__(self):
        self.model, self.turns = copy.deepcopy(model), 0

    def update(self):
        self.turns += 1
        for mine, other in zip(self.model.parameters(), model.parameters()):
            mine.data.mul_(0.9 / self.turns).add_(other.data, alpha=0.1)


class Sampler:
    def __init__(self):
        self.turns = 0

    def state_dict(self):
        return {"turns": self.turns}

    def load_state_dict(self, state):
        self.turns = state["turns"]

    def __iter__(self):
        while True:
            self.turns += 1
            yield self.turns


@dataclass(frozen=True)
class Config:
    lr: float = 0.1
    seen: int = 0


Options = namedtuple("Options", ["lr"])


def log_and_decay(rate):
    adjust(rate)


def logits(value):
    return value


def rates():
    rate = 0.1
    while True:
        yield rate
        rate *= 0.9


def draw():
    return next(drawn)


def bump():
    global count
    count += 1


def scale():
    return 1.0 / (1 + count)


def remember(held, value):
    held.append(value)


def drawing(source):
    while True:
        yield from source


noam, engine, average, config, drawn, turning = Noam(optimizer), Engine(), Average(), Config(), rates(), itertools.cycle(inputs)
warm, decayed, metric, cached, state, closed = Warm(optimizer), Decayed(), Metric(), Cached(), State(), counter()
hooks, rules = [Noam(optimizer), warm], {"lr": Noam(optimizer)}
criterion, trainer, model.part = Centered(), Trainer(Centered()), Centered()
part = model.part
settings, opts, named = Config(), {"a": optimizer}, {"stops": False}
options, numbers, endless = Options(0.1), drawing(kept_sampler := Sampler()), drawing(inputs)
"""
STEPS = """
with session(model, optimizer, state=[scheduler, kept, kept_sampler]) as training:
    {begin}
    for {loop}:
        with step:
            {top}
            loss = model(batch).sum() * weight
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            {inside}
"""


def steps(inside: str = "", *, top: str = "", begin: str = "", loop: str = "step in training.steps(5)") -> str:
    parts = {"begin": (begin, 4), "top": (top, 12), "inside": (inside, 12)}
    lines = {name: textwrap.indent(text, " " * columns).strip() or "pass" for name, (text, columns) in parts.items()}
    return HEAD + HELPERS + STEPS.format(loop=loop, **lines)


def epochs(between: str, **parts: str) -> str:
    return HEAD + HELPERS + script(between, **parts).removeprefix(HEAD).replace("kept]", "kept, kept_sampler]")


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("n", steps(loop="n, step in enumerate(training.steps(5))", top="weight = 1 / (n + 1)")),
        ("n", steps(loop="n, step in enumerate(training.steps(5), start=1)", top="weight = 1 / n")),
        ("n", steps(begin="turns = training.steps(5)", loop="n, step in enumerate(turns)", top="weight = 1 / (n + 1)")),
        ("x", steps(loop="step, x in zip(training.steps(5), inputs)", top="batch = x")),
        ("x", steps(loop="step, x in zip(training.steps(5), rates())", top="weight = x")),
        ("x", steps(loop="x, step in zip(turning, training.steps(5))", top="batch = x")),
        ("y", steps(loop="step, (x, y) in zip(training.steps(5), zip(inputs, inputs))", top="batch = y")),
        ("n", epochs("adjust(n)", loop="n, epoch in enumerate(training.epochs(2, steps=3))")),
        ("drawn", steps("adjust(next(drawn))")),
        ("drawn", steps("adjust(draw())")),
        ("drawn", epochs("adjust(next(drawn))")),
        ("turning", steps(top="batch = next(turning)")),
        ("endless", steps(top="batch = next(endless)")),
        ("config.lr", steps("config = replace(config, lr=config.lr * 0.5)\nadjust(config.lr)")),
        ("config.lr", epochs("config = replace(config, lr=config.lr * 0.5)\nadjust(config.lr)")),
        ("config.lr", epochs("config = Config(config.lr * 0.5)\nadjust(config.lr)")),
        ("options", epochs("options = options._replace(lr=options.lr * 0.5)\nadjust(options.lr)")),
        ("lr", epochs("lr *= 0.5\n[group.update(lr=lr) for group in optimizer.param_groups]")),
        ("noam.turns", steps("noam.step()")),
        ("noam.turns", steps("noam.step_by_property()")),
        ("noam.turns", epochs("noam.step()")),
        ("noam.turns", steps("noam.returns()")),
        ("noam.turns", steps("noam.breaks()")),
        ("noam.turns", steps("noam.turns += 1\nadjust(noam.rate)")),
        ("engine.noam.turns", steps("engine.noam.step()")),
        ("engine.noam.turns", epochs("engine.noam.step()")),
        ("engine.noam.turns", steps("engine.noam()")),
        ("engine.turns", steps(top="engine.gathers()")),
        ("warm.turns", steps("warm.step()")),
        ("decayed.counts['turns']", steps("decayed.count()")),
        ("decayed._rate", steps("decayed.warms(loss.item())")),
        ("decayed._rate", steps("decayed.rate *= 0.9")),
        ("decayed._rate", epochs("decayed.validate()")),
        ("count", steps("count += 1\ndecayed.given(rate=0.1 / count)")),
        ("count", steps("count += 1\nfirst(0.1 / count)")),
        ("count", steps("count += 1\nlog_and_decay(0.1 / count)")),
        ("count", steps("count += 1", top="weight = logits(1 + count)")),
        ("count", steps("count += 1\nfor one in opts.values():\n    one.param_groups[0]['lr'] = 0.1 / count")),
        ("closed.turns", steps("closed()")),
        ("criterion.center", steps(top="criterion(model(batch)).sum().backward()")),
        ("trainer.criterion.center", steps(top="trainer.criterion(model(batch)).sum().backward()")),
        ("criterion.center", steps("criterion.center += 1", top="weight = criterion.center")),
        ("hooks[0].turns", steps("for hook in hooks:\n    hook.step()")),
        ("hooks[0].turns", epochs("for hook in hooks:\n    hook.step()")),
        ("rules['lr'].turns", steps("for rule in rules.values():\n    rule.step()")),
        ("state.inner.turns", steps("state.inner.turns += 1\nadjust(0.1 / state.inner.turns)")),
        ("state.inner.turns", epochs("state.inner.turns += 1\nadjust(0.1 / state.inner.turns)")),
        ("n", steps(loop="n, (step, x) in enumerate(zip(training.steps(5), kept_sampler))", top="weight = n")),
        ("n", epochs("adjust(0.1 / (n + 1))", loop="n, epoch in enumerate(list(training.epochs(2, steps=3)))")),
        ("average.turns", steps("average.update()")),
        ("count", steps("bump()", top="weight = scale()")),
        ("count", epochs("bump()\nadjust(scale())")),
        ("log", steps("remember(log, loss.item())", top="weight = 1 + len(log)")),
        ("cache", steps(top="cache[0] = cache.get(0, 0) + 1\nweight = cache[0]")),
        ("cache", steps(top="n = int(step) % 2\nif n not in cache:\n    cache[n] = len(cache)\nweight = cache[n]")),
    ],
)
def test_what_functions_methods_and_iterators_carry_is_found(name: str, source: str, tmp_path: Path) -> None:
    """The second step names it: a scheduler of the script's, a count by `enumerate`, a draw by `next` or `zip`, a global."""
    words = found(source, tmp_path)
    assert words
    assert f" reads `{name}`, which changes from " in words[0]


@pytest.mark.parametrize(
    "source",
    [
        steps(loop="n, step in enumerate(training.steps(5))", top="print(n)"),
        steps(loop="n, step in enumerate(training.steps(5), start=training.step)", top="weight = n"),
        steps(loop="step, n in zip(training.steps(5), kept_sampler)", top="weight = n"),
        steps(loop="step, n in zip(training.steps(5), drawing(kept_sampler))", top="weight = n"),
        steps(loop="step, n in zip(training.steps(5), itertools.count(training.step))", top="weight = n"),
        steps(top="weight = next(numbers)"),
        steps("print(next(drawn))"),
        steps("noam.shows()"),
        steps("print(criterion(loss))"),
        steps("trainer.shown(loss)"),
        steps(top="part(model(batch)).sum().backward()"),
        steps("model.part.center += 1", top="weight = part.center"),
        steps(top="engine.train_step()"),
        epochs("engine.turns += 1\nprint(engine.turns)"),
        epochs("config = replace(config, seen=config.seen + 1)\nprint(config.seen)\nadjust(config.lr)"),
        steps("bump()\nprint(scale())"),
        steps("remember(log, loss.item())\nprint(log)"),
        steps(top="n = int(step) % 2\nif n not in cache:\n    cache[n] = 1 / (1 + n)\nweight = cache[n]"),
        steps(top="for one in (rate for rate in [0.1]):\n    weight = one"),
        epochs(
            "adjust(0.1 / (1 + n))",
            begin="begun = training.step // 3",
            loop="n, epoch in enumerate(training.epochs(2, 3), begun)",
        ),
        epochs("bad += 1\nadjust(0.1 / bad)", begin="bad = resume(training)"),
        steps("metric.update(loss.item())"),
        steps("noam.turns += 1\nprint(noam.turns)\nnoam = Noam(optimizer)\nnoam.step()"),
        steps("for hook in [metric]:\n    hook.update(1)"),
        steps(top="weight = cached.get()"),
        steps(top="cache['x'] = 1 / int(step)\nweight = cache['x']"),
        steps(top="shown = torch.zeros(2) if shown is None else shown\nshown.fill_(1 / int(step))\nweight = shown.sum()"),
        steps(begin="rows = torch.zeros(3)", top="for n in range(3):\n    rows[n] = 1 / int(step)\nweight = rows.sum()"),
        epochs("bad += 1\nif settings.seen and bad > 3:\n    break"),
        epochs("bad += 1\nif named['stops'] and bad > 3:\n    break"),
        steps(top="try:\n    weight = 1 / int(step)\nexcept* ValueError:\n    weight = 1"),
    ],
)
def test_what_functions_only_show_or_the_session_restores_is_left_alone(source: str, tmp_path: Path) -> None:
    """A trainer that logs, a sampler that was given, a count from the step, a memory of what was computed."""
    assert found(source, tmp_path) == []


def test_a_loop_with_many_variables_and_loops_is_looked_at_once(tmp_path: Path) -> None:
    """All variables are followed in one pass, whatever the depth of loops: 400 counters, and 16 loops inside each other."""
    counters = "\n".join(f"n{number} = 0" for number in range(400))
    counts = "\n".join(f"n{number} += 1" for number in range(400))
    nested = "\n".join(f"{' ' * depth}for _ in range(1):" for depth in range(16)) + f"\n{' ' * 16}n7 += n6\n"
    (words,) = found(steps(f"{counts}\n{nested}adjust(n7)", begin=counters), tmp_path)[:1]
    assert " reads `n6`, which changes from turn to turn" in words


def test_an_object_that_executes_code_does_not_end_the_look(tmp_path: Path) -> None:
    """Proxies, and collections with methods of their own, are read without them; the random numbers stay where they were."""
    odd = """
class Proxy:
    @property
    def __dict__(self):
        raise RuntimeError("outside of a context")

    def note(self, value):
        pass


class Rows(list):
    def __iter__(self):
        torch.rand(1)
        return super().__iter__()


proxy, rows, drawn_before = Proxy(), Rows([1]), torch.get_rng_state()
"""
    source = steps("proxy.note(1)\ncount += len(rows)\nadjust(0.1 / count)", begin=odd)
    after = "assert torch.equal(drawn_before, torch.get_rng_state())\n"
    assert " reads `count`" in found(source + after, tmp_path)[0]


def test_a_look_that_takes_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The look costs a job seconds at most, and the log says so."""
    monkeypatch.setattr("rekindle_training.adapter.flow.LONGEST", 0.0)
    assert found(steps("noam.step()"), tmp_path) == []
    assert "loop variables checked in part" in caplog.text
