"""The command line of the local cluster."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    socket: Path
    """Unix socket of the API."""

    state_dir: Path
    """Directory of the cluster's state; jobs' directories are below it, in `jobs/`."""

    nodes: int
    accelerators_per_node: int
    gateway_host: str
    gateway_port: int
    """Address at which the gateway listens. Pods connect to it unless nodes have their own networks."""

    links: bool = False
    """True if each node has its own network with two links."""


def parse(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog="python -P -m simulators.local_cluster", description=__doc__, allow_abbrev=False)
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket of the API, at most 107 bytes")
    parser.add_argument("--state-dir", type=Path, required=True, help="where jobs keep checkpoints and logs")
    parser.add_argument("--nodes", type=_between(1, 1000), default=3, help="number of nodes, named node-0, node-1, ...")
    parser.add_argument("--accelerators-per-node", type=_between(0, 1024), default=8)
    parser.add_argument("--gateway-host", default="127.0.0.1", help="where the gateway listens")
    parser.add_argument("--gateway-port", type=_between(1, 65535), default=8899)
    parser.add_argument("--links", action="store_true", help="each node is a network namespace with two links for its ranks")
    return Options(**vars(parser.parse_args(arguments)))


def _between(low: int, high: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return int(text)

    return number
