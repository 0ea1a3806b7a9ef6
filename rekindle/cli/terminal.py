"""The terminal that all commands write to. Loads nothing of the product, so that `--help` is there at once."""

import os
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

ORDERS = dict.fromkeys((0x1B, *range(0x80, 0xA0)), "?")
"""Control characters, which are replaced so that a text cannot control the terminal."""


class Terminal(Console):
    """Console that replaces control characters. Much of its text was written by tenants, such as the last words of a pod."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=segment.text.translate(ORDERS))

    def on_broken_pipe(self) -> None:
        """Continues silently if standard error has no reader any more. A closed standard output raises an error by itself."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


console = Terminal()
problems = Terminal(stderr=True)


def complain(error: BaseException) -> None:
    """Prints an error for people, without interpreting markup in it."""
    problems.print(Text("error: ", style="red").append(str(error), style="default"), soft_wrap=True)
