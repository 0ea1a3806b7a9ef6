"""TLS of a server whose certificate can be replaced while it serves."""

import logging
import ssl
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from rekindle.errors import BadInput
from rekindle.model.examined import Problem

logger = logging.getLogger("webhook")


def now() -> datetime:
    return datetime.now(UTC)


class ServerTls:
    """Certificate for new connections. Open ones keep theirs."""

    def __init__(self, moment: Callable[[], datetime] = now) -> None:
        """Args:
        moment: the clock.
        """
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.moment = moment
        self._used = (b"", b"")
        self._ends = datetime.min.replace(tzinfo=UTC)

    def use(self, certificate: bytes, key: bytes) -> None:
        """Serves new connections with this certificate from now on.

        Args:
            certificate: the chain, in PEM.
            key: its key, in PEM.

        Raises:
            BadInput: they cannot be read, or do not belong together. The certificate before stays in use.
        """
        if (certificate, key) == self._used:
            return
        try:
            ends = x509.load_pem_x509_certificates(certificate)[0].not_valid_after_utc
            for context in (ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), self.context):  # first one that serves nobody
                _load(context, certificate, key)
        except (ValueError, IndexError, ssl.SSLError) as error:
            raise BadInput(f"tls.crt, tls.key: a certificate and its key are expected: {error}") from error
        self._used, self._ends = (certificate, key), ends
        logger.info("certificate loaded", extra={"ends": ends.isoformat()})

    async def problem(self) -> Problem | None:
        """Returns what is wrong with the certificate. None: nothing."""
        if self.moment() < self._ends:
            return None
        return Problem(
            reason="CertificateExpired", words="its certificate has expired", mend="its log says why it was not renewed"
        )


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Loads a certificate by way of files, since Python reads none from memory."""
    with tempfile.TemporaryDirectory() as name:  # readable by this process only
        folder = Path(name)
        (folder / "tls.crt").write_bytes(certificate)
        (folder / "tls.key").write_bytes(key)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
