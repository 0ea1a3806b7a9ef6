"""Advice: the changes that a script needs, derived from the differences and failures of a drill."""

from collections.abc import Iterator

from rekindle_training.launcher.drill import output
from rekindle_training.launcher.drill.findings import Finding, Result
from rekindle_training.launcher.drill.traces import Difference, Kind, Trace

NO_SCOPE = "Write `with step:` around the body of the loop: a failure outside of it is not repeated."
NO_SESSION = (
    "The script has no rekindle_training.session: give it one around its loop, as the training guide shows. Without one nothing "
    "is recovered."
)
BEFORE = "it differs before the fault struck"
DIFFERS = "two undisturbed runs differ as well"
SEED = (
    "Nothing can be compared bit for bit, since {known}. Seed all that draws random numbers (torch, numpy, random, generators of "
    "the script's own), keep time, process ids and the order of sets out of training, and choose deterministic kernels."
)
ALONE = (
    "No step was completed after the fault. The likely cause: a collective that the others do not make. A new process is alone "
    "between session() and its loop, while the others are in theirs: leave out collectives there, outside of `with step:` and "
    "after the update."
)
OUTSIDE = (
    "A rank lost another one in a collective, and the step was not repeated. The likely cause: the collective is outside of "
    "`with step:`, or after the update. Do what ranks do together (an evaluation, an average for the log, a barrier) inside "
    "`with step:` and before the update."
)
POD = (
    "in pods of one rank the script computes otherwise, before anything happens to it. The likely cause: it uses LOCAL_RANK for "
    "a seed or for its share of the data, where it means RANK"
)
OTHER_END = (
    "The loop ended after another step. The likely cause: what decides it, such as a best loss or a count for an early stop, is "
    "in a variable, which a new process begins with its first value: keep it in an object that is given to the session "
    "(state=[...])."
)
OURS = (
    "What differs is kept by the session and not by the script, so this is likely an error of Rekindle. Please report it with "
    "the folder that --drill-keep leaves."
)

_UPDATE = (
    "The step had the same loss, and another state after its update. The likely cause: the update used something that the "
    "session does not have: give it to the session (state=[...]), and change parameters by an optimizer only."
)
_BY_KIND = {
    Kind.DATA: (
        "The position of data={given} is another one. The likely cause is in its methods: `state_dict` has to say where training "
        "stands, and not workers that load ahead, and `load_state_dict` has to put exactly that back."
    ),
    Kind.LOSS: (
        "The states were equal before the step, and its loss is not: the step used something that the session does not have "
        "(data={given}). Likely causes: a batch that was drawn in an earlier step, a loader or a generator that was not given. "
        "Draw the batch inside `with step:`, not in the turn before; give the loader as data=; give a generator of random "
        "numbers of the script's own as data=, or seed it from the number of the step."
    ),
    Kind.SHARED: (
        "{part} ({given}) has another state. The likely cause: it was called outside of the step, or on some ranks only: call it "
        "inside `with step:`, on every rank, after `optimizer.step()`."
    ),
    Kind.OPTIONS: (
        "{last} of the optimizer is another one. The likely cause: what sets it was not given, such as a scheduler or a variable "
        "of the loop: give it to the session (state=[scheduler]), and call it inside `with step:`."
    ),
    Kind.RANDOM: (
        "Random numbers have moved otherwise. The likely cause: some are drawn between two steps, or by a thread: draw them "
        "inside `with step:` and before the update."
    ),
    Kind.BUFFER: (
        "Buffer {last} is another one. The likely cause: it is each rank's own, and a new process has that of another rank: "
        "synchronize it, as SyncBatchNorm does, or keep it out of the model."
    ),
    Kind.GRADIENT: (
        "Gradients that are left at the end of a step differ. The likely cause: they are each rank's own, as under no_sync over "
        "several steps: gather all parts of a batch inside one `with step:`."
    ),
}


def advise(finding: Finding, undisturbed: Trace) -> list[str]:
    if finding.result is Result.NOT_COMPARABLE:
        return [SEED.format(known=finding.note)]
    return list(_of(finding, undisturbed)) if finding.is_bad else []


def _of(finding: Finding, undisturbed: Trace) -> Iterator[str]:
    if not all(line.scoped for lines in undisturbed.ranks.values() for line in lines.values()):
        yield NO_SCOPE
    if finding.other_end:
        yield OTHER_END
    elif finding.difference is not None:
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
