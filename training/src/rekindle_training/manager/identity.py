"""Identity with which the manager speaks to the control plane: its job and its pod's token. Used by `gateway.py` for each call.

The author of a pod template does not know the UID of the job. If it is not set, the gateway finds the job by the token.

The kubelet writes the token, and replaces it long before it expires, so the file is read for each call. Elsewhere there is no
token, and none is sent.
"""

import asyncio
import logging
import string
from pathlib import Path

from rekindle_wire.recover_pb2 import ClientInfo

log = logging.getLogger(__name__)

ROLE = "taskd"

LONGEST = 4096
"""Maximum size of a token in bytes. gRPC accepts 8,192 bytes of metadata in a call."""

ALLOWED = frozenset(string.ascii_letters + string.digits + "-._~+/=")
"""Characters of a bearer token. Any other character would end the call with an error of gRPC itself."""


class Identity:
    def __init__(self, job_id: str, token_file: Path) -> None:
        """Args:
        job_id: id of the job. Empty: it is not set, and the gateway has to return it.
        """
        self._given = job_id
        self.job_id = job_id
        self.known = asyncio.Event()
        """Set when the id of the job is known."""
        if job_id:
            self.known.set()
        self._file = token_file
        self._said = ""

    @property
    def client(self) -> ClientInfo:
        return ClientInfo(jobId=self.job_id, role=ROLE)

    @property
    def stranger(self) -> ClientInfo:
        """Returns the identity for Init.

        It holds only the configured id, because a job that was created again has another one.
        """
        return ClientInfo(jobId=self._given, role=ROLE)

    def learn(self, job_id: str) -> None:
        """Stores the job's id that the gateway returned."""
        if not self._given and job_id and job_id != self.job_id:
            log.info("job id received by token", extra={"job": job_id})
            self.job_id = job_id
            self.known.set()

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata for one call: the authorization header, or nothing if there is no valid token."""
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
        """Logs the problem once, because calls are repeated every second."""
        if problem != self._said:
            log.warning("token not sent", extra={"file": str(self._file), "reason": problem})
        self._said = problem
        return ()
