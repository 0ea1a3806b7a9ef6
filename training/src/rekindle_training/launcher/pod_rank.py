"""Rank of this pod in its job, from the command line, our control plane, or the controller that created the pod.

Used by `arguments.py`.
"""

from collections.abc import Mapping

from rekindle_training import names
from rekindle_training.launcher.flags import UsageInvalid

OF_CONTROLLERS = ("PET_NODE_RANK", "NODE_RANK", names.RANK)
"""Variables in which other controllers number the pods of a job. A value that is no pod rank has another meaning."""


def pod_rank(flag: str | None, nnodes: int, environment: Mapping[str, str]) -> int:
    """Returns the rank of the pod.

    Args:
        flag: value of the flag of the command line. None: it is not given.
        nnodes: number of pods.

    Raises:
        UsageInvalid: no source sets it, or two sources contradict each other.
    """
    own = {"--node-rank": flag, names.POD_RANK: environment.get(names.POD_RANK) or None}
    said = {source: rank for source, rank in own.items() if rank is not None}
    for source, rank in said.items():
        if not _is_rank(rank, nnodes):
            raise UsageInvalid(f"{source} {rank}: accepted is a whole number from 0 to {nnodes - 1} (--nnodes {nnodes})")
    if nnodes == 1:
        return 0
    controllers = _of_controllers(environment)
    said = said or {source: rank for source, rank in controllers.items() if _is_rank(rank, nnodes)}
    if not said:
        found = "".join(f", {source} {rank} is none" for source, rank in controllers.items())
        accepted = f"--node-rank, {names.POD_RANK}, {', '.join(OF_CONTROLLERS)} and {names.INDEX}"
        raise UsageInvalid(f"nothing says which of the {nnodes} pods this one is{found}: accepted are {accepted}")
    if len({int(rank) for rank in said.values()}) > 1:
        words = " and ".join(f"{source} {rank}" for source, rank in said.items())
        raise UsageInvalid(f"{words} contradict each other: accepted is one rank of this pod; --node-rank goes before variables")
    return int(next(iter(said.values())))


def _of_controllers(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns pod ranks by their sources. A Job's index counts the pods of that Job only."""
    return {name: environment[name] for name in OF_CONTROLLERS if environment.get(name)} | _index(environment)


def _index(environment: Mapping[str, str]) -> dict[str, str]:
    index = environment.get(names.INDEX, "")
    job, pods = environment.get(names.JOB_INDEX, ""), environment.get(names.PODS_PER_JOB, "")
    if not (index.isdecimal() and (job or pods)):
        return {names.INDEX: index} if index else {}
    if not (job.isdecimal() and pods.isdecimal() and int(index) < int(pods)):
        raise UsageInvalid(
            f"{names.JOB_INDEX} {job or '(missing)'}, {names.PODS_PER_JOB} {pods or '(missing)'} and {names.INDEX} {index}: "
            "accepted are the number of the pod's Job, how many pods each Job has, and a number below that"
        )
    return {f"{names.JOB_INDEX} {job} and {names.INDEX} {index}, which make": str(int(job) * int(pods) + int(index))}


def _is_rank(text: str, count: int) -> bool:
    return text.isdecimal() and int(text) < count
