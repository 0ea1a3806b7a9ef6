"""Start commands that were written for `torchrun`: each works with `rekindle-train` in its place, or is refused by name."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from rekindle.cli.ports import free_ports
from rekindle_training.launcher.arguments import parse
from rekindle_training.launcher.flags import UsageInvalid
from tests.training.processes import Process, Zygote

HERE = socket.gethostname()
ELSEWHERE = "192.0.2.1"
"""An address for documentation, which no machine has."""
JOB = {"MINDX_TASK_ID": "a-job"}

TRAINS = """
import os, torch, torch.distributed as dist
import rekindle_training

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
    for step in training.steps(2):
        with step:
            model(torch.ones(2)).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
    os.write(1, f"trained {training.rank} of {training.world_size}\\n".encode())
"""
SETS_ADDRESS = 'import os\nos.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"\n'

Line = Callable[..., Awaitable[Process]]


@pytest_asyncio.fixture
async def line(tmp_path: Path, zygote: Zygote) -> AsyncIterator[Line]:
    """Starts a script by a line. A process that a failing test leaves is ended."""
    started: list[Process] = []

    async def line(*flags: str, script: str = TRAINS, **environment: str) -> Process:
        (tmp_path / "train.py").write_text(script)
        (tmp_path / "output.log").touch()
        variables = {"REKINDLE_JOB_DIR": str(tmp_path), **environment}
        argv = ["--start-method=fork", *flags, str(tmp_path / "train.py")]
        started.append(await zygote.run("train", argv, variables, tmp_path / "output.log"))
        return started[-1]

    yield line
    for process in started:
        process.kill()
        await process.code()
        print(process.output.read_text())


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        (["--standalone", "--nproc-per-node=2"], {"MASTER_ADDR": ELSEWHERE, "MASTER_PORT": "1"}),
        (["--standalone", "--nproc-per-node=2", f"--master-addr={ELSEWHERE}", "--master-port=29501"], {}),
        (["--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"], {"MASTER_ADDR": ELSEWHERE}),
        (["--nnodes=1:1", "--nproc_per_node=2", "--rdzv_id=7", "--rdzv_backend=c10d", f"--rdzv_endpoint={HERE}:29400"], {}),
        (["--nnodes=1", "--nproc-per-node=2", "--node-rank=0", f"--master-addr={HERE}", "--master-port=29501"], {}),
        (["--nproc-per-node=2", "--rdzv-endpoint=[::1]:29400", "--role=trainer", "--run-path"], {}),
        ([], {"PET_STANDALONE": "1", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": ELSEWHERE}),
    ],
    ids=["standalone", "standalone and an address", "c10d", "an endpoint", "an address", "IPv6", "variables"],
)
async def test_a_line_of_one_machine_trains(flags: list[str], environment: dict[str, str], line: Line) -> None:
    """Ranks and manager have one address, whatever address the line or the environment says for one machine."""
    process = await line(*flags, **environment)
    assert await process.code() == 0
    assert "trained 0 of 2" in process.output.read_text()
    assert "trained 1 of 2" in process.output.read_text()


async def test_a_script_that_sets_the_address_itself_trains(line: Line) -> None:
    """A script may set the address before `init_process_group`, as tutorials do. The ranks meet where the launcher says."""
    process = await line("--standalone", "--nproc-per-node=2", script=SETS_ADDRESS + TRAINS)
    assert await process.code() == 0


@pytest.mark.parametrize(
    ("flags", "environment", "named"),
    [
        (["--master-addr=192.0.2.1"], {}, r"--master-addr 192\.0\.2\.1: this machine has no such name .*leave --master-addr out"),
        (["--rdzv-endpoint=nowhere.invalid:29400"], {}, r"--rdzv-endpoint nowhere\.invalid: this machine has no such name"),
        (["--rdzv-endpoint=localhost:many"], {}, r"--master-port many: accepted is a port from 0 to 65535"),
        ([], {"PET_NNODES": "1:4"}, r"--nnodes 1:4: accepted .*\(the environment has PET_NNODES=1:4\)"),
        (
            [],
            {"PET_NNODES": "2"},
            r"--nnodes 2: a job without MINDX_TASK_ID and MINDX_SERVER_IP runs on one machine.* PET_NNODES=2",
        ),
        (["--rdzv-backend=etcd-v2"], {}, r"--rdzv-backend etcd-v2: .*accepted are static, c10d and rekindle"),
        (["--local-ranks-filter=0"], {}, r"--local-ranks-filter is not accepted: use --redirects"),
        (["--numa-binding=node"], {}, r"--numa-binding is not accepted"),
        (["--virtual-local-rank"], {}, r"--virtual-local-rank is not accepted"),
        (["--signals-to-handle=SIGTERM,TERM"], {}, r"--signals-to-handle TERM: accepted are names of signals"),
        (["--grace-seconds=0"], {}, r"--grace-seconds 0: accepted is a whole number from 1"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(flags: list[str], environment: dict[str, str], named: str) -> None:
    """The option is refused before anything starts. The error names the flag, or the variable that stands for it, and what is
    accepted."""
    with pytest.raises(UsageInvalid, match=named):
        parse([*flags, "x.py"], environment)


def test_a_flag_goes_before_its_variable() -> None:
    """A flag takes precedence over its variable, as with torchrun. An empty variable, or a switch that is 0, is ignored."""
    variables = {"PET_NPROC_PER_NODE": "3", "PET_NO_PYTHON": "0", "PET_MAX_RESTARTS": "", "PET_SHUTDOWN_TIMEOUT": "9"}
    found = parse(["--nproc-per-node=2", "x.py"], variables)
    assert (found.nproc_per_node, found.runs_as, found.max_restarts, found.grace_seconds) == (2, "script", 0, 9)
    assert parse(["x.py"], variables).nproc_per_node == 3


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"RANK": "1"}, 1),
        ({"NODE_RANK": "1", "RANK": "17"}, 1),
        ({"PET_NODE_RANK": "2", "RANK": "2", "WORLD_SIZE": "4"}, 2),
        ({"JOB_COMPLETION_INDEX": "2"}, 2),
        ({"PET_NODE_RANK": "3", "JOB_COMPLETION_INDEX": "3"}, 3),
        ({"REKINDLE_JOB_INDEX": "1", "REKINDLE_PODS_PER_JOB": "2", "JOB_COMPLETION_INDEX": "1"}, 3),
        ({"REKINDLE_POD_RANK": "0", "PET_NODE_RANK": "1", "NODE_RANK": "2", "RANK": "3"}, 0),
        ({"REKINDLE_POD_RANK": "", "NODE_RANK": "first", "RANK": "1"}, 1),
    ],
)
def test_the_rank_of_the_pod_is_read_where_other_controllers_write_it(variables: dict[str, str], rank: int) -> None:
    """The cluster's own value counts first. A number that is no rank of a pod means something else."""
    assert parse(["--nnodes=4", "x.py"], {**JOB, **variables}).node_rank == rank
    if "REKINDLE_POD_RANK" not in variables:
        assert parse(["--nnodes=4", "--node-rank=1", "x.py"], {**JOB, **variables}).node_rank == 1


