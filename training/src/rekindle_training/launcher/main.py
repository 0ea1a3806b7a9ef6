"""`rekindle-train`: the start command of a worker or backup pod, in torchrun's place.

    rekindle-train --nnodes 2 --nproc-per-node 8 train.py --batch-size 32
    rekindle-train --standalone --nproc-per-node 4 --spares 1 train.py
    rekindle-train --drill train.py

Starts the pod's ranks, passes signals on and ends when they have ended. With --standalone it starts a manager beside them, which
brings training back when a rank is lost. With --drill it tries out what of a script survives.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rekindle_training import logs, titles
from rekindle_training.launcher.arguments import Arguments, parse
from rekindle_training.launcher.flags import UsageInvalid
from rekindle_training.launcher.pod import Pod


def main(argv: Sequence[str] | None = None) -> int:
    logs.configure("rekindle-train")
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        _refuse_missing(arguments)
    except UsageInvalid as error:
        logs.say(f"rekindle-train: {error}")
        return 2
    titles.show("launcher", arguments.command)
    if arguments.drill is not None:
        from rekindle_training.launcher.drill.main import run

        return run(arguments, arguments.drill)
    return Pod(arguments).run()


def _refuse_missing(arguments: Arguments) -> None:
    script = arguments.command[0]
    if arguments.runs_as == "script" and not Path(script).is_file():
        raise UsageInvalid(f"training_script {script}: there is no such file; accepted is a script, or with -m a module")


if __name__ == "__main__":
    sys.exit(main())
