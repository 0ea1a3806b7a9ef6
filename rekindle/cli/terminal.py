"""The terminal that all commands write to. Loads nothing of the product, so that `--help` is there at once."""

import os
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

LINES = (0x09, 0x0A)
"""Tab and end of line."""
BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that turn the direction of the text after them."""
ORDERS = dict.fromkeys((*(one for one in range(0x20) if one not in LINES), *range(0x7F, 0xA0), *BIDI), "?")
"""Control characters, which are replaced so that a text cannot control what shows it."""


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
