"""What a job's workflow has to be told: how the cluster differs from what the workflow acknowledged last. Pure.

Called by the watcher, which keeps the two values in memory for each job. Whatever was missed, repeated or forgotten on the way,
the next look finds the same difference or none. docs/intake.md has the rule, the cases and an example.
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
from rekindle.policy.sighting import end_of, sight


class Register(Value):
    """Starts the job's workflow where there is none. Carries the sighting too, so that one update tells all."""

    registration: Registration


class Sighted(Value):
    sighting: Sighting


class End(Value):
    reason: str


News = Register | Sighted | End


class Shown(Value):
    """What the cluster shows of a job now."""

    job: Job | None = None
    """What its object says; None: that means nothing."""

    refused: str = ""
    """Why it means nothing."""

    observe: bool = False
    """Nothing is to be done for the job, whatever else its object says."""

    ended: str = ""
    """Why the job is over; empty: it lives."""

    sighting: Sighting = Sighting()
    remembered: Remembered = Remembered()


class Acknowledged(Value):
    """What a job's workflow has acknowledged. A new watcher begins with nothing, and so does a job whose workflow is lost."""

    job: Job | None = None
    sighting: Sighting | None = None
    """None: nothing is known of what it holds, so that it is told, even if nothing is wrong."""

    reached: bool = False
    """Something was sent to it, though perhaps not confirmed: it must learn of the job's end."""

    lost: tuple[str, ...] = ()
    """Holders of the ranks, as a workflow knew them that is lost: the next one is told."""

    declined: Job | None = None
    """What its workflow refused to register: it is not repeated until the job's object says something else, or all of the cluster
    is listed anew."""


def shown(view: JobView, installation: Limits, rules: Rules | None = None) -> Shown:
    """The first of the two values.

    Args:
        installation: limits that hold where the job names none of its own.
        rules: what of its nodes and pods is a fault; by default the ready-made set `plain`.
    """
    ended = end_of(view.job)
    if ended or view.job is None:
        return Shown(ended=ended)
    known = Shown(observe=view.job.observe, sighting=sight(view, rules), remembered=_remembered(view.job))
    try:
        return known.model_copy(update={"job": job_of(view.job, installation)})
    except BadInput as error:
        return known.model_copy(update={"refused": str(error)})


def _remembered(job: JobObject) -> Remembered:
    """What an earlier workflow of the job left on its object. People write there too, and copy another job's object: what
    cannot be read, or is of another one, is nothing."""
    try:
        remembered, _ = stored.read(Remembered, json.loads(job.metadata.annotations[MEMORY]), needed=("job",))
    except (KeyError, ValueError):
        return Remembered()
    return remembered if remembered and remembered.job == job.metadata.uid else Remembered()


def due(now: Shown, acknowledged: Acknowledged) -> News | None:
    """What has to be told; None: the workflow knows all of it."""
    if now.ended:
        return End(reason=now.ended) if acknowledged.reached else None
    job = _said(now.job, acknowledged.job) if now.job else None
    accepted = job is not None and job != acknowledged.declined
    if job and accepted and job != acknowledged.job:
        registration = Registration(job=job, sighting=now.sighting, remembered=now.remembered, holders=acknowledged.lost)
        return Register(registration=registration)
    if not accepted and now.observe and not (acknowledged.job and acknowledged.job.observe):
        return None  # the workflow does not know that nothing is to be done for the job, and cannot be told
    return Sighted(sighting=now.sighting) if _differs(now.sighting, acknowledged.sighting) else None


def _said(job: Job, before: Job | None) -> Job:
    """What counts of what an object says, beside what was registered. Pods that nobody controls speak for their job by turns: the
    first word holds. And while a downgrade stands, the policy in the label is the workflow's own writing."""
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
    """Messages are for people: one that alone is another (a temperature, a counter) is no news."""
    return before is None or (now != before and _without_messages(now) != _without_messages(before))


def _without_messages(sighting: Sighting) -> Sighting:
    faults = tuple(fault.model_copy(update={"message": ""}) for fault in sighting.faults)
    standbys = tuple(one.model_copy(update={"waits": one.waits[:1], "wrong": one.wrong[:1]}) for one in sighting.standbys)
    return sighting.model_copy(update={"faults": faults, "standbys": standbys})


