"""As whom the manager speaks to the control plane: its job, and the token of its pod. Used by `gateway.py` for each call.

Whoever writes a template does not know the UID of the job that it is for. Where nobody says it, the gateway says of which job the
token's pod is.

The kubelet writes the token, and replaces it long before it runs out: it is read anew each time. Elsewhere there is none, and
none is sent.
"""

import asyncio
import logging
import string
from pathlib import Path

from rekindle_wire.recover_pb2 import ClientInfo

log = logging.getLogger(__name__)

ROLE = "taskd"

LONGEST = 4096
"""Bytes; of all metadata of a call gRPC takes 8,192."""

ALLOWED = frozenset(string.ascii_letters + string.digits + "-._~+/=")
"""In a bearer token. What is something else would end the call with an error of gRPC's own."""


class Identity:
    def __init__(self, job_id: str, token_file: Path) -> None:
        """`job_id`: empty: nobody says it."""
        self._given = job_id
        self.job_id = job_id
        self.known = asyncio.Event()
        """The job's id is."""
        if job_id:
            self.known.set()
        self._file = token_file
        self._said = ""

    @property
    def client(self) -> ClientInfo:
        return ClientInfo(jobId=self.job_id, role=ROLE)

    @property
    def stranger(self) -> ClientInfo:
        """Identity with which it introduces itself. A job that was made anew under its name has another id."""
        return ClientInfo(jobId=self._given, role=ROLE)

    def learn(self, job_id: str) -> None:
        """Takes the id that the gateway says."""
        if not self._given and job_id and job_id != self.job_id:
            log.info("the job is known by the token", extra={"job": job_id})
            self.job_id = job_id
            self.known.set()

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """For one call."""
        try:
            with self._file.open("rb") as file:
                token = file.read(LONGEST + 1).decode("ascii").strip()
        except FileNotFoundError:
            return ()
        except (OSError, UnicodeDecodeError) as error:
            return self._without(f"cannot be read: {error}")
        if len(token) > LONGEST or not token or not ALLOWED.issuperset(token):
            return self._without(f"holds no token: accepted are 1 to {LONGEST} letters, digits and -._~+/=")
        self._said = ""
        return (("authorization", f"Bearer {token}"),)

    def _without(self, problem: str) -> tuple[()]:
        """Said once: calls come again every second."""
        if problem != self._said:
            log.warning("no token is sent", extra={"file": str(self._file), "reason": problem})
        self._said = problem
        return ()
