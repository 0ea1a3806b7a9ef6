"""Stand-ins of libraries in the variables of a script: what only protects training asks them nothing."""

import sys
from typing import Any

import torch

from rekindle_training.adapter import held
from rekindle_training.adapter.averages import Averages
from rekindle_training.adapter.generators import Generators


class StandIn:
    """Computes what it is, which is not possible yet. Proxies of web frameworks and of settings do so."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("outside of a request")


def test_generators_are_looked_for_beside_a_stand_in() -> None:
    """The loop begins, and a generator in another variable is watched."""
    stand_in, drawn_from = StandIn(), torch.Generator()
    generators = Generators()
    generators.find([sys._getframe(0)], [])
    assert generators._watched.keys() == {"drawn_from"}
    assert (type(stand_in), drawn_from.initial_seed() > 0) == (StandIn, True)


def test_averages_are_looked_for_beside_a_stand_in() -> None:
    """The look goes on. It does not end training, nor the looks of later turns."""
    model, stand_in = torch.nn.Linear(4, 2), StandIn()
    averages = Averages([model], [model])
    assert averages.look([sys._getframe(0)]) == ""
    assert (type(stand_in), averages.is_over) == (StandIn, False)


def test_a_stand_in_has_attributes() -> None:
    """Attributes of a stand-in are read from its dictionary, and its code is not executed."""
    stand_in = StandIn()
    vars(stand_in)["count"] = 1
    assert held.attributes(stand_in) == {"count": 1}
