"""Draws the trace of a hot switch of a real run, as a collector receives it: `python -m docs.pictures.trace`."""

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from rekindle.cli.demos.sub_health import HotSwitchScenario, SubHealth
from rekindle.cli.stack import Machine, running
from tests.fakes.collector import Received, collector

FILE = Path(__file__).with_name("trace.svg")
COLOURS = {"watcher": "#8e6c8a", "control": "#4c78a8", "gateway": "#f58518", "manager": "#54a24b", "rank": "#9ecae9"}
LEFT, WIDTH, ROW, TOP, TEXT = 330, 900, 17, 50, 12
NARROWEST = 1e-3
"""Seconds below which a span is left out."""


def rows(spans: Sequence[Received], parent: str = "", depth: int = 0) -> Iterator[tuple[int, Received]]:
    """Returns the spans in the order of a tree, each with its depth."""
    for span in sorted((one for one in spans if one.parent == parent), key=lambda one: (one.began, -one.ended)):
        if span.ended - span.began >= NARROWEST:
            yield depth, span
            yield from rows(spans, span.id, depth + 1)


def drawn(spans: Sequence[Received]) -> str:
    tree = list(rows(spans))
    (_, root), height = tree[0], TOP + ROW * (len(tree) + 1)
    scale = WIDTH / (root.ended - root.began)
    size = f'width="{LEFT + WIDTH + 90}" height="{height}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="{TEXT}">']
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    for number, (process, colour) in enumerate(COLOURS.items()):
        at = LEFT + number * 110
        parts.append(f'<rect x="{at}" y="12" width="12" height="12" fill="{colour}"/><text x="{at + 17}" y="23">{process}</text>')
    for number, (depth, span) in enumerate(tree):
        y = TOP + number * ROW
        x, width = LEFT + (span.began - root.began) * scale, max(1.0, (span.ended - span.began) * scale)
        colour = COLOURS[span.service.removeprefix("rekindle-")]
        milliseconds = f"{(span.ended - span.began) * 1e3:.0f} ms"
        parts.append(f'<text x="{8 + 12 * depth}" y="{y + 12}">{escape(span.name[:46])}</text>')
        parts.append(f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{ROW - 4}" fill="{colour}"/>')
        parts.append(f'<text x="{x + width + 4:.1f}" y="{y + 12}" fill="#666">{milliseconds}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


async def main() -> None:
    async with collector() as there:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = there.url
        with tempfile.TemporaryDirectory(prefix="rekindle-") as folder:
            async with running(Path(folder), Machine(nodes=3, accelerators=2)) as stack:
                await HotSwitchScenario(SubHealth(), stack, Path(folder), lambda _: None).run()
                await there.trace()
                await there.until(lambda spans: any(span.name == "first step" for span in spans))
        FILE.write_text(drawn(await there.trace()))


if __name__ == "__main__":
    asyncio.run(main())
