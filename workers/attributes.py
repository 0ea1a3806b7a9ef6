"""Keeps our search attributes registered with the server while a control worker runs."""

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
"""Seconds between two checks of the search attributes."""

SURE = 120.0
"""Seconds after which every part of the server knows of an attribute that was registered. Source: its cache, one minute."""


logger = logging.getLogger("control")


class SearchAttributesKept:
    """Checks at intervals whether the server has our search attributes. One that is missing, or has another type, is left out of
    what workflows send; one that is missing is registered again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sure: dict[str, float] = {}
        """Time from which a missing attribute may be sent again, by name: each part of the server caches the list for a while."""

    async def keep(self) -> None:
        """Registers missing attributes at intervals, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOKED_AGAIN)
            await self.look()

    async def look(self) -> None:
        try:
            known = await registered_attributes(self._client)
        except (RPCError, RuntimeError) as error:  # not allowed to list them, or no answer: nothing is known of them
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
        """Signals long-lived workflows to send all attributes again, since the server has lost their values."""
        for kind in MOVES_ON:
            try:
                async for run in self._client.list_workflows(living(kind)):
                    with suppress(RPCError):  # it has ended
                        await self._client.get_workflow_handle(run.id).signal(Signals.SHOW_AGAIN)
            except RPCError as error:
                logger.warning("search attributes not signalled", extra={"error": in_words(error)})
