"""Keeps our search attributes where people look for them, while a control worker runs."""

import asyncio
import logging
from contextlib import suppress

from temporalio.client import Client
from temporalio.service import RPCError

from rekindle.absent import ABSENT
from rekindle.ids import Signals
from rekindle.temporal import WANTED, in_words, living, register_attributes, registered_attributes
from workers.versions import MOVES_ON

LOOKED_AGAIN = 5.0
"""Seconds between two looks at the search attributes."""

SURE = 120.0
"""Seconds after which every part of the server knows of an attribute that was registered. Source: its cache, one minute."""


logger = logging.getLogger("control")


class SearchAttributesKept:
    """Looks again and again whether the server has our search attributes, for a control worker. One that was removed, or has
    another type, is left out of what workflows tell; one that was removed is registered again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sure: dict[str, float] = {}
        """Time after which a missing one may be told again: each part of the server remembers for a while what there is."""

    async def keep(self) -> None:
        """Registers what is missing, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOKED_AGAIN)
            await self.look()

    async def look(self) -> None:
        try:
            known = await registered_attributes(self._client)
        except (RPCError, RuntimeError) as error:  # who may not list them, or does not answer, says nothing of them
            logger.debug("search attributes not listed", extra={"error": str(error)})
            return
        now, before = asyncio.get_running_loop().time(), ABSENT.names
        strange = {name for name, kind in WANTED.items() if known.get(name) != kind}
        self._sure = {name: until for name, until in self._sure.items() if now < until} | dict.fromkeys(strange, now + SURE)
        if news := strange - before:
            logger.warning("search attributes left out", extra={"attributes": sorted(news)})
        ABSENT.names = frozenset(self._sure)
        try:
            await register_attributes(self._client, strange - known.keys())
        except (RPCError, RuntimeError) as error:
            logger.warning("search attributes not registered", extra={"error": in_words(error)})
        if before - ABSENT.names:
            await self._show_again()

    async def _show_again(self) -> None:
        """Asks workflows that live for long to tell all of it: the server has lost it with the attribute."""
        for kind in MOVES_ON:
            try:
                async for run in self._client.list_workflows(living(kind)):
                    with suppress(RPCError):  # it has ended
                        await self._client.get_workflow_handle(run.id).signal(Signals.SHOW_AGAIN)
            except RPCError as error:
                logger.warning("search attributes not told again", extra={"error": in_words(error)})
