"""What to change in a script, from what differed or failed."""

from collections.abc import Iterator

from rekindle_training.drill import output
from rekindle_training.drill.findings import Finding, Result
from rekindle_training.drill.traces import Difference, Kind, Trace

NO_SCOPE = "Write `with step:` around the body of the loop: a failure outside of it is not repeated."
NO_SESSION = (
    "The script has no rekindle_training.session: give it one around its loop, as the training guide shows. Without one nothing "
    "is recovered."
)
SEED = (
    "Two undisturbed runs of the script differ as well, so nothing can be compared bit for bit. Seed all that draws random "
    "numbers (torch, numpy, random, generators of the script's own), keep time, process ids and the order of sets out of "
    "training, and choose deterministic kernels."
)
ALONE = (
    "A new process is alone between session() and its loop, while the others are in theirs: leave out collectives there, outside "
    "of `with step:` and after the update."
)
OUTSIDE = (
    "A rank was in a collective outside of `with step:`, or after the update, when another one was lost: that is not repeated. "
    "Do what ranks do together (an evaluation, an average for the log, a barrier) inside `with step:` and before the update."
)
POD = (
    "In pods of one rank the script computes otherwise, before anything happens to it: as a rule it uses LOCAL_RANK for a seed "
    "or for its share of the data, where it means RANK."
)
OURS = (
    "What differs is kept by the session and not by the script: this is an error of Rekindle. Please report it with the folder "
    "that --drill-keep leaves."
)

_UPDATE = (
    "The step had the same loss, and its update was another one: give everything that the update uses to the session "
    "(state=[...]), and change parameters by an optimizer only."
)
_BY_KIND = {
    Kind.DATA: (
        "The position of data={given} is another one: its `state_dict` has to say where training stands, and not workers that "
        "load ahead, and `load_state_dict` has to put exactly that back."
    ),
    Kind.LOSS: (
        "The states were equal before the step, and its loss is not: the step used something that the session does not have "
        "(data={given}). Draw the batch inside `with step:`, not in the turn before; give the loader as data=; give a generator "
        "of random numbers of the script's own as data=, or seed it from the number of the step."
    ),
    Kind.SHARED: (
        "{part} ({given}) has moved otherwise than parameters and optimizer: call it inside `with step:`, on every rank, after "
        "`optimizer.step()`."
    ),
    Kind.OPTIONS: (
        "{last} of the optimizer is another one: give what sets it, such as a scheduler, to the session (state=[scheduler]), and "
        "call it inside `with step:`."
    ),
    Kind.RANDOM: "Draw random numbers inside `with step:` and before the update, and in no thread.",
    Kind.BUFFER: (
        "Buffer {last} is each rank's own: a new process has that of another rank. Synchronize it, as SyncBatchNorm does, or "
        "keep it out of the model."
    ),
    Kind.GRADIENT: (
        "Gradients that are left at the end of a step are each rank's own, as under no_sync over several steps: gather all parts "
        "of a batch inside one `with step:`."
    ),
}


def advise(finding: Finding, undisturbed: Trace) -> list[str]:
    if finding.result is Result.NOT_COMPARABLE:
        return [SEED]
    return list(_of(finding, undisturbed)) if finding.is_bad else []


def _of(finding: Finding, undisturbed: Trace) -> Iterator[str]:
    if not all(line.scoped for lines in undisturbed.ranks.values() for line in lines.values()):
        yield NO_SCOPE
    if finding.difference is not None:
        yield _of_difference(finding.difference, undisturbed.given)
    elif finding.result is Result.HANGS or any("no step was completed within" in words for words in finding.said):
        yield ALONE
    elif any(output.is_loss(words) for words in finding.said):
        yield OUTSIDE


def _of_difference(difference: Difference, given: dict[str, str | None]) -> str:
    cause = difference.cause
    part = "data" if cause.kind is Kind.LOSS else cause.name.partition(" ")[0]
    words = OURS if cause.kind is Kind.SHARED and part not in given else _BY_KIND.get(cause.kind, _UPDATE)
    return words.format(part=part, given=given.get(part), last=cause.name.rpartition(" ")[2])
