"""Text that people read in the Temporal UI about a job and a recovery: functions from state to text. Pure."""

from datetime import datetime

from temporalio.common import SearchAttributeKey

from rekindle.model import bounds
from rekindle.model.fault import Fault
from rekindle.model.incident import Incident
from rekindle.model.job import Job
from rekindle.model.mode import Mode
from rekindle.model.state import JobState, Standing
from rekindle.policy.dialogue.client_identity import doubts
from rekindle.policy.modes import cases, elastic
from rekindle.policy.modes.approvals import to_decide
from rekindle.policy.modes.cases import Case
from rekindle.policy.modes.job_phase import phase
from rekindle.policy.placement import standbys
from rekindle.temporal import Attributes

SHOWN_INCIDENTS = 5
SHOWN_FAULTS = 20


def job_phase(state: JobState, running: Mode | None) -> str:
    """Describes the state of the job in a word or two, for the list of workflows."""
    if running or state.ended or state.question or state.given_up:
        return phase(state, running)
    if state.job.observe:
        return "observed"
    return "sub-health ignored" if state.downgrade else phase(state, running)


def job_row(state: JobState, running: Mode | None) -> dict[SearchAttributeKey[str], str]:
    """Returns the search attributes of the job."""
    row = {Attributes.JOB: state.job.name, Attributes.PHASE: job_phase(state, running)}
    return {**row, Attributes.VERDICT: state.history[-1].verdict} if state.history else row


def job_page(state: JobState, running: Mode | None, recovery: str) -> str:
    """Returns the job's page in Markdown: its present state, its faults, and its last incidents, newest first."""
    lines = [f"**{state.job.name}**: {job_phase(state, running)}"]
    if recovery:
        lines.append(f"- running: {running} (workflow `{recovery}`)")
    lines.extend(f"- **{words}**" for words in to_decide(state))
    if state.job.observe:
        lines.append("- only observed: what would be done is shown, nothing is ordered")
    lines.extend(f"- cannot be recovered: {problem}" for problem in state.problems)
    if state.job.no_restart:
        lines.append(f"- {state.job.no_restart}")
    lines.extend(f"- on the backup link: {bounds.numbered('rank', one.ranks)} ({one.maintenance})" for one in state.links)
    lines.append(f"- sub-health policy: {state.policy}")
    if state.downgrade:
        lines.append(f"  (downgraded {_moment(state.downgrade.since)}: {state.downgrade.reason})")
    lines.extend(f"- {doubt}" for doubt in doubts(state.manager_lost, state.unsure_since is not None))
    if standing_by := standbys.words(state):
        lines.append(f"- {standing_by}")
    if state.small:
        lines.append(f"- {elastic.words(state, _moment(state.small.since))}")
    lines.append(f"- stream: {state.attachment.queue if state.attachment else 'not attached'}")
    lines.extend(_fault(one) for one in state.faults[:SHOWN_FAULTS])
    if len(state.faults) > SHOWN_FAULTS:
        lines.append(f"- and {len(state.faults) - SHOWN_FAULTS} more faults")
    lines.extend(_incident(incident) for incident in reversed(state.history[-SHOWN_INCIDENTS:]))
    return bounds.details("\n".join(lines))


def _fault(one: Standing) -> str:
    since = f" since {_moment(one.fault.accepted_at)}" if one.fault.accepted_at else ""
    return f"- fault{since}: {cases.describe(one.fault)}" + (f" ({one.judged})" if one.judged else "")


def _incident(incident: Incident) -> str:
    tried = ", ".join(f"{verdict.mode} {verdict.outcome}" for verdict in incident.ladder)
    return f"- incident {incident.number}: {incident.summary} -> {tried} in {incident.seconds:.1f} s"


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def recovery_summary(mode: Mode, job: Job, case: Case) -> str:
    """Returns the summary of a recovery for the list of workflows, in one line."""
    return bounds.summary(f"{mode} of {job.name}: {case.summary}")


def recovery_details(mode: Mode, job: Job, incident: int, case: Case) -> str:
    """Describes a recovery: its faults, the modes that are tried, and the limit of each wait. Markdown."""
    faults = "\n".join(_line(fault) for fault in case.faults[:SHOWN_FAULTS])
    ladder = " -> ".join(f"**{m}**" if m is mode else m for m in case.plan.modes)
    limits = "\n".join(f"- {name}: {value.total_seconds():g} s" for name, value in job.limits)
    return bounds.details(
        f"Incident {incident} of job `{job.name}` ({job.id}), {job.pods} pods, {job.ranks} ranks, "
        f"training side {job.training_side}\n\n**Fault**\n\n{faults or '- none: requested'}\n\n"
        f"**Ladder** {ladder}\n\n**Limits**\n\n{limits}"
    )


def _line(fault: Fault) -> str:
    words = " ".join(part for part in (fault.kind, fault.node, fault.pod, fault.code, fault.message) if part)
    return f"- {words} (seen by {fault.source})"
