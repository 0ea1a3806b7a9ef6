"""Arguments of a session, of the wrong kind: each error names the argument, what was wrong, and what is accepted."""

import asyncio
import warnings
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import rekindle_training
from rekindle_training.adapter.loop import Training

MODEL = torch.nn.Linear(2, 2)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": OPTIMIZER}, r"session\(model\): this is an optimizer; the model comes first"),
        ({"model": "gpt"}, r"session\(model\): str is not accepted; give a torch.nn.Module"),
        ({"model": torch.nn.DataParallel(MODEL)}, "torch.nn.DataParallel is not accepted; use DistributedDataParallel"),
        ({"optimizer": MODEL}, r"session\(optimizer\): this is a module; give the optimizer"),
        (
            {"optimizer": [OPTIMIZER]},
            r"session\(optimizer\): a list is not accepted; give one optimizer, and the others in `state`",
        ),
        ({"checkpoint_every": "5"}, r"session\(checkpoint_every\): '5' is not accepted; give the steps between two checkpoints"),
        ({"checkpoint_every": True}, r"session\(checkpoint_every\): True is not accepted"),
        ({"checkpoint_every": 2.5}, r"session\(checkpoint_every\): 2.5 is not accepted"),
        ({"state": OPTIMIZER}, r"session\(state\): SGD is not accepted; give a list, as in state=\[scheduler\]"),
        ({"replicas": "0,1"}, r"session\(replicas\): '0,1' is not accepted; give a list of ranks"),
        ({"replicas": 3}, r"session\(replicas\): 3 is not accepted"),
        ({"unique_shards": "yes"}, r"session\(unique_shards\): 'yes' is not accepted; give True or False"),
        ({"after_update": MODEL.weight}, r"(?s)session\(after_update\): .* is not accepted; give a function"),
        ({"accept": "late-draws"}, r"session\(accept\): 'late-draws' is not accepted; give a list of early-collectives"),
        ({"checkpoints_every": 5}, "there is no such argument; did you mean checkpoint_every"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused(given: dict[str, Any], words: str) -> None:
    """An argument is refused before anything of the job is touched, also outside of a job."""
    with pytest.raises(TypeError, match=words):
        rekindle_training.session(**{"model": MODEL, "optimizer": OPTIMIZER, "checkpoint_every": 0, **given})


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, r"<lambda>\(\) cannot be called with one argument"),
        (lambda step, loss: (step, loss), r"<lambda>\(step, loss\) cannot be called with one argument"),
        ("evaluate", "'evaluate' is not accepted"),
        (OPTIMIZER, "SGD"),
        (asyncio.sleep, "sleep is a coroutine function"),
    ],
)
def test_a_function_that_cannot_be_given_a_step_is_refused_when_it_is_registered(function: Any, words: str) -> None:
    """The error names the argument and what is accepted."""
    with pytest.raises(TypeError, match=f"(?s)training.every\\(function\\): .*{words}.*; give a function of one argument"):
        Training.every(Mock(), 2, function)


@pytest.mark.parametrize("function", [print, [].append, lambda step, best=0: step + best, lambda *all: all])
def test_functions_of_one_argument_are_registered(function: Any) -> None:
    """Builtin functions, methods, and functions with further arguments that have defaults are accepted."""
    training = Mock(_called=[])
    Training.every(training, 2, function)
    assert training._called == [(2, function)]


def test_a_word_to_accept_that_there_is_not_is_refused() -> None:
    """The error lists the accepted values."""
    with pytest.raises(ValueError, match="anything is not known; accepted are early-collectives, late-collectives"):
        rekindle_training.session(MODEL, OPTIMIZER, checkpoint_every=0, accept=["anything"])


@pytest.mark.usefixtures("group")
def test_wrappers_that_hide_state_are_refused() -> None:
    """Wrappers that are bound to one process group, or that keep the state of one rank only, are named."""
    wrapped, sharded = DistributedDataParallel(MODEL), torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"session\(model\): give the bare module and wrap it in DistributedDataParallel"):
        rekindle_training.session(wrapped, OPTIMIZER, checkpoint_every=0)
    spread = ZeroRedundancyOptimizer(sharded.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(TypeError, match=r"session\(optimizer\): ZeroRedundancyOptimizer is not accepted"):
        rekindle_training.session(sharded, spread, checkpoint_every=0)
    from torch.distributed.fsdp import FullyShardedDataParallel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one rank shards nothing
        fsdp1 = FullyShardedDataParallel(torch.nn.Linear(2, 2), device_id=torch.device("cpu"))
    with pytest.raises(TypeError, match=r"FullyShardedDataParallel \(FSDP1\) is not accepted; use .*fully_shard"):
        rekindle_training.session(fsdp1, OPTIMIZER, checkpoint_every=0)


@pytest.mark.usefixtures("launched")
def test_a_session_without_with_says_so() -> None:
    """The error names the missing `with`."""
    opened: Any = rekindle_training.session(MODEL, OPTIMIZER, checkpoint_every=0)
    with pytest.raises(AttributeError, match="a session is entered by `with`"):
        opened.steps(3)


@pytest.mark.parametrize(
    ("positional", "words"),
    [
        ((), r"session\(model\): missing; give the module that is trained"),
        ((MODEL,), r"session\(optimizer\): missing; give what updates the model, as in session\(model, optimizer\)"),
    ],
)
def test_what_is_missing_is_named(positional: tuple[Any, ...], words: str) -> None:
    """A session without an optimizer says what to give."""
    with pytest.raises(TypeError, match=words):
        rekindle_training.session(*positional, checkpoint_every=0)
