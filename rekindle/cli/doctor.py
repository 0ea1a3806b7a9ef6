"""The command that examines an installation."""

from rich.text import Text

from rekindle.cli.context import control_plane
from rekindle.cli.exits import Exit
from rekindle.cli.output import Format, Output, print_json
from rekindle.cli.terminal import console
from rekindle.doctor import Health, Link, examine

STYLES = {Health.OK: "green", Health.WARNING: "yellow", Health.FAILED: "red", Health.UNKNOWN: "yellow"}


async def doctor(*, output: Output = Format.TEXT) -> Exit:
    """Examine the installation link by link, and say how to mend what is broken.

    The exit code is 1 if a link is broken, and 3 if Temporal does not answer.

    Example: rekindle doctor
    """
    links = []
    async for link in examine(await control_plane()):
        links.append(link)
        if output is Format.TEXT:
            _show(link)
    if output is Format.JSON:
        print_json([link.model_dump(mode="json") for link in links])
    return Exit.OTHERWISE if any(link.health is Health.FAILED for link in links) else Exit.DONE


def _show(link: Link) -> None:
    console.print(
        Text(f"{link.health.value:8}", style=STYLES[link.health]).append(f"{link.name}: {link.words}", style="default"),
        soft_wrap=True,
    )
    if link.mend:
        console.print(Text(f"{'':8}mend: {link.mend}"), soft_wrap=True)
