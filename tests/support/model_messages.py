"""What the training side of the model says."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """Attach, detach, pause, resumed, fault, first step; in a recovery of processes: stopped, offers, status."""

    kind: str
    session: str = ""
    queue: str = ""
    offers: tuple[str, ...] = ()
    code: int = 0
    strategy: str = ""
    words: str = ""
    ranks: tuple[int, ...] = ()
    """Pod ranks."""
    faulty: tuple[tuple[int, str], ...] = ()
    """Ranks, each with the type of its fault."""
    answers: tuple[str, str] = ("", "")
    """The attempt and the name of the order."""
    life: str = ""
    client: str = ""
    """Which process speaks, where that matters."""
    once: bool = False
    """Nobody sends it again where it is lost."""
