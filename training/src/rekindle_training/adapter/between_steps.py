"""Changes between the update of a step and the next step, of which a process that replaces a rank would not know."""

from rekindle_training.adapter.averages import Averages
from rekindle_training.adapter.carried import Carried
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.places import CARRIED, DRAWS, Places, frames_of_script
from rekindle_training.adapter.rehearsal import differing, own_parts
from rekindle_training.adapter.trained import Trained


class BetweenSteps:
    """Changes that the script of one rank makes. Variables and averages are looked at in the first steps only."""

    def __init__(self, trained: Trained, places: Places) -> None:
        self._places = places
        self._carried = Carried(trained.objects)
        self._averages = Averages(trained.modules, trained.objects)
        self.updated: tuple[int, Own] | None = None
        """Step that was updated last, and the state that only this rank had then. None: there is nothing to compare with."""

    def end_first_steps(self) -> None:
        self._carried.is_over = self._averages.is_over = True

    def begin_update(self, *, at_end: bool) -> None:
        """Notes where the script updates.

        Args:
            at_end: the step has ended without an update.
        """
        if not self._carried.is_over:
            self._carried.begin_update(at_end=at_end)

    def problem(self, number: int, own: Own | None) -> str:
        """Returns why training cannot go on with a step that begins. Empty: it can.

        Args:
            own: state that only this rank has.
        """
        return self._moved(number, own) or self._variable() or self._average()

    def _moved(self, number: int, own: Own | None) -> str:
        """Names random numbers or data that moved since the update of the last step."""
        if self.updated is None or self.updated[0] != number - 1 or self._places.accepts(DRAWS):
            return ""
        before = self.updated[1]
        if own is None or before == own or not (moved := differing(own_parts(before), own_parts(own))):
            return ""
        return (
            f"{moved[0]} moved between the update of step {number - 1} and the beginning of step {number}, so a rank that is "
            "lost there could not be replaced exactly; draw before `optimizer.step()`, and put what is no part of training, such "
            f'as an evaluation, into `with training.apart():`. session(accept=["{DRAWS}"]) accepts it'
        )

    def _variable(self) -> str:
        """Names a variable that the loop carries from turn to turn."""
        return "" if self._carried.is_over or self._places.accepts(CARRIED) else self._carried.look()

    def _average(self) -> str:
        """Names an object in which the script averages the model."""
        if self._averages.is_over or self._places.accepts(CARRIED) or not (found := self._averages.look(frames_of_script())):
            return ""
        return (
            f"`{found}` averages the model, and was not given to the session: a rank that is replaced would begin it again, "
            "as would a job that begins again at a checkpoint. Give an object with `state_dict` and `load_state_dict` to "
            "session(state=[...]), such as torch.optim.swa_utils.AveragedModel, and update it on all ranks. "
            f'session(accept=["{CARRIED}"]) accepts that it begins again'
        )
