"""Computes what to send to a job's workflow: the difference between the cluster and what the workflow acknowledged last. Pure.

Used by the watcher, which keeps the two states in memory for each job. If a message was lost, repeated or forgotten, the next
look finds the same difference or none. docs/intake.md has the rule, the cases and an example.
"""

import json
from collections.abc import Mapping
from datetime import datetime

from rekindle.errors import BadInput
from rekindle.model import stored
from rekindle.model.base import Value
from rekindle.model.cluster import JobObject, JobView
from rekindle.model.fault import Sighting
from rekindle.model.job import Job, SubHealthStrategy, Trait
from rekindle.model.keys import DOWNGRADED, MEMORY, SUB_HEALTHY_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.model.rules import Rules
from rekindle.model.state import Registration, Remembered
from rekindle.policy.detection.sighting import end_of, sight


class Register(Value):
    """Registers the job and starts its workflow if there is none. Contains the sighting too, so that one update is enough."""

    registration: Registration


class Sighted(Value):
    sighting: Sighting


class End(Value):
    reason: str


News = Register | Sighted | End


class Shown(Value):
    """State of a job that the cluster shows now."""

    job: Job | None = None
    """The job, as its object describes it. None: the object is invalid."""

    refused: str = ""
    """Reason why the job's object is invalid."""

    observe: bool = False
    """True if nothing is to be done for the job, whatever else its object says."""

    ended: str = ""
    """Reason why the job has ended. Empty: it has not."""

    sighting: Sighting = Sighting()
    remembered: Remembered = Remembered()


class Acknowledged(Value):
    """State that a job's workflow has acknowledged. It is empty for a new watcher, and after the loss of a workflow."""

    job: Job | None = None
    sighting: Sighting | None = None
    """Sighting that the workflow knows. None: unknown, so that one is sent even if nothing is wrong."""

    reached: bool = False
    """True if something was sent to the workflow, perhaps without a confirmation. The job's end then has to be sent, too."""

    lost: tuple[str, ...] = ()
    """Holders of the ranks as a lost workflow knew them. They are sent to the next workflow."""

    declined: Job | None = None
    """Job that the workflow refused to register. It is sent again when the job's object changes, or when the whole cluster is
    listed again."""


def shown(view: JobView, installation: Limits, rules: Rules | None = None) -> Shown:
    """Returns the state of a job in the cluster, to be compared with what was acknowledged.

    Args:
        installation: limits that apply where the job sets none.
        rules: rules of detection; by default the ready-made set `plain`.
    """
    ended = end_of(view.job)
    if ended or view.job is None:
        return Shown(ended=ended)
    known = Shown(observe=view.job.observe, sighting=sight(view, rules), remembered=_remembered(view.job))
    try:
        return known.model_copy(update={"job": job_of(view.job, installation)})
    except BadInput as error:
        return known.model_copy(update={"refused": str(error)})


def in_storm(now: Shown, reason: str, *, recovers: bool) -> Shown:
    """Returns the state with the reason of a storm. Jobs that are well do not get it: there may be thousands.

    Args:
        reason: why there is a storm; empty: there is none.
        recovers: True if a recovery of the job has run in the storm, perhaps for a fault that the cluster does not show.
    """
    if not (reason and (now.sighting.faults or recovers)):
        return now
    return now.model_copy(update={"sighting": now.sighting.model_copy(update={"storm": reason})})


def heeds_storms(acknowledged: Acknowledged) -> bool:
    """Returns whether the job's workflow is told that a storm begins or is over."""
    known = acknowledged.sighting
    return known is not None and bool(known.faults or known.storm)


def _remembered(job: JobObject) -> Remembered:
    """Returns the memory that an earlier workflow of the job left on its object. It is empty if it cannot be read or is another
    job's: people write annotations too, and copy objects."""
    try:
        remembered, _ = stored.read(Remembered, json.loads(job.metadata.annotations[MEMORY]), needed=("job",))
    except (KeyError, ValueError):
        return Remembered()
    return remembered if remembered and remembered.job == job.metadata.uid else Remembered()


def due(now: Shown, acknowledged: Acknowledged) -> News | None:
    """Returns what is to be sent. None: the workflow knows everything."""
    if now.ended:
        return End(reason=now.ended) if acknowledged.reached else None
    job = _said(now.job, acknowledged.job) if now.job else None
    accepted = job is not None and job != acknowledged.declined
    if job and accepted and job != acknowledged.job:
        registration = Registration(job=job, sighting=now.sighting, remembered=now.remembered, holders=acknowledged.lost)
        return Register(registration=registration)
    if not accepted and now.observe and not (acknowledged.job and acknowledged.job.observe):
        return None  # the workflow would act, since it does not learn that the job is only observed
    return Sighted(sighting=now.sighting) if _differs(now.sighting, acknowledged.sighting) else None


def _said(job: Job, before: Job | None) -> Job:
    """Returns the job with the values that count beside those of its registration. For pods without a controller the first
    registration holds, since they describe their job in turn. During a downgrade the policy label was written by the workflow,
    so that the old one holds."""
    if before is None:
        return job
    if job.has(Trait.FIRST_WORD_HOLDS):
        return before.model_copy(update={"observe": job.observe})
    if DOWNGRADED in job.annotations and job.sub_health is SubHealthStrategy.IGNORE:
        labels = _as_before(job.labels, before.labels, SUB_HEALTHY_STRATEGY)
        annotations = _as_before(job.annotations, before.annotations, DOWNGRADED)
        return job.model_copy(update={"sub_health": before.sub_health, "labels": labels, "annotations": annotations})
    return job


