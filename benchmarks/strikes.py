"""Faults that are injected into the jobs of `benchmarks.recoveries`. Each returns its time in seconds since the epoch."""

import os
import signal
import time

from benchmarks.struck_jobs import PODS, RANKS_PER_POD, Trial
from rekindle.cli.demos.process_faults import processes_of
from rekindle.maintenances import Maintenances
from rekindle.model.links import NodeLinks
from rekindle.model.mode import Mode


async def kill(trial: Trial) -> float:
    """Kills a rank, of another pod each time, so that the spare of a pod has had time to load."""
    return send(signal.SIGKILL, trial.latest(_rank(trial)).pid)


async def freeze(trial: Trial) -> float:
    return send(signal.SIGSTOP, trial.latest(_rank(trial)).pid)


async def kill_two(trial: Trial) -> float:
    """Kills one rank of each pod."""
    rank = trial.number % RANKS_PER_POD
    return send(signal.SIGKILL, trial.latest(rank).pid, trial.latest(rank + RANKS_PER_POD).pid)


async def kill_where_no_spare_waits(trial: Trial) -> float:
    """Kills the other rank of a pod whose spare has just been used."""
    rank = _rank(trial)
    first = send(signal.SIGKILL, trial.latest(rank).pid)
    await trial.incident(first)
    return send(signal.SIGKILL, trial.latest(rank ^ 1).pid)


async def kill_with_the_control_plane(trial: Trial) -> float:
    doomed = [process.pid for name in ("control", "gateway") if (process := trial.stack.members[name].process)]
    return send(signal.SIGKILL, trial.latest(_rank(trial)).pid, *doomed)


async def kill_a_pod(trial: Trial) -> float:
    return send(signal.SIGKILL, *processes_of(trial.latest(_rank(trial)).pod_uid))


async def fail_in_a_step(trial: Trial) -> float:
    """Waits for the fault that the job injects into itself, and returns its time."""
    rank, step = trial.row.options(trial.rounds, 0).in_steps[trial.number]
    mark = trial.directory / "injected" / f"rank-{rank:05d}-step-{step}"
    await trial.until(lambda: mark.exists() and bool(mark.read_text()), f"the fault in step {step}")
    return float(mark.read_text())


async def degrade_a_node(trial: Trial) -> float:
    pod = await trial.pod(trial.number % PODS)
    struck = time.time()
    await trial.cluster.degrade(pod.spec.node_name, "80E18005", "NPU link is degraded")
    return struck


async def ask_for_a_swap(trial: Trial) -> float:
    struck = time.time()
    uid = trial.job.metadata.uid
    await trial.rekindle.start(Mode.HOT_SWITCH, uid, pod_rank=trial.number % PODS, force=True, requested_by="benchmark")
    return struck


async def move_links(trial: Trial) -> float:
    """Moves the links of all ranks, to their backup links and back in turn."""
    maintenances, uid = Maintenances(trial.rekindle), trial.job.metadata.uid
    struck = time.time()
    if trial.number % 2:
        await maintenances.switch_back(uid, wait=False)
        return struck
    pods = [await trial.pod(rank) for rank in range(PODS)]
    links = [NodeLinks(node=pod.spec.node_name, devices=pod.status.devices, backup=True) for pod in pods]
    await maintenances.fail_over(uid, links, requested_by="benchmark")
    return struck


def _rank(trial: Trial) -> int:
    """Returns the rank to strike, 0, 2, 1, 3, ...: the pods in turn."""
    return (trial.number % PODS) * RANKS_PER_POD + trial.number // PODS % RANKS_PER_POD


def send(number: signal.Signals, *pids: int) -> float:
    """Sends a signal to processes. Returns when, in seconds since the epoch."""
    struck = time.time()
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it ended with another one
            continue
    return struck
