"""Environment variables that follow from the strategies of a job.

Two tables are there: the one that MindCluster publishes, and the one that its operator has. They differ in `exit`, in
`elastic-training` with MindSpore, and in the variables that the operator adds for any strategy.
"""

from collections.abc import Collection
from enum import StrEnum

from rekindle.model.job import Framework
from rekindle.policy.parameters.catalog import (
    DUMP,
    ELASTIC_PROCESS_RECOVER_ENABLE,
    ELASTIC_TRAINING,
    ENABLE_RESTART_FAULT_PROCESS,
    EXIT,
    HIGH_AVAILABILITY,
    IN_PLACE,
    MINDIO_FOR_MINDSPORE,
    MS_ENABLE_TFT,
    PROCESS_RECOVER,
    RECOVER,
    RETRY,
    STRATEGIES,
    WATCHDOG,
)

MS_ENABLE_THM = "MS_ENABLE_THM"
"""Variable that switches MindSpore's watchdog off."""


class Table(StrEnum):
    """Choice between the two tables."""

    PUBLISHED = "published"
    OPERATOR = "operator"


_SWITCHES = {PROCESS_RECOVER: "on", ELASTIC_PROCESS_RECOVER_ENABLE: "1"}
_PYTORCH = {
    RECOVER: ("recover",),
    RETRY: ("retry",),
    IN_PLACE: ("recover",),
    DUMP: ("dump",),
    ELASTIC_TRAINING: ("elastic-training",),
}
"""Words of `HIGH_AVAILABILITY`, by strategy."""
_MINDSPORE = {RECOVER: ("ARF:1",), RETRY: ("HCCE:1", "UCE:1"), IN_PLACE: ("ARF:1",), DUMP: ("TTP:1",)}
"""Words of `MS_ENABLE_TFT`, by strategy."""


def variables(
    words: Collection[str],
    framework: Framework,
    *,
    pod_rescheduling: bool = False,
    hot_switch: bool = False,
    table: Table = Table.PUBLISHED,
) -> dict[str, str]:
    """Returns the variables for a job, by name.

    Args:
        words: those of the annotation `recover-strategy`, as they are written. Unknown ones count as none.
        pod_rescheduling: the label `pod-rescheduling` is `on`.
        hot_switch: the label `subHealthyStrategy` is `hotSwitch`, which brings the variables of `recover`.
    """
    if framework is Framework.TENSORFLOW:
        return {}
    is_mindspore = framework is Framework.MINDSPORE
    if table is Table.OPERATOR:
        words = [RECOVER if word == EXIT else word for word in words]
    asked = {word for word in STRATEGIES if word in words}
    found = _of_all(words, is_mindspore=is_mindspore) if table is Table.OPERATOR else {}
    if hot_switch:
        asked.add(RECOVER)
    prepares = {"RSC:1"} if pod_rescheduling and is_mindspore else set()
    for word in asked:
        found |= _switches(word, is_mindspore=is_mindspore)
        prepares |= set(_MINDSPORE.get(word, ())) if is_mindspore else set(_PYTORCH.get(word, ()))
    return found | _prepared(prepares, is_mindspore=is_mindspore)


def _of_all(words: Collection[str], *, is_mindspore: bool) -> dict[str, str]:
    """Returns what the operator sets as soon as the annotation has a word, whatever it is."""
    if not words:
        return {}
    if is_mindspore:
        return {MINDIO_FOR_MINDSPORE: "1", MS_ENABLE_TFT: "{}", MS_ENABLE_THM: "{HCCL_WATCHDOG:0}"}
    return {WATCHDOG: "0", HIGH_AVAILABILITY: ""}


def _switches(word: str, *, is_mindspore: bool) -> dict[str, str]:
    if word == EXIT or (word == ELASTIC_TRAINING and is_mindspore):
        return {}
    if word == ELASTIC_TRAINING:
        return {PROCESS_RECOVER: "on"}
    return _SWITCHES | ({ENABLE_RESTART_FAULT_PROCESS: "on"} if word == IN_PLACE else {})


def _prepared(words: set[str], *, is_mindspore: bool) -> dict[str, str]:
    if not words:
        return {}
    if not is_mindspore:
        return {HIGH_AVAILABILITY: ",".join(sorted(words))}
    mindio = {} if words == {"RSC:1"} else {MINDIO_FOR_MINDSPORE: "1"}
    return {MS_ENABLE_TFT: f"{{{','.join(sorted(words))}}}", **mindio}
