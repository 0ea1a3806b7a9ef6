"""Whose tokens are confirmed. Used by `senders.py`, for a token that names a pod of the job that its caller wants to speak for.

The API server is asked again after a minute, and strangers cannot make us ask it often: only a token that names a pod of the very
job is asked about, in one line for each job and address, a second apart; of all lines together one every few milliseconds.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

from rekindle.errors import Refused, RekindleError, Unavailable
from rekindle.model.senders import Claims

PACE = 0.005
"""Seconds between two questions, whoever calls: a gateway that starts is called by all jobs at once."""

ASKED_AT_ONCE = 16

MAX_PODS = 10_000
"""Pods whose newest token is remembered. Source: ClusterD's MaxServeJobs."""

MAX_DENIED = 10_000

Key = TypeVar("Key")
Value = TypeVar("Value")
Review = Callable[[str], Awaitable[str]]
"""UID of the token's pod; Refused: it is denied."""


@dataclass(frozen=True)
class Times:
    """In seconds."""

    fresh: float = 60.0
    """For which a confirmed token is good without another question. A pod that is deleted may be heard so long."""

    denied: float = 5.0
    """For which a token that was denied is denied without another question."""

    gap: float = 1.0
    """Between two questions for one job from one address."""

    patience: float = 3.0
    """That a call waits for the answer."""

    rest: float = 5.0
    """For which a token that was confirmed before is good without another question when nobody answered the last one."""


USUAL = Times()


@dataclass
class _Confirmed:
    digest: bytes
    until: float


class Tokens:
    """Remembers which tokens were confirmed, and which were denied a moment ago; no token itself."""

    def __init__(self, review: Review, times: Times = USUAL) -> None:
        self._review, self._times = review, times
        self._confirmed: OrderedDict[str, _Confirmed] = OrderedDict()
        """By the pod's UID."""
        self._denied: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        """Until when, and why."""
        self._lines: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._asked: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._pace = asyncio.Lock()
        self._last = float("-inf")
        self._few = asyncio.Semaphore(ASKED_AT_ONCE)

    async def check(self, token: str, claims: Claims, line: tuple[str, str]) -> None:
        """Returns when the token is one of the pod that it names.

        Args:
            line: who waits behind each other.

        Raises:
            Refused: it is not. Unavailable: nobody could tell.
        """
        digest = hashlib.sha256(token.encode()).digest()
        if self._is_good(digest, claims):
            return
        try:
            async with asyncio.timeout(self._times.patience), self._lines.setdefault(line, asyncio.Lock()):
                if not self._is_good(digest, claims):  # who came before with the same token has asked
                    await self._ask(token, digest, claims, line)
        except Refused:
            raise
        except (TimeoutError, RekindleError) as error:
            known = self._confirmed.get(claims.pod)
            if known is None or known.digest != digest:
                raise Unavailable(f"whose token it is, is not known: {error or 'too many ask at once'}") from error
            known.until = _now() + self._times.rest  # nothing is known to have changed: no pod ends while the API server is away

    def _is_good(self, digest: bytes, claims: Claims) -> bool:
        until, why = self._denied.get(digest, (0.0, ""))
        if _now() < until:
            raise Refused(why)
        known = self._confirmed.get(claims.pod)
        return known is not None and known.digest == digest and _now() < known.until

    async def _ask(self, token: str, digest: bytes, claims: Claims, line: tuple[str, str]) -> None:
        await asyncio.sleep(self._asked.get(line, float("-inf")) + self._times.gap - _now())
        async with self._pace:
            await asyncio.sleep(self._last + PACE - _now())
            self._last = _now()
        async with self._few:
            _remember(self._asked, line, _now(), MAX_DENIED)
            try:
                pod = await self._review(token)
            except Refused as error:
                self._deny(digest, claims, str(error))
                raise
        if pod != claims.pod:
            self._deny(digest, claims, "the token is one of another pod than it says")
            raise Refused("the token is one of another pod than it says")
        left = claims.expires - time.time()
        _remember(self._confirmed, pod, _Confirmed(digest, _now() + min(self._times.fresh, left)), MAX_PODS)

    def _deny(self, digest: bytes, claims: Claims, why: str) -> None:
        _remember(self._denied, digest, (_now() + self._times.denied, why), MAX_DENIED)
        if (known := self._confirmed.get(claims.pod)) and known.digest == digest:
            del self._confirmed[claims.pod]


def _remember(known: OrderedDict[Key, Value], key: Key, value: Value, most: int) -> None:
    """The newest ones."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)


def _now() -> float:
    return asyncio.get_running_loop().time()
