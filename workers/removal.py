"""Removes what an installation has left on jobs, pods and nodes: `python -P -m workers.removal [--check]`.

Started by `rekindle uninstall`, whose exit codes it has: 1 says that something is left, and nothing else says so.
"""

import argparse
import json
import sys
from contextlib import aclosing
from typing import NoReturn

from activities.clusters.api_server import Api, check_version
from activities.clusters.kubernetes.leftovers import Leftover, Leftovers
from rekindle.cli import exits
from rekindle.cli.exits import Exit, OutputLost
from rekindle.cli.terminal import ORDERS, complain
from rekindle.errors import NotFound, Refused, RekindleError
from rekindle.settings import read_settings
from workers.process import run


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m workers.removal", description=__doc__, allow_abbrev=False)
    parser.add_argument("--check", action="store_true", help="list what is left, and change nothing")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser.parse_args()


async def main(options: argparse.Namespace) -> int:
    """Lists what is left, or removes it. Returns the number of things that are left then.

    Raises:
        Refused: the installation is running.
    """
    settings = read_settings()
    async with Api(settings.kubeconfig) as api:
        await check_version(api)
        leftovers = Leftovers(api, settings)
        if not options.check and (lease := await leftovers.running()):
            raise Refused(
                f"the installation is running, its Lease {lease} was renewed in the last minute: remove its Deployments and its "
                "StatefulSet first, and wait for a minute"
            )
        left = count = 0
        async with aclosing(leftovers.find()) as found:
            async for one in found:
                count += 1
                is_left, words = (True, "") if options.check else await removed(one)
                left += is_left
                _print(one, words, options)
    if options.output == "text":
        _say(_summary(count, left, is_check=options.check))
    return left


async def removed(one: Leftover) -> tuple[bool, str]:
    """Removes a thing. Returns whether it is left, and what became of it."""
    if one.remove is None:
        return True, "not removed"
    try:
        await one.remove()
    except NotFound:
        return False, "gone meanwhile"
    except RekindleError as error:
        return True, f"not removed: {error}"
    return False, "removed"


def _print(one: Leftover, words: str, options: argparse.Namespace) -> None:
    if options.output == "json":
        _say(json.dumps({"object": one.thing, "left": one.words, "result": words}))
    else:
        _say(f"{one.thing}: {one.words}{f': {words}' if words else ''}")


def _say(line: str) -> None:
    """Writes a line, which cannot control a terminal: servers and nodes choose words of it."""
    sys.stdout.write(" ".join(line.splitlines()).translate(ORDERS) + "\n")
    sys.stdout.flush()


def _summary(count: int, left: int, *, is_check: bool) -> str:
    if not count:
        return "nothing of the installation is left on jobs, pods and nodes"
    if is_check:
        return f"left: {count}; rekindle uninstall removes them, after the installation itself"
    return f"removed: {count - left}, left: {left}"


def start() -> NoReturn:
    options = parse()
    exits.own_output()

    async def whole() -> None:
        try:
            left = await main(options)
        except RekindleError as error:
            complain(error)
            code = exits.of(error)
            sys.exit(Exit.UNANSWERED if code is Exit.OTHERWISE else code)  # what may not be looked at is not known to be left
        except OutputLost as error:
            sys.exit(exits.lost(error))
        except Exception:  # noqa: BLE001  # a bug of ours, whose code would say that something is left
            sys.excepthook(*sys.exc_info())
            sys.exit(Exit.BUG)
        sys.exit(Exit.OTHERWISE if left else Exit.DONE)

    run(whole)


if __name__ == "__main__":
    start()
