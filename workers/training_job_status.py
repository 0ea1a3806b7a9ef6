"""The status of a TrainingJob object, as `kubectl get` and `kubectl wait` read it. Pure; written by `workers.operator`."""

from dataclasses import dataclass

from activities.clusters.api_server import Object
from rekindle.model import keys
from rekindle.model.cluster import JobPhase

ACCEPTED, PODS_MADE, TRAINING, GIVEN_UP = "Accepted", "PodsMade", "Training", "GivenUp"
"""Types of conditions. None is called `Failed`, which on other kinds means that a job has ended permanently. `GivenUp` is there
once a recovery was given up."""

LONGEST_MESSAGE = 1000


@dataclass(frozen=True)
class Condition:
    type: str
    status: bool
    reason: str
    message: str = ""


def told(job: Object, phase: JobPhase, message: str, moment: str) -> Object:
    """Returns the status of a job that was begun, or whose object is invalid.

    Args:
        message: why the object is invalid; empty: it is valid.
        moment: current time in the API server's format.
    """
    means_something = not message
    conditions = [Condition(ACCEPTED, means_something, "Understood" if means_something else "MeansNothing", message)]
    if means_something:
        conditions.append(Condition(PODS_MADE, True, "Made"))
    conditions.append(Condition(TRAINING, phase is JobPhase.RUNNING, phase.value))
    conditions.extend(_given_up(job))
    own = {"phase": phase.value, "message": message}
    return {**own, **_seen(job), "conditions": _with(job, conditions, moment)}


def in_trouble(job: Object, words: str, moment: str) -> Object:
    """Returns the status of a job whose objects could not all be created, because the API server, a quota or a webhook refused.
    The phase stays as it was."""
    trouble = Condition(PODS_MADE, False, "Refused", words[:LONGEST_MESSAGE])
    return {**_before(job), **_seen(job), "conditions": _with(job, [trouble], moment)}


def _given_up(job: Object) -> list[Condition]:
    """Returns whether a recovery of the job was given up, as the job's workflow writes it onto the object. A job that never was
    given up has no such condition."""
    annotations = job["metadata"].get("annotations") or {}
    if why := annotations.get(keys.GIVEN_UP):
        return [Condition(GIVEN_UP, True, "RecoveryGivenUp", str(why)[:LONGEST_MESSAGE])]
    was = any(one["type"] == GIVEN_UP for one in (job.get("status") or {}).get("conditions", ()))
    recovering = bool(annotations.get(keys.RECOVERING))
    return [Condition(GIVEN_UP, False, "TriedAgain" if recovering else "Resumed")] if was else []


def _before(job: Object) -> Object:
    return {key: value for key, value in (job.get("status") or {}).items() if key in ("phase", "message")}


def _seen(job: Object) -> Object:
    return {"observedGeneration": job["metadata"].get("generation", 0)}


def _with(job: Object, conditions: list[Condition], moment: str) -> list[Object]:
    """Returns the conditions by type, with these in place of their earlier versions. The transition time changes with the
    status."""
    before = {one["type"]: one for one in (job.get("status") or {}).get("conditions", ())}
    now = dict(before)
    for one in conditions:
        body = {"type": one.type, "status": str(one.status), "reason": one.reason, "message": one.message, **_seen(job)}
        was = before.get(one.type, {})
        same = was.get("status") == body["status"]
        now[one.type] = {**body, "lastTransitionTime": was["lastTransitionTime"] if same else moment}
    return [now[name] for name in sorted(now)]
