"""Runs all checks of a job file, and finds the variables that it would be given."""

from rekindle.model import keys
from rekindle.policy.parameters import contradictions, own, pods, spelling
from rekindle.policy.parameters.environment import Table, variables
from rekindle.policy.parameters.findings import Finding, Level, Wishes
from rekindle.policy.parameters.job_file import JobFile


def findings(job: JobFile) -> list[Finding]:
    """Returns what is wrong with a job, errors first. Each field and message is there once."""
    found = [finding for check in (spelling, contradictions, pods, own) for finding in check.check(job)]
    return sorted(dict.fromkeys(found), key=lambda finding: finding.level is Level.WARNING)


def injected(job: JobFile, table: Table) -> dict[str, str]:
    """Returns the variables that its containers are given, by name: by the Ascend Operator, or by the admission webhook."""
    wishes = Wishes(job)
    said = job.annotation(keys.RECOVER_STRATEGY)
    return variables(
        said.split(",") if said else [],
        wishes.framework,
        pod_rescheduling=wishes.pod_rescheduling,
        hot_switch=wishes.hot_switch,
        table=table,
    )
