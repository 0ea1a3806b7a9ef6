"""Stream of a training side at a gateway, and the progress that it reports."""

from datetime import datetime

from rekindle.model.base import Value


class Progress(Value):
    """First completed step after a start of the training side."""

    incarnation: str
    step: int
    steps_lost: int = 0
    session: str = ""
    """Subscription of the training side at the time of its report. Empty: it had none."""

    ranks: int = 0
    """Number of ranks of the job, as its manager counts them. 0: unknown."""


class Attachment(Value):
    """Location of the job's stream."""

    queue: str
    """Task queue of the gateway that holds the stream."""

    session: str
    """Id of the subscription, unique for each."""

    since: datetime
    client: str = ""
    """Process of the client, as far as it is known. See `rekindle.policy.dialogue.client_identity`."""

    progress: Progress | None = None
    """Last progress that was reported to this gateway."""
