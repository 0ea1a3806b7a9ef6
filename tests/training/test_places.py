"""Lines that a refusal names, and threads whose collectives belong to the loop."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rekindle_training.adapter.places import COLLECTIVES, Place, Places, line_of_script


def called(file: Path, source: str, **names: Any) -> Any:
    """The function `run` of a file with this source."""
    exec(compile(source, str(file), "exec"), names)
    return names["run"]


@pytest.mark.parametrize(
    ("library", "line"),
    [
        ("site-packages/lightning/ddp.py", "ddp.py:2, called at train.py:3"),
        ("dist-packages/ddp.py", "ddp.py:2, called at train.py:3"),
        ("mine/ddp.py", "ddp.py:2"),
    ],
)
def test_what_a_library_does_is_named_with_the_line_of_the_script(library: str, line: str, tmp_path: Path) -> None:
    """The innermost line of a file that is not installed follows; a module of the script's own needs none."""
    speak = called(tmp_path / library, "def run():\n    return line()\n", line=line_of_script)
    train = called(tmp_path / "train.py", "def run():\n    step = 1\n    return speak()\n", speak=speak)
    assert train() == line


def speaks() -> None:
    dist.all_reduce(torch.ones(()))


def speaks_in_a_pass() -> None:
    """Makes a backward pass whose hook speaks to other ranks, as that of a model that is wrapped or sharded."""
    weight = torch.ones((), requires_grad=True)
    weight.register_hook(lambda _: speaks())
    (weight * 2).backward()


@pytest.mark.parametrize(("work", "is_of_loop"), [(speaks, False), (speaks_in_a_pass, True)], ids=["a save", "a pass"])
def test_a_backward_pass_belongs_to_the_loop_in_whatever_thread_it_is(
    work: Callable[[], None], is_of_loop: bool, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An accelerator has threads of its own for it. A second pass after the update would not be noticed there."""
    for name in COLLECTIVES:
        monkeypatch.setattr(dist.ProcessGroup, name, getattr(dist.ProcessGroup, name, None), raising=False)
    places, heard = Places(), list[object]()
    places.watch()
    places.now, places.in_step = Place.IN_STEP, heard.append
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert bool(heard) is is_of_loop
    assert bool(places.of_threads) is not is_of_loop
