"""Sources of the webhook's certificate: a Secret that its replicas share, or files that another program keeps up to date."""

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rekindle.errors import MALFORMED, BadInput, Conflict, NotFound, RekindleError
from rekindle.settings import Settings
from workers.webhook.own_certificates import Certificates, certificates_in, renewed
from workers.webhook.tls import ServerTls

if TYPE_CHECKING:  # over 2 s and 190 MB, which files do not need
    from activities.clusters.api_server import Api

NAME = "rekindle-webhook"
"""Name of the Service, of the Secret, and of both webhook configurations."""

CONFIGURATIONS = tuple(
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{NAME}" for kind in ("mutating", "validating")
)

PAUSE = 30.0
"""Seconds between two looks. A replica uses a certificate that another one has made so much later."""

TRIES = 5
"""Number of tries to write an object that other replicas write at the same time."""

logger = logging.getLogger("webhook")


class Source(Protocol):
    """Source of the certificate."""

    async def look(self) -> None:
        """Reads the certificate, and serves with it.

        Raises:
            RekindleError: it cannot be read or renewed; the certificate before stays in use.
        """


@asynccontextmanager
async def certificates_of(settings: Settings, tls: ServerTls) -> AsyncIterator[Source]:
    """Yields the source that the settings name."""
    if settings.webhook_certificates is not None:
        yield CertificateFiles(settings.webhook_certificates, tls)
        return
    from activities.clusters.api_server import Api

    async with Api(settings.kubeconfig) as api:
        yield SharedSecret(api, settings.namespace, tls)


async def keep(source: Source, pause: float = PAUSE) -> None:
    """Looks for a new certificate again and again, until it is cancelled."""
    while True:
        await asyncio.sleep(pause)
        try:
            await source.look()
        except (RekindleError, *MALFORMED) as error:
            logger.warning("certificate not renewed, retrying", extra={"error": f"{type(error).__name__}: {error}"})


class CertificateFiles:
    """Files `tls.crt` and `tls.key` of a folder, as cert-manager's Secret has them when it is mounted."""

    def __init__(self, folder: Path, tls: ServerTls) -> None:
        self._folder, self._tls = folder, tls

    async def look(self) -> None:
        try:
            certificate, key = ((self._folder / name).read_bytes() for name in ("tls.crt", "tls.key"))
            self._tls.use(certificate, key)
        except (OSError, BadInput) as error:
            raise BadInput(f"REKINDLE_WEBHOOK_CERTIFICATES: {self._folder} cannot be used: {error}") from error


class SharedSecret:
    """Certificates that the webhook makes, in a Secret of all replicas, and in the configurations by which it is called.

    The Secret is part of the manifests, so that no right to create one is needed.
    """

    def __init__(self, api: "Api", namespace: str, tls: ServerTls) -> None:
        self._api, self._tls = api, tls
        self._service = f"{NAME}.{namespace}.svc"
        self._path = f"/api/v1/namespaces/{namespace}/secrets/{NAME}"
        self._held = Certificates()

    async def look(self) -> None:
        self._held = await self._agreed()
        for path in CONFIGURATIONS:
            await self._trust(path)
        self._tls.use(self._held.certificate, self._held.key)  # not before the API server trusts it

    async def _agreed(self) -> Certificates:
        """Returns the certificates of the Secret, after it was renewed if that is due. The first replica that writes decides."""
        for _ in range(TRIES):
            secret = await self._api.get(self._path)
            found = certificates_in(secret.get("data") or {})
            due = renewed(found if found.certificate else self._held, self._service, self._tls.moment())
            if due == found:
                return found
            try:
                version = {"resourceVersion": secret["metadata"]["resourceVersion"]}
                await self._api.patch(self._path, {"metadata": version, "data": due.data})
            except Conflict:
                continue
            logger.info("certificates renewed", extra={"secret": self._path})
            return due
        raise Conflict(f"{self._path}: other replicas write it all the time")

    async def _trust(self, path: str) -> None:
        """Writes the authorities into a configuration, so that the API server trusts the webhook."""
        bundle = b64encode(self._held.authorities).decode()
        for _ in range(TRIES):
            try:
                configuration = await self._api.get(path)
                if all(one["clientConfig"].get("caBundle") == bundle for one in configuration.get("webhooks") or ()):
                    return
                await self._api.patch(path, _trusting(configuration, bundle))
            except NotFound as error:
                logger.warning("webhook configuration not found", extra={"reason": str(error)})
                return
            except Conflict:
                continue
            logger.info("webhook configuration updated", extra={"path": path})
            return


def _trusting(configuration: dict[str, Any], bundle: str) -> dict[str, Any]:
    """Returns the patch of a configuration. It has all webhooks, as a merge patch replaces lists."""
    webhooks = [{**one, "clientConfig": {**one["clientConfig"], "caBundle": bundle}} for one in configuration["webhooks"]]
    return {"metadata": {"resourceVersion": configuration["metadata"]["resourceVersion"]}, "webhooks": webhooks}
