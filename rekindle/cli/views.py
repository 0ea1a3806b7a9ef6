"""Links to Temporal's web UI with a filter. The UI's own first page shows every workflow, not only those that need attention."""

from urllib.parse import quote

from rekindle.ids import Workflows
from rekindle.model.mode import Outcome
from rekindle.temporal import Attributes

LIVING = f'(WorkflowType = "{Workflows.TRAINING_JOB}" AND ExecutionStatus = "Running")'
ENDS = ", ".join(f'"{outcome}"' for outcome in (Outcome.GIVEN_UP, Outcome.IGNORED))
NOW = (
    f'{LIVING} OR (WorkflowId STARTS_WITH "recovery/" AND (ExecutionStatus = "Running" OR {Attributes.VERDICT.name} IN ({ENDS})))'
)
"""Query for running jobs, running recoveries, and recoveries after which a person has to look."""


def of_job(name: str) -> str:
    """Returns the query for a job and all of its recoveries."""
    return f'{Attributes.JOB.name} = "{name}" AND ({LIVING} OR WorkflowId STARTS_WITH "recovery/")'


def link(ui: str, query: str, namespace: str = "default") -> str:
    """Returns the address of the list of workflows with this query.

    Args:
        ui: address of the web UI.
    """
    return f"{ui.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows?query={quote(query, safe='')}"
