"""`rekindle-train`: the start command of a worker or backup pod, in torchrun's place.

    rekindle-train --nnodes 2 --nproc-per-node 8 train.py --batch-size 32
    rekindle-train --standalone --nproc-per-node 4 --spares 1 train.py

Starts the pod's ranks, passes signals on and ends when they have ended. With --standalone it starts a manager beside them, which
brings training back when a rank is lost.
"""

import sys
from collections.abc import Sequence

from rekindle_training import logs
from rekindle_training.launcher.arguments import UsageInvalid, parse
from rekindle_training.launcher.pod import Pod


def main(argv: Sequence[str] | None = None) -> int:
    logs.configure("rekindle-train")
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
    except UsageInvalid as error:
        print(f"rekindle-train: {error}", file=sys.stderr)  # noqa: T201  # a usage error is for people
        return 2
    return Pod(arguments).run()


if __name__ == "__main__":
    sys.exit(main())