@pytest.mark.parametrize(
    ("flags", "variables", "named"),
    [
        ([], {}, r"nothing says which of the 4 pods this one is: accepted are --node-rank, .*JOB_COMPLETION_INDEX"),
        ([], {"RANK": "17", "JOB_COMPLETION_INDEX": "4"}, r"is, RANK 17 is none, JOB_COMPLETION_INDEX 4 is none: accepted are"),
        ([], {"NODE_RANK": "1", "RANK": "0"}, r"NODE_RANK 1 and RANK 0 contradict each other: accepted is one rank of this pod"),
        ([], {"PET_NODE_RANK": "1", "JOB_COMPLETION_INDEX": "2"}, r"PET_NODE_RANK 1 and JOB_COMPLETION_INDEX 2 contradict"),
        (["--node-rank=1"], {"REKINDLE_POD_RANK": "2"}, r"--node-rank 1 and REKINDLE_POD_RANK 2 contradict"),
        ([], {"REKINDLE_POD_RANK": "4", "RANK": "1"}, r"REKINDLE_POD_RANK 4: accepted is a whole number from 0 to 3"),
        ([], {"REKINDLE_JOB_INDEX": "1", "JOB_COMPLETION_INDEX": "1"}, r"PER_JOB \(missing\) .*: accepted are the number of the"),
        (
            [],
            {"REKINDLE_JOB_INDEX": "1", "REKINDLE_PODS_PER_JOB": "1", "JOB_COMPLETION_INDEX": "1"},
            r"REKINDLE_JOB_INDEX 1, REKINDLE_PODS_PER_JOB 1 and JOB_COMPLETION_INDEX 1: accepted .* a number below that",
        ),
    ],
)
def test_a_pod_whose_rank_is_unsaid_or_contradicted_does_not_start(
    flags: list[str], variables: dict[str, str], named: str
) -> None:
    """Two pods of rank 0 would train as one: each source is named with what it says."""
    with pytest.raises(UsageInvalid, match=named):
        parse(["--nnodes=4", *flags, "x.py"], {**JOB, **variables})


