"""Parameters that a training job may carry. Validation, the page of parameters, the JSON schema and messages are made from it.

Sources: MindCluster's configuration of resumable training; what its components accept where the two differ.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rekindle.model import keys
from rekindle.model.job import MOST_RETRY_TIMES, Framework, SubHealthStrategy
from rekindle.model.mode import Mode
from rekindle.policy.parameters.values import Number, Present, Seconds, Timed, Values, WordList, Words

FAULT_SCHEDULING = "fault-scheduling"
"""Label of a job, read by Volcano: how it ends the pods of a fault."""
RECOVER_POLICY_PATH = "huawei.com/recover_policy_path"
"""Annotation of a job, read by Volcano: the levels of rescheduling that it may use."""

RETRY, IN_PLACE, RECOVER = "retry", "recover-in-place", "recover"
ELASTIC_TRAINING, DUMP, EXIT = "elastic-training", "dump", "exit"
STRATEGIES = (RETRY, IN_PLACE, RECOVER, ELASTIC_TRAINING, DUMP, EXIT)
"""Words of the annotation `recover-strategy`."""
PROCESS_LEVEL = (RETRY, IN_PLACE, RECOVER, ELASTIC_TRAINING, DUMP)
"""Strategies that need the training side."""

MODE_OF = {
    RETRY: Mode.ONLINE_RETRY,
    IN_PLACE: Mode.IN_PLACE,
    RECOVER: Mode.PROCESS_RESCHEDULING,
    ELASTIC_TRAINING: Mode.ELASTIC_TRAINING,
    DUMP: Mode.DYING_GASP,
}

PROCESS_RECOVER = "PROCESS_RECOVER"
ELASTIC_PROCESS_RECOVER_ENABLE = "ELASTIC_PROCESS_RECOVER_ENABLE"
ENABLE_RESTART_FAULT_PROCESS = "ENABLE_RESTART_FAULT_PROCESS"
HIGH_AVAILABILITY = "HIGH_AVAILABILITY"
MINDIO_FOR_MINDSPORE = "MINDIO_FOR_MINDSPORE"
MS_ENABLE_TFT = "MS_ENABLE_TFT"
WATCHDOG = "HCCL_ASYNC_ERROR_HANDLING"
TASKD_PROCESS_ENABLE = "TASKD_PROCESS_ENABLE"
TTP_PORT = "TTP_PORT"

HIGH_AVAILABILITY_FLAG = "--enable-high-availability"
STRATEGY_OF_FLAG = {
    "--enable-hbmfault-repair": RETRY,
    "--enable-worker-reboot": RECOVER,
    "--enable-elastic-training": ELASTIC_TRAINING,
}
"""Flags of a training script, each with the strategy without which it does nothing."""


class Place(StrEnum):
    """Place of a parameter."""

    LABEL = "label of the job"
    ANNOTATION = "annotation of the job"
    VARIABLE = "environment variable of its container"
    SCRIPT = "argument of the training script"
    LAUNCHER = "argument of torchrun"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    name: str
    place: Place
    values: Values
    default: str
    """Value that counts where the parameter is missing. Empty: none does."""
    effect: str
    modes: tuple[Mode, ...] = ()
    """Modes that need it, or that it changes."""


_PROCESSES = (Mode.ONLINE_RETRY, Mode.IN_PLACE, Mode.PROCESS_RESCHEDULING)
_RESTARTS = (Mode.POD_RESCHEDULING, Mode.JOB_RESCHEDULING)


def _label(name: str, values: Values, default: str, effect: str, *modes: Mode) -> Parameter:
    return Parameter(name=name, place=Place.LABEL, values=values, default=default, effect=effect, modes=modes)


def _annotation(name: str, values: Values, default: str, effect: str, *modes: Mode) -> Parameter:
    return Parameter(name=name, place=Place.ANNOTATION, values=values, default=default, effect=effect, modes=modes)


def _variable(name: str, values: Values, default: str, effect: str, *modes: Mode) -> Parameter:
    return Parameter(name=name, place=Place.VARIABLE, values=values, default=default, effect=effect, modes=modes)


def _flag(name: str, effect: str, *modes: Mode) -> Parameter:
    return Parameter(name=name, place=Place.SCRIPT, values=Present(), default="", effect=effect, modes=modes)


PARAMETERS = (
    _label(
        keys.SUB_HEALTHY_STRATEGY,
        Words(tuple(SubHealthStrategy)),
        "ignore",
        "What happens to a pod on a sub-healthy node.",
        Mode.HOT_SWITCH,
        Mode.JOB_RESCHEDULING,
    ),
    _label(
        FAULT_SCHEDULING,
        Words(("grace", "force", "off", "external-grace", "external-force")),
        "off",
        "How Volcano ends the pods of a fault. `off`: it ends none, and only the training side recovers.",
        *_PROCESSES,
        *_RESTARTS,
    ),
    _label(
        keys.POD_RESCHEDULING,
        Words(("on", "off")),
        "off",
        "Only faulty pods are replaced, if no cheaper mode helps.",
        Mode.POD_RESCHEDULING,
    ),
    _label(
        keys.PROCESS_RECOVER_ENABLE,
        Words(("on", "off")),
        "",
        "Processes are recovered. The Ascend Operator sets it where `recover-strategy` is set; `pause` is for controllers only.",
        *_PROCESSES,
    ),
    _label(
        keys.FAULT_RETRY_TIMES,
        Number(0, MOST_RETRY_TIMES, "restarts"),
        "0",
        "Restarts after a failure of which no cause is known.",
        Mode.JOB_RESCHEDULING,
    ),
    _label(keys.FRAMEWORK, Words(tuple(Framework)), "pytorch", "Framework of the training script.", *_PROCESSES),
    _label(
        keys.HOT_RESET,
        Words(("0", "2")),
        "",
        "Reset of devices: `2` those of jobs that have ended, `1` graceful fault tolerance, which has reached its end of life.",
    ),
    _annotation(
        keys.RECOVER_STRATEGY,
        WordList(STRATEGIES),
        "",
        "Strategies that the owner of the job allows.",
        *MODE_OF.values(),
    ),
    _annotation(
        keys.WAIT_RESCHEDULE,
        Number(30, 270, "s"),
        "270",
        "Seconds to wait until the replacement of a pod is scheduled.",
        Mode.PROCESS_RESCHEDULING,
        Mode.ELASTIC_TRAINING,
    ),
    _annotation(
        keys.PLATFORM_STRATEGY,
        Words(("", "retry", "recover", "dump", "exit")),
        "",
        "If it is there, a platform decides, and Volcano deletes no pods.",
        *_PROCESSES,
    ),
    _annotation(
        RECOVER_POLICY_PATH,
        Words(("pod", "pod,job", "job")),
        "pod,job",
        "Levels of rescheduling that Volcano may use. `pod`: it does not restart the whole job.",
        *_RESTARTS,
    ),
    _annotation(keys.FILTER_CODES, Timed(86_400, 60), "", "Fault codes that are tolerated for some seconds."),
    _annotation(keys.FILTER_LEVELS, Timed(86_400, 60), "", "Levels of faults that are tolerated for some seconds."),
    _variable(PROCESS_RECOVER, Words(("on", "off")), "off", "TaskD and MindIO recover processes.", *_PROCESSES),
    _variable(
        ENABLE_RESTART_FAULT_PROCESS,
        Words(("on", "off")),
        "off",
        "TaskD starts a process again inside its pod.",
        Mode.IN_PLACE,
    ),
    _variable(
        ELASTIC_PROCESS_RECOVER_ENABLE,
        Words(("1", "0")),
        "0",
        "As PROCESS_RECOVER, of the Elastic Agent, which has reached its end of life.",
        *_PROCESSES,
    ),
    _variable(
        HIGH_AVAILABILITY,
        WordList(("dump", "elastic-training", "recover", "retry")),
        "",
        "What MindSpeed prepares for. PyTorch only.",
        *MODE_OF.values(),
    ),
    _variable(MINDIO_FOR_MINDSPORE, Words(("1", "0")), "0", "MindIO works with MindSpore.", *_PROCESSES, Mode.DYING_GASP),
    _variable(
        MS_ENABLE_TFT,
        WordList(("ARF:1", "HCCE:1", "RSC:1", "TSP:1", "TTP:1", "UCE:1"), ("{", "}")),
        "",
        "What MindSpore prepares for.",
        *_PROCESSES,
        Mode.DYING_GASP,
        Mode.POD_RESCHEDULING,
    ),
    _variable(
        WATCHDOG,
        Words(("0", "1", "2")),
        "1",
        "Watchdog of collectives. With `1` it ends a process that waits for a recovery.",
        Mode.HOT_SWITCH,
        *_PROCESSES,
    ),
    _variable(
        TASKD_PROCESS_ENABLE,
        Words(("on", "off")),
        "on",
        "TaskD's manager starts MindIO's controller. MindSpore needs `on` in the pod, and a job without strategies `off`.",
        Mode.HOT_SWITCH,
        *_PROCESSES,
    ),
    _variable("RESTART_FAULT_PROCESS_TYPE", Words(("worker", "pod")), "", "What TaskD starts again.", Mode.IN_PLACE),
    _variable(
        "MINDIO_WAIT_MINDX_TIME",
        Number(10, 3600, "s"),
        "30",
        "Seconds for which MindIO waits for an order after a fault. The limit `nextOrder` must be as short.",
        *_PROCESSES,
    ),
    _variable(TTP_PORT, Number(1024, 65_535), "8000", "Port of MindIO's controller.", *_PROCESSES),
    _variable("TTP_RETRY_TIMES", Number(1, 300), "10", "Tries of a rank to connect to MindIO's controller.", *_PROCESSES),
    _variable(
        "TASKD_REPORT_FAULT_TIMEOUT",
        Number(300, 600, "s"),
        "",
        "Seconds after which TaskD's agent leaves if its fault is not handled.",
        *_PROCESSES,
    ),
    _variable("TASKD_PROCESS_INTERVAL", Number(100, 1000, "ms"), "100", "Pace of TaskD's manager."),
    _variable("LOCAL_PROXY_ENABLE", Words(("on", "off")), "off", "TaskD connects to a proxy in its pod."),
    _flag(HIGH_AVAILABILITY_FLAG, "MindSpeed saves and recovers. The other flags need it.", *MODE_OF.values()),
    _flag("--enable-hbmfault-repair", "MindSpeed repeats a step after a memory fault.", Mode.ONLINE_RETRY),
    _flag("--enable-worker-reboot", "MindSpeed lets new processes join.", Mode.PROCESS_RESCHEDULING, Mode.IN_PLACE),
    _flag("--enable-elastic-training", "MindSpeed goes on with fewer ranks.", Mode.ELASTIC_TRAINING),
    _flag("--distributed-optimizer-no-replica", "MindSpeed keeps no second copy of the optimizer.", Mode.DYING_GASP),
    Parameter(
        name="--max_restarts",
        place=Place.LAUNCHER,
        values=Number(0, 1_000_000, "restarts"),
        default="",
        effect="Restarts of the ranks of a pod. The published recipe sets 32767.",
        modes=_PROCESSES,
    ),
    Parameter(
        name="--monitor_interval",
        place=Place.LAUNCHER,
        values=Seconds(),
        default="",
        effect="Seconds between two looks at the ranks. The published recipe sets 5.",
        modes=_PROCESSES,
    ),
)


def at(*places: Place) -> dict[str, Parameter]:
    """Returns the parameters of these places, by name."""
    return {parameter.name: parameter for parameter in PARAMETERS if parameter.place in places}


def schema() -> dict[str, Any]:
    """Returns a JSON schema of the metadata of a job. Keys that it does not know are accepted."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "metadata of a training job",
        "type": "object",
        "properties": {
            "labels": {"type": "object", "properties": dict(_properties(Place.LABEL))},
            "annotations": {"type": "object", "properties": dict(_properties(Place.ANNOTATION))},
        },
    }


def _properties(place: Place) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, parameter in at(place).items():
        yield name, {**parameter.values.schema, "description": parameter.effect}
