"""Confirms tokens of pods with the API server. Used by `caller_auth.py`, for a token of a pod of the job that its caller names.

Confirmed tokens are cached for a minute. Only a token that names a pod of the very job is sent to the API server, so that
strangers cannot cause many requests. Requests for the same job and address wait for each other, a second apart; all requests
together are limited to one every few milliseconds.
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
"""Seconds between two requests, regardless of the caller: when a gateway starts, all jobs call it at once."""

ASKED_AT_ONCE = 16

MAX_PODS = 10_000
"""Number of pods whose newest token is cached. Source: ClusterD's MaxServeJobs."""

MAX_DENIED = 10_000

Key = TypeVar("Key")
Value = TypeVar("Value")
Review = Callable[[str], Awaitable[str]]
"""Function that returns the UID of the token's pod. Raises Refused if the token is denied."""


@dataclass(frozen=True)
class Times:
    """Time limits in seconds."""

    fresh: float = 60.0
    """Time for which a confirmed token is valid without another request. A deleted pod may be accepted for so long."""

    denied: float = 5.0
    """Time for which a denied token is refused without another request."""

    gap: float = 1.0
    """Shortest time between two requests for one job from one address."""

    patience: float = 3.0
    """Time that a call waits for the answer."""

    rest: float = 5.0
    """Time for which a token that was confirmed before stays valid if the last request was not answered."""


USUAL = Times()


@dataclass
class _Confirmed:
    digest: bytes
    until: float


class Tokens:
    """Caches digests of tokens that were confirmed, and of those that were denied a moment ago; no token itself."""

    def __init__(self, review: Review, times: Times = USUAL) -> None:
        self._review, self._times = review, times
        self._confirmed: OrderedDict[str, _Confirmed] = OrderedDict()
        """Confirmed tokens, keyed by the pod's UID."""
        self._denied: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        """Denied tokens, keyed by digest: end of the time for which the denial holds, and its reason."""
        self._lines: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._asked: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._pace = asyncio.Lock()
        self._last = float("-inf")
        self._few = asyncio.Semaphore(ASKED_AT_ONCE)

    async def check(self, token: str, claims: Claims, line: tuple[str, str]) -> None:
        """Returns if the token belongs to the pod that it names.

        Args:
            line: job and address; requests of the same line wait for each other.

        Raises:
            Refused: it does not. Unavailable: it could not be checked.
        """
        digest = hashlib.sha256(token.encode()).digest()
        if self._is_good(digest, claims):
            return
        try:
            async with asyncio.timeout(self._times.patience), self._lines.setdefault(line, asyncio.Lock()):
                if not self._is_good(digest, claims):  # an earlier caller may have asked with the same token
                    await self._ask(token, digest, claims, line)
        except Refused:
            raise
        except (TimeoutError, RekindleError) as error:
            known = self._confirmed.get(claims.pod)
            if known is None or known.digest != digest:
                raise Unavailable(f"whose token it is, is not known: {error or 'too many ask at once'}") from error
            known.until = _now() + self._times.rest  # no pod is deleted while the API server is away

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
    """Adds an entry, and drops the oldest one if there are more than `most`."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)


def _now() -> float:
    return asyncio.get_running_loop().time()
