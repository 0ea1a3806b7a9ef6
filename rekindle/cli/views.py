"""Links to Temporal's web UI with a filter: its own first page shows every workflow, and not what is wrong."""

from urllib.parse import quote

from rekindle.ids import Workflows
from rekindle.model.recovery import Outcome
from rekindle.temporal import Attributes

LIVING = f'(WorkflowType = "{Workflows.TRAINING_JOB}" AND ExecutionStatus = "Running")'
ENDS = ", ".join(f'"{outcome}"' for outcome in (Outcome.GIVEN_UP, Outcome.IGNORED))
NOW = (
    f'{LIVING} OR (WorkflowId STARTS_WITH "recovery/" AND (ExecutionStatus = "Running" OR {Attributes.VERDICT.name} IN ({ENDS})))'
)
"""Jobs that live, recoveries that run, and those at whose end a person has to look."""


def of_job(name: str) -> str:
    """The job itself, and all of its recoveries."""
    return f'{Attributes.JOB.name} = "{name}" AND ({LIVING} OR WorkflowId STARTS_WITH "recovery/")'


def link(ui: str, query: str, namespace: str = "default") -> str:
    """Address of the list of workflows with this query.

    Args:
        ui: address of the web UI.
    """
    return f"{ui.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows?query={quote(query, safe='')}"