def is_urgent(news: News, acknowledged: Acknowledged) -> bool:
    """Whether it is told at once. A job whose pods come one by one has time; whatever goes wrong or heals has not."""
    before = acknowledged.sighting
    if not isinstance(news, Sighted) or before is None or len(news.sighting.holders) != len(before.holders):
        return True
    now = news.sighting
    grown = all(old in ("", new) for old, new in zip(before.holders, now.holders, strict=True))
    same = (now.faults, now.problems) == (before.faults, before.problems)
    return not (grown and same and before.manager in ("", now.manager))


def is_calm(news: News) -> bool:
    """A registration of a job with which all is well: of these there are thousands when a watcher starts."""
    if not isinstance(news, Register) or (seen := news.registration.sighting) is None:
        return False
    return all(seen.holders) and not seen.faults and not seen.problems


def dated(news: News, seen_at: Mapping[str, datetime]) -> News:
    """With the times at which the faults were seen first, which are for people: no two sightings are compared by them."""
    if isinstance(news, Register) and (seen := news.registration.sighting):
        return Register(registration=news.registration.model_copy(update={"sighting": _dated(seen, seen_at)}))
    return Sighted(sighting=_dated(news.sighting, seen_at)) if isinstance(news, Sighted) else news


def _dated(sighting: Sighting, seen_at: Mapping[str, datetime]) -> Sighting:
    faults = tuple(fault.model_copy(update={"seen_at": seen_at.get(fault.id)}) for fault in sighting.faults)
    return sighting.model_copy(update={"faults": faults})


# ---- what becomes of what was told


def acknowledge(acknowledged: Acknowledged, news: News) -> Acknowledged:
    """The workflow took it."""
    if isinstance(news, End):
        return Acknowledged()
    if isinstance(news, Sighted):
        return acknowledged.model_copy(update={"sighting": news.sighting, "reached": True, "lost": _last_holders(acknowledged)})
    told = news.registration
    return Acknowledged(job=told.job, sighting=told.sighting, reached=True, lost=_last_holders(acknowledged))


def met(acknowledged: Acknowledged) -> Acknowledged:
    """Returns that of a job whose workflow an earlier watcher has told something: it must learn of the job's end."""
    return acknowledged.model_copy(update={"reached": True})


def unconfirmed(acknowledged: Acknowledged, news: News) -> Acknowledged:
    """Nobody knows whether the workflow took it, so that whatever holds by then is told, even if that is what it knew before. It
    may be lost already: who held the ranks is not forgotten."""
    if isinstance(news, Sighted):
        return acknowledged.model_copy(update={"sighting": None, "reached": True, "lost": _last_holders(acknowledged)})
    return Acknowledged(reached=True, lost=acknowledged.lost)


def decline(acknowledged: Acknowledged, news: News) -> Acknowledged:
    """The workflow does not want it: it is not repeated. What it acknowledged before such a registration still holds."""
    if isinstance(news, Register):
        return acknowledged.model_copy(update={"declined": news.registration.job})
    return acknowledge(acknowledged, news)


def reconsidered(acknowledged: Acknowledged) -> Acknowledged:
    """What was refused may be taken now: by a newer version of the workflow, or by a worker that understands it."""
    return acknowledged.model_copy(update={"declined": None})


def unknown(now: Shown, acknowledged: Acknowledged, news: News) -> Acknowledged:
    """There is no workflow. That is well if the job is over. Otherwise the job is registered; if its object means nothing, nobody
    can be told until it does."""
    if isinstance(news, Sighted) and (now.job is None or acknowledged.declined is not None):
        return Acknowledged(sighting=news.sighting, declined=acknowledged.declined)
    return forgotten(acknowledged)


def forgotten(acknowledged: Acknowledged) -> Acknowledged:
    """Its workflow is gone, and with it all that it had acknowledged."""
    return Acknowledged(lost=_last_holders(acknowledged))


def _last_holders(acknowledged: Acknowledged) -> tuple[str, ...]:
    """Who held each rank last. One that has lost its pod may be a fault that its workflow knew of, and nobody would know of any
    more."""
    now, before = acknowledged.sighting.holders if acknowledged.sighting else (), acknowledged.lost
    if len(now) != len(before):
        return now or before
    return tuple(new or old for new, old in zip(now, before, strict=True))