PYTORCH_JOB = {
    "MASTER_PORT": "23456",
    "PET_MASTER_PORT": "23456",
    "MASTER_ADDR": "gpt-master-0",
    "PET_MASTER_ADDR": "gpt-master-0",
    "WORLD_SIZE": "4",
    "RANK": "1",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "2",
    "PET_NNODES": "2",
}
"""Returns what the training operator appends to the container of a worker."""

TRAIN_JOB = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "2",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "gpt-node-0-0.gpt",
    "PET_MASTER_PORT": "29500",
    "JOB_COMPLETION_INDEX": "1",
}
"""Returns what the trainer writes into the container of a node, and the Job controller."""


@pytest.mark.parametrize(
    ("flags", "appended", "meets"),
    [
        (["--master-addr=gpt-manager"], PYTORCH_JOB, ("gpt-manager", 29500)),
        (["--master-addr=gpt-manager", "--master-port=4000"], PYTORCH_JOB, ("gpt-manager", 4000)),
        (["--rdzv-endpoint=gpt-manager:4000"], PYTORCH_JOB, ("gpt-manager", 4000)),
        (["--rdzv-endpoint=gpt-manager"], TRAIN_JOB, ("gpt-manager", 29500)),
        (["--master-port=4000"], PYTORCH_JOB, ("gpt-master-0", 4000)),
        ([], PYTORCH_JOB, ("gpt-master-0", 23456)),
        ([], TRAIN_JOB, ("gpt-node-0-0.gpt", 29500)),
        ([], {**TRAIN_JOB, "MASTER_ADDR": "gpt-manager", "MASTER_PORT": "29500"}, ("gpt-manager", 29500)),
        (["--master_addr=gpt-manager"], {**TRAIN_JOB, "PET_RDZV_ENDPOINT": "elsewhere:1"}, ("gpt-manager", 29500)),
    ],
)
def test_the_command_line_goes_before_what_an_operator_appends(
    flags: list[str], appended: dict[str, str], meets: tuple[str, int]
) -> None:
    """The address of the manager, and its port with it; the number of pods and the pod's rank come from the operator."""
    found = parse([*flags, "x.py"], {"MINDX_SERVER_IP": "clusterd-grpc-svc.mindx-dl.svc", **appended})
    assert (found.master_addr, found.master_port) == meets
    assert (found.standalone, found.nnodes, found.nproc_per_node, found.node_rank) == (False, 2, 2, 1)


async def test_who_waits_for_a_manager_says_so_once(line: Line) -> None:
    """Launcher and ranks alike, with the address; training begins when the manager comes."""
    port = str(free_ports(1)[0])
    process = await line(
        MINDX_TASK_ID="a-job", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, LIMITS="wire.SILENT_SECONDS=0.2", PET_NPROC_PER_NODE="1"
    )
    said = f"manager not reached, waiting for it address=127.0.0.1:{port}"
    async with asyncio.timeout(60):
        while process.output.read_text().count(said) < 2:
            await asyncio.sleep(0.01)
    process.kill(signal.SIGTERM)
    assert await process.code() == 128 + signal.SIGTERM
    assert process.output.read_text().count(said) == 2
    assert f"{said} rank=0" in process.output.read_text()


async def test_other_signals_are_passed_on_where_the_line_says_so(line: Line) -> None:
    """A signal such as Slurm's, which comes before the end of a job, reaches the ranks and nothing else."""
    script = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: (os.write(1, b"told\\n"), sys.exit(0)))
os.write(1, b"ready\\n")
while True: time.sleep(0.01)
"""
    process = await line("--standalone", "--signals-to-handle=SIGTERM,SIGUSR1", script=script)
    async with asyncio.timeout(60):
        while "ready" not in process.output.read_text():
            await asyncio.sleep(0.01)
    process.kill(signal.SIGUSR1)
    assert await process.code() == 128 + signal.SIGUSR1
    assert "told" in process.output.read_text()


def test_a_rank_that_belongs_to_another_job_is_not_read() -> None:
    """A rank in the environment is not read where the line is typed in a terminal of a job's process."""
    assert parse(["x.py"], {"RANK": "3", "WORLD_SIZE": "8", "NODE_RANK": "1"}).node_rank == 0
