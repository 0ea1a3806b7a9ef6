"""Measures the downtime of training after a fault: Rekindle, its lower bounds, torchrun and, with --peers, other systems.

    python -P -m benchmarks.process_recovery [--rounds 10] [--peers] [--only NAME]

All rows use one machine, one run and one clock. Four gloo ranks train the small GPT of the examples with DDP, on data that
depends on step and rank only. Rank 1 records the time and injects the fault between the forward and the backward pass, while the
others wait for it. Each system has a script in its idiom in `benchmarks/peers/`, and the settings with which it is fast. The
peers are installed on first use, in pinned versions, into a virtual environment under ~/.cache/rekindle; nothing of Rekindle
needs them.
"""

import argparse
import difflib
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import psutil
import torch
from rich.console import Console

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "benchmarks" / "peers"
REQUIREMENTS = SCRIPTS / "requirements.txt"
CACHE = Path("~/.cache/rekindle").expanduser()
WORLD = 4
STEPS = 60
LONG = 320
STRIKE_AT = 26
CHECKPOINT_EVERY = 10
LIMIT = 90.0
TRIES = 10
"""Limits: seconds of one job (`LIMIT`), after which it has not come back, and tries to end its processes (`TRIES`)."""
FAULTS = {"kill": "kill -9", "exception": "an exception", "stop": "SIGSTOP"}
RESTARTS = ("--max-restarts", "3", "--monitor-interval", "0.1")
STOPS = ("--shutdown-timeout", "1")
WATCHES = (
    *("--workers-stop-timeout", "1", "--ft-workload-check-interval", "0.1", "--ft-rank-heartbeat-timeout", "1"),
    *("--ft-initial-rank-heartbeat-timeout", "60", "--ft-enable-nic-monitor", "false"),
)
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Environment with which a restart of torchrun uses a store of its own."""
NOTES = """\
- *Goes on* is the first step behind the fault that all which take part in it have completed, be it one that was done before;
  *struck step done* the first one by which nothing is missing any more, *four ranks again* the first one of four. *Steps redone*
  had been completed. *Lines* are of code, added to the plain script or in place of one of its; indentation does not count.
- A restart from a checkpoint ends with other bits since DDP, recreated, sums one step in its first order of buckets; with
  `find_unused_parameters=True`, which keeps that order, torchrun's are equal.
"""

console = Console(width=130)


@dataclass(frozen=True)
class Program:
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class System:
    name: str
    script: str
    configuration: str
    programs: Callable[[str, str], list[Program]]
    """Returns the programs to start, for the interpreter and the script."""
    peer: bool = False
    steps: int = STEPS
    timeouts: Mapping[str, float] = field(default_factory=dict)
    """Timeouts in seconds of the script's groups or monitors, by fault, where the default is not used."""
    stop: str = ""
    """Mechanism by which the system detects a stopped process."""


@dataclass(frozen=True)
class Line:
    """Line of a step log: a completed step."""

    step: int
    rank: int
    world: int
    end: float
    pid: int


@dataclass(frozen=True)
class Recovery:
    """Result of one job. Seconds are counted from the fault; None: the event did not happen."""

    goes_on: float | None
    """Time at which a step was completed by all participating ranks, as many as the system then wanted."""
    whole: float | None
    """Time at which a step was completed by as many ranks as before."""
    caught_up: float | None
    """Time at which the step of the fault was completed, so that no earlier work is missing."""
    redone: int
    final: frozenset[str]
    """Digests of the ranks' last parameters."""


def recovery(lines: Iterable[Line], struck: float, step: int, final: frozenset[str], world: int = WORLD) -> Recovery:
    """Returns the recovery that the lines of the step logs show after the fault."""
    all_lines = sorted(lines, key=lambda line: line.end)
    behind = [line for line in all_lines if line.end > struck]
    ends: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for line in behind:
        ends[line.step, line.world].setdefault(line.rank, line.end)
    together = {key: max(of.values()) - struck for key, of in ends.items() if len(of) >= key[1]}
    counts: dict[int, list[int]] = defaultdict(list)
    for line in all_lines:
        counts[line.rank].append(line.step)
    return Recovery(
        min(together.values(), default=None),
        min((seconds for (_, took_part), seconds in together.items() if took_part >= world), default=None),
        min((seconds for (done, _), seconds in together.items() if done >= step), default=None),
        max((len(steps) - len(set(steps)) for steps in counts.values()), default=0),
        final,
    )


