"""Changes by a registered function, as text."""

from types import SimpleNamespace
from typing import Any, cast

from rekindle_training.adapter.trained import Trained
from rekindle_training.adapter.untouched import Untouched


class Best:
    def __init__(self) -> None:
        self.accuracy = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"accuracy": self.accuracy}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.accuracy = state["accuracy"]


def test_an_object_that_was_changed_is_named_with_its_class() -> None:
    """A script that gives several objects finds the one that is meant without counting."""
    best = Best()
    nothing = SimpleNamespace(optimizer=None, shared={}, own_buffers=SimpleNamespace(roots={}))
    untouched = Untouched(cast("Trained", nothing), {"state[2]": best})
    assert untouched.changed() == ""
    best.accuracy = 0.5
    assert untouched.changed() == "state[2] (Best)"