def _as_before(now: dict[str, str], before: dict[str, str], key: str) -> dict[str, str]:
    others = {name: text for name, text in now.items() if name != key}
    return {**others, **({key: before[key]} if key in before else {})}


def _differs(now: Sighting, before: Sighting | None) -> bool:
    """Returns whether two sightings differ in more than messages. Messages are for people, and may contain a temperature or a
    counter. So may the reason of a storm."""
    return before is None or (now != before and _without_messages(now) != _without_messages(before))


def _without_messages(sighting: Sighting) -> Sighting:
    faults = tuple(fault.model_copy(update={"message": ""}) for fault in sighting.faults)
    standbys = tuple(one.model_copy(update={"waits": one.waits[:1], "wrong": one.wrong[:1]}) for one in sighting.standbys)
    storm = "storm" if sighting.storm else ""
    return sighting.model_copy(update={"faults": faults, "standbys": standbys, "storm": storm})


def is_urgent(news: News, acknowledged: Acknowledged) -> bool:
    """Returns whether the news is sent at once. Only the arrival of a job's pods, one by one, can wait."""
    before = acknowledged.sighting
    if not isinstance(news, Sighted) or before is None or len(news.sighting.holders) != len(before.holders):
        return True
    now = news.sighting
    grown = all(old in ("", new) for old, new in zip(before.holders, now.holders, strict=True))
    same = (now.faults, now.problems, bool(now.storm)) == (before.faults, before.problems, bool(before.storm))
    return not (grown and same and before.manager in ("", now.manager))


def is_calm(news: News) -> bool:
    """Returns whether the news registers a healthy job. A watcher that starts sends thousands of these."""
    if not isinstance(news, Register) or (seen := news.registration.sighting) is None:
        return False
    return all(seen.holders) and not seen.faults and not seen.problems


def dated(news: News, seen_at: Mapping[str, datetime]) -> News:
    """Returns the news with the time at which each fault was first seen. The times are for people and do not count in
    comparisons."""
    if isinstance(news, Register) and (seen := news.registration.sighting):
        return Register(registration=news.registration.model_copy(update={"sighting": _dated(seen, seen_at)}))
    return Sighted(sighting=_dated(news.sighting, seen_at)) if isinstance(news, Sighted) else news


def _dated(sighting: Sighting, seen_at: Mapping[str, datetime]) -> Sighting:
    faults = tuple(fault.model_copy(update={"seen_at": seen_at.get(fault.id)}) for fault in sighting.faults)
    return sighting.model_copy(update={"faults": faults})


# ---- after the news was sent


def acknowledge(acknowledged: Acknowledged, news: News) -> Acknowledged:
    """Returns the acknowledged state after the workflow has accepted the news."""
    if isinstance(news, End):
        return Acknowledged()
    if isinstance(news, Sighted):
        return acknowledged.model_copy(update={"sighting": news.sighting, "reached": True, "lost": _last_holders(acknowledged)})
    told = news.registration
    return Acknowledged(job=told.job, sighting=told.sighting, reached=True, lost=_last_holders(acknowledged))


def met(acknowledged: Acknowledged) -> Acknowledged:
    """Returns the acknowledged state of a job to whose workflow an earlier watcher has sent something. The job's end has to be
    sent, too."""
    return acknowledged.model_copy(update={"reached": True})


def unconfirmed(acknowledged: Acknowledged, news: News) -> Acknowledged:
    """Returns the acknowledged state if it is unknown whether the workflow accepted the news. The next state is then sent in any
    case. The holders of the ranks are kept, since the workflow may be lost."""
    if isinstance(news, Sighted):
        return acknowledged.model_copy(update={"sighting": None, "reached": True, "lost": _last_holders(acknowledged)})
    return Acknowledged(reached=True, lost=acknowledged.lost)


def decline(acknowledged: Acknowledged, news: News) -> Acknowledged:
    """Returns the acknowledged state after the workflow has refused the news, which is not repeated. What was acknowledged before
    a refused registration still holds."""
    if isinstance(news, Register):
        return acknowledged.model_copy(update={"declined": news.registration.job})
    return acknowledge(acknowledged, news)


def reconsidered(acknowledged: Acknowledged) -> Acknowledged:
    """Returns the acknowledged state without a refused registration. A newer version of the workflow or another worker may accept
    it."""
    return acknowledged.model_copy(update={"declined": None})


def unknown(now: Shown, acknowledged: Acknowledged, news: News) -> Acknowledged:
    """Returns the acknowledged state if there is no workflow, which is normal for a job that has ended. Otherwise the job is
    registered next, or when its object becomes valid."""
    if isinstance(news, Sighted) and (now.job is None or acknowledged.declined is not None):
        return Acknowledged(sighting=news.sighting, declined=acknowledged.declined)
    return forgotten(acknowledged)


def forgotten(acknowledged: Acknowledged) -> Acknowledged:
    """Returns the acknowledged state after the loss of the workflow."""
    return Acknowledged(lost=_last_holders(acknowledged))


def _last_holders(acknowledged: Acknowledged) -> tuple[str, ...]:
    """Returns the last holder of each rank. The lost workflow may have known a fault of a rank that has no pod now."""
    now, before = acknowledged.sighting.holders if acknowledged.sighting else (), acknowledged.lost
    if len(now) != len(before):
        return now or before
    return tuple(new or old for new, old in zip(now, before, strict=True))