def systems() -> Iterator[System]:
    """Yields the systems in the order of the table."""
    for name, flags in (
        ("Rekindle, a spare, forked", ("--spares", "1", "--start-method", "fork")),
        ("Rekindle, no spare, forked", ("--start-method", "fork")),
        ("Rekindle, no spare, cold", ()),
    ):
        configuration = f"`{' '.join(('rekindle-train', *_standalone(), *flags))}`"
        yield System(name, "rekindle.py", configuration, _rekindle(flags), stop="1 s, fixed")
    yield System(
        "torchrun",
        "torchrun.py",
        f"`torchrun {' '.join((*_standalone(), *RESTARTS, *STOPS))}` with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, "
        "without which restarted ranks read gloo addresses of dead ones and do not come back; for SIGSTOP gloo's timeout of "
        "5 s, which covers the start, too, and torchrun then "
        "waits 30 s for the stopped process, whatever `--shutdown-timeout` says",
        lambda python, script: [Program((*_torchrun(python), *_standalone(), *RESTARTS, *STOPS, script), OWN_STORE)],
        timeouts={"": 1800, "stop": 5},
        stop="gloo's timeout, 5 s",
    )
    yield System(
        "NVRx in-process, a rank in reserve",
        "nvrx_inprocess.py",
        "`inprocess.Wrapper` with `MaxActiveWorldSize(4)`, `FillGaps()` and a fifth process; intervals and `last_call_wait` "
        "0.05 s; `soft_timeout` and `heartbeat_timeout` 10 s, for SIGSTOP 2 s, `hard_timeout` half as much again; gloo's "
        "timeout 1 s, since its abort ends collectives of NCCL only, and living ranks wait in those of gloo until then",
        _nvrx_inprocess,
        peer=True,
        timeouts={"": 10, "stop": 2},
        stop="`hard_timeout`, 3 s",
    )
    yield System(
        "NVRx ft_launcher",
        "nvrx_ft_launcher.py",
        f"`ft_launcher {' '.join((*RESTARTS, *WATCHES))}`",
        lambda python, script: [Program((str(Path(python).parent / "ft_launcher"), *_rendezvous(), *RESTARTS, *WATCHES, script))],
        peer=True,
        stop="heartbeats, 1 s",
    )
    for name, groups, wants, mode in (
        ("torchft, goes on with three", WORLD, WORLD - 1, "`DYNAMIC`"),
        ("torchft, a spare group", WORLD + 1, WORLD, "`FIXED_WITH_SPARES`"),
    ):
        yield System(
            name,
            "torchft.py",
            f"`torchft_lighthouse {' '.join(_lighthouse(wants))}`; {groups} groups of one rank, each under `torchrun "
            f"{' '.join((*RESTARTS, *STOPS))}`; {mode}; gloo's timeout 1 s; {LONG} steps, not {STEPS}, "
            "in which a rank comes back",
            _torchft(groups, wants),
            peer=True,
            steps=LONG,
            stop="gloo's timeout, 1 s",
        )


def _standalone() -> tuple[str, ...]:
    return ("--standalone", "--nproc-per-node", str(WORLD))


