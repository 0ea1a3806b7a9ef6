"""Command that tests nodes of a job, and its output."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from rekindle.cli.output import Format, Output
from rekindle.cli.recover import DryRun, asked_for
from rekindle.errors import BadInput
from rekindle.model.incident import ModeRequest
from rekindle.model.mode import Mode
from rekindle.model.stress import Op, StressRequest

OPS = {"compute": Op.COMPUTE, "p2p": Op.MESSAGES, "memory": Op.MEMORY}


async def stress_test(
    job: str,
    *,
    node: Annotated[Sequence[str], Parameter(help="Only this node; several times for several. By default all of the job.")] = (),
    ops: Annotated[str, Parameter(help="Of compute, p2p, memory (not with every training side), with commas.")] = "compute,p2p",
    dry_run: DryRun = False,
    output: Output = Format.TEXT,
) -> int:
    """Test devices of JOB (name or id) while training pauses. Nodes with faults are isolated, and training goes on without them.

    Example: rekindle stress-test gpt --node node-1 --ops compute,memory
    """
    request = ModeRequest(mode=Mode.STRESS_TEST, stress=_wanted(node, ops))
    return await asked_for(request, job, output, dry_run=dry_run)


def _wanted(nodes: Sequence[str], ops: str) -> StressRequest:
    named = [name.strip() for name in ops.split(",")]
    wrong = next((name for name in named if name not in OPS), None)
    if wrong is not None:
        raise BadInput(f"--ops: {wrong!r} is no check, accepted are {', '.join(OPS)}")
    numbers = tuple(int(OPS[name]) for name in dict.fromkeys(named))
    if "" in nodes:
        raise BadInput("--node: empty, accepted are names of nodes, as in: rekindle nodes")
    return StressRequest(nodes=dict.fromkeys(nodes, numbers)) if nodes else StressRequest(all_nodes=numbers)