def _rendezvous() -> tuple[str, ...]:
    """Returns the options for which --standalone is an abbreviation."""
    return ("--nnodes", "1", "--nproc-per-node", str(WORLD), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{_ports()}")


def _torchrun(python: str) -> tuple[str, ...]:
    return (python, "-m", "torch.distributed.run")


def _rekindle(flags: tuple[str, ...]) -> Callable[[str, str], list[Program]]:
    return lambda python, script: [Program((python, "-m", "rekindle_training.launcher.main", *_standalone(), *flags, script))]


def _nvrx_inprocess(python: str, script: str) -> list[Program]:
    """Returns one program per process, started as by Slurm: torchrun would end all when one is lost, says its documentation."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_ports()), "WORLD_SIZE": str(WORLD + 1)}
    return [Program((python, "-u", script), {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(WORLD + 1)]


def _lighthouse(wants: int) -> tuple[str, ...]:
    return (
        *("--min_replicas", str(wants), "--join_timeout_ms", "1000"),
        *("--quorum_tick_ms", "50", "--heartbeat_timeout_ms", "500"),
    )


def _torchft(groups: int, wants: int) -> Callable[[str, str], list[Program]]:
    def programs(python: str, script: str) -> list[Program]:
        port = _ports()
        lighthouse = Program(
            (str(Path(python).parent / "torchft_lighthouse"), "--bind", f"127.0.0.1:{port}", *_lighthouse(wants))
        )
        start = (*_torchrun(python), "--standalone", "--nproc-per-node", "1", *RESTARTS, *STOPS, script)
        variables = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "NUM_REPLICA_GROUPS": str(groups)}
        return [lighthouse, *(Program(start, {**variables, "REPLICA_GROUP_ID": str(group)}) for group in range(groups))]

    return programs


def _ports() -> int:
    """Returns the first of three consecutive free ports."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
        try:
            for number in (port + 1, port + 2):
                with socket.socket() as other:
                    other.bind(("127.0.0.1", number))
        except OSError:
            continue
        return port


def run(system: System, fault: str, python: str, folder: Path) -> Recovery:
    """Runs one job, from its start until all ranks have written their last parameters."""
    folder.mkdir()
    variables = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'training' / 'src'}",
        "PYTHONSAFEPATH": "1",  # a script here has the same name as a module that it imports
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "REKINDLE_JOB_DIR": str(folder),
        "PEERS_FOLDER": str(folder),
        "PEERS_FAULT": fault,
        "PEERS_STEPS": str(system.steps),
        "PEERS_STRIKE_AT": str(STRIKE_AT),
        "PEERS_CHECKPOINT_EVERY": str(CHECKPOINT_EVERY),
        "PEERS_TIMEOUT": str(system.timeouts.get(fault, system.timeouts.get("", 0))),
    }
    try:
        with (folder / "output.log").open("wb") as log:
            processes = [
                subprocess.Popen(
                    program.arguments,
                    env={**variables, **program.variables},
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                for program in system.programs(python, str(SCRIPTS / system.script))
            ]
        _wait(processes, folder)
    finally:
        _end(folder)
        for process in processes:
            process.wait()
    return _read(folder)


def _wait(processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Waits until all ranks are done or no process is left. If a stopped rank is never replaced, it waits 5 s for it after the
    others."""
    latest, seen = time.monotonic() + LIMIT, 0
    while time.monotonic() < latest and any(process.poll() is None for process in processes):
        done = _finals(folder)
        if len(done) >= WORLD:
            return
        if len(done) > seen:
            seen, latest = len(done), min(latest, time.monotonic() + 5)
        time.sleep(0.02)


def _finals(folder: Path) -> list[Path]:
    return [path for path in folder.glob("final-*") if path.suffix != ".part"]


def _end(folder: Path) -> None:
    """Kills all processes of the job in any session, found by the folder in their environment. A process may start others
    meanwhile."""
    found: list[psutil.Process] = []
    for _ in range(TRIES):
        found = [
            one for one in psutil.process_iter(["environ"]) if (one.info["environ"] or {}).get("PEERS_FOLDER") == str(folder)
        ]
        if not found:
            return
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=1)
    raise TimeoutError(f"processes of a job do not end, and would be measured with the next one: {found}")


def _read(folder: Path) -> Recovery:
    lines = [Line(**json.loads(line)) for path in folder.glob("steps-*") for line in path.read_text().splitlines()]
    final = frozenset(path.read_text() for path in _finals(folder))
    mark = folder / "struck"
    if not mark.exists():
        return Recovery(None, None, None, 0, final)
    struck = json.loads(mark.read_text())
    return recovery(lines, struck["time"], struck["step"], final)


def measure(system: System, rounds: int, python: str, keep: Path) -> list[str]:
    """Returns the rows of one system."""
    lines = differing(system.script)
    with tempfile.TemporaryDirectory(prefix="rekindle-recovery-") as scratch:
        undisturbed = run(system, "", python, Path(scratch) / "undisturbed").final
        if len(undisturbed) != 1:
            kept = _keep(Path(scratch) / "undisturbed", keep / f"{_slug(system.name)}.log")
            return [f"| {system.name} | none | did not run, see {kept} | | | | | | | | {lines} |"]
        rows = []
        for fault, called in FAULTS.items():
            found = []
            for number in range(rounds if fault == "kill" else max(rounds // 3, 1)):
                folder = Path(scratch) / f"{fault}-{number}"
                found.append(run(system, fault, python, folder))
                if found[-1].goes_on is None or len(found[-1].final) != 1:
                    _keep(folder, keep / f"{_slug(system.name)}-{fault}-{number}.log")
            label = f"{called} ({system.stop})" if fault == "stop" else called
            rows.append(_row(system.name, label, found, undisturbed, lines))
            console.print(rows[-1], soft_wrap=True, style="dim")
    return rows


def _row(name: str, fault: str, found: list[Recovery], undisturbed: frozenset[str], lines: int) -> str:
    seconds = [one.goes_on for one in found if one.goes_on is not None]
    count = f"{len(seconds)}" if len(seconds) == len(found) else f"{len(seconds)} of {len(found)}"
    redone = [one.redone for one in found if one.goes_on is not None]
    equal = sum(one.final == undisturbed for one in found)
    cells = (
        *((f"{value:.2f}" for value in (median(seconds), p95(seconds), max(seconds))) if seconds else ("-",) * 3),
        count,
        _median(one.caught_up for one in found),
        _median(one.whole for one in found),
        f"{median(redone):g}" if redone else "-",
        f"{equal} of {len(found)}",
    )
    return f"| {name} | {fault} | {' | '.join(cells)} | {lines} |"


def p95(seconds: list[float]) -> float:
    return quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]


def _median(values: Iterable[float | None]) -> str:
    seconds = [value for value in values if value is not None]
    return f"{median(seconds):.2f}" if seconds else "never"


def _keep(folder: Path, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(folder / "output.log", path))


def _slug(name: str) -> str:
    return re.sub("[^a-z0-9]+", "-", name.lower())


def differing(script: str) -> int:
    """Returns the number of lines that a script adds to the plain one or replaces in it; indentation does not count."""
    before, after = (_code((SCRIPTS / name).read_text()) for name in ("plain.py", script))
    return sum(line.startswith("+ ") for line in difflib.ndiff(before, after))


def _code(text: str) -> list[str]:
    behind_docstring = text.split('"""', 2)[2]
    return [line.strip() for line in behind_docstring.splitlines() if line.strip()]


def floors(rounds: int) -> Iterator[str]:
    """Yields the lower bounds: rebuilding a group of living processes with a state copy, and starting a process that loads
    torch."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.floor", str(rounds)], check=True, capture_output=True, text=True, timeout=300
    )
    yield _floor("floor: gloo group rebuilt by four living processes, and state copied", json.loads(done.stdout.splitlines()[-1]))
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch.distributed"], check=True)
        seconds.append(time.perf_counter() - began)
    yield _floor("floor: one Python process is started and loads torch", seconds)


def _floor(name: str, seconds: list[float]) -> str:
    values = (median(seconds), p95(seconds), max(seconds))
    return f"| {name} | - | {' | '.join(f'{value:.2f}' for value in values)} | {len(seconds)} | - | - | - | - | - |"


def peers_python() -> str:
    """Returns the interpreter of the peers' environment, which uses this environment's torch and is created on first use."""
    wanted = REQUIREMENTS.read_text()
    home = CACHE / f"peers-{platform.python_version()}"
    python, mark = home / "bin" / "python", home / "requirements.txt"
    if not mark.exists() or mark.read_text() != wanted:
        console.print(f"installing the peers into {home}", style="dim")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(REQUIREMENTS)]
        subprocess.run(install, check=True)
        site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        (site / "torch-of-the-project.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
        mark.write_text(wanted)
    return str(python)


def _versions() -> str:
    names = ("nvidia-resiliency-ext", "torchft-nightly")
    pinned = [line for line in REQUIREMENTS.read_text().splitlines() if line.startswith(names)]
    return ", ".join(line.replace("==", " ") for line in pinned)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--rounds",
        type=int,
        default=10,
        help="jobs of each system with kill -9, and a third of it with other faults (default: 10)",
    )
    parser.add_argument("--peers", action="store_true", help="systems of others, too, which are installed on first use")
    parser.add_argument("--only", default="", help="systems whose name this expression is found in; '^$': floors only")
    parser.add_argument(
        "--keep",
        type=Path,
        default=Path("recovery-logs"),
        help="where logs of jobs that do not go on, or whose ranks end apart, are kept",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # a running job is ended too
    chosen = [system for system in systems() if re.search(options.only, system.name) and (options.peers or not system.peer)]
    compare(chosen, options.rounds, options.keep)


def compare(chosen: list[System], rounds: int, keep: Path) -> None:
    """Prints the table of these systems and the lower bounds."""
    peers = any(system.peer for system in chosen)
    python = peers_python() if peers else sys.executable
    rows = list(floors(rounds))
    for system in chosen:
        rows += measure(system, rounds, python if system.peer else sys.executable, keep)
    console.print(
        f"{os.cpu_count()} cores, load average {os.getloadavg()[2]:.1f}; Python {platform.python_version()}, "
        f"torch {torch.__version__}" + (f", {_versions()}" if peers else "") + f"; {WORLD} gloo ranks, DDP; checkpoints every "
        f"{CHECKPOINT_EVERY} steps, the fault in step {STRIKE_AT}. Seconds.\n",
        soft_wrap=True,
    )
    console.print(
        "| system | fault of rank 1 | goes on, median | p95 | worst | n | struck step done | four ranks again | steps redone "
        "| equal bits | lines |\n|---|---|---|---|---|---|---|---|---|---|---|",
        soft_wrap=True,
    )
    for row in rows:
        console.print(row, soft_wrap=True)
    console.print("\n" + NOTES, soft_wrap=True, end="")
    for system in chosen:
        console.print(f"- {system.name}: {system.configuration}.", soft_wrap=True)


if __name__ == "__main__":
    main()
