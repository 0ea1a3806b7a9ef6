"""Admission webhook: its configurations, its certificate, and whether the API server trusts it."""

from base64 import b64decode
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from activities.clusters.api_server import Object
from rekindle.model.examined import Link, failed, ok, warning
from workers.examination.installation import APPLY, Installation, asked, found
from workers.webhook.certificate_sources import CONFIGURATIONS, NAME
from workers.webhook.own_certificates import certificates_in, end_of, problem_of

VOLUME = "certificates"
"""Volume of the webhook's pods with a certificate that others make, such as cert-manager."""

CONFIGURED, CERTIFICATE = "webhook configurations", "webhook certificate"


async def webhook(installation: Installation) -> AsyncIterator[Link | None]:
    """Examines the webhook of the installation. Without one there is no link."""
    own: list[Object] = []

    async def configured() -> Link | None:
        there = [one for path in CONFIGURATIONS if (one := await found(installation.api.get(path)))]
        own.extend([one for one in there if _is_for(installation, one)])
        return _configured(own, has_process=await _has_process(installation))

    yield await asked(CONFIGURED, configured())
    if own:
        yield await asked(CERTIFICATE, _certificate(installation, own))


async def _has_process(installation: Installation) -> bool:
    return await found(installation.api.get(installation.path("/apis/apps/v1", "deployments", NAME))) is not None


def _is_for(installation: Installation, configuration: Object) -> bool:
    return any(_service(one).get("namespace") == installation.namespace for one in configuration.get("webhooks") or ())


def _service(webhook: Object) -> Object:
    service: Object = webhook["clientConfig"].get("service") or {}
    return service


def _configured(own: list[Object], *, has_process: bool) -> Link | None:
    """Returns the link. None: the installation has no webhook."""
    if not has_process:
        if own:
            return failed(CONFIGURED, "the API server asks a webhook whose process is not there", APPLY)
        return None
    if len(own) < len(CONFIGURATIONS):
        kinds = ", ".join(one["kind"] for one in own) or "none"
        words = f"the API server does not ask the webhook about everything (there is {kinds})"
        return warning(CONFIGURED, words, APPLY)
    policies = {one.get("failurePolicy", "Fail") for configuration in own for one in configuration["webhooks"]}
    away = "jobs pass while the webhook is away" if policies == {"Ignore"} else "jobs are refused while the webhook is away"
    return ok(CONFIGURED, f"both are there; {away}")


async def _mounted(installation: Installation) -> str:
    """Returns the Secret that the webhook serves with. Empty: it makes its certificate by itself. An old Secret may be there."""
    deployment = await found(installation.api.get(installation.path("/apis/apps/v1", "deployments", NAME))) or {"spec": {}}
    volumes = (deployment["spec"].get("template") or {"spec": {}})["spec"].get("volumes") or ()
    return next(((one.get("secret") or {}).get("secretName", "") for one in volumes if one["name"] == VOLUME), "")


async def _certificate(installation: Installation, configurations: list[Object]) -> Link:
    mounted = await _mounted(installation)
    mend = f"look at the webhook, which renews it: kubectl -n {installation.namespace} logs deployment/{NAME}"
    if mounted:
        mend = f"look at who writes it, such as cert-manager: kubectl -n {installation.namespace} describe secret {mounted}"
    secret = await found(installation.api.get(installation.path("/api/v1", "secrets", mounted or NAME)))
    if secret is None:
        return failed(CERTIFICATE, f"Secret {mounted or NAME} is missing", mend if mounted else APPLY)
    held = certificates_in(secret.get("data") or {})
    service, now = f"{NAME}.{installation.namespace}.svc", datetime.now(UTC)
    for configuration in configurations:
        for one in configuration["webhooks"]:
            trusted = b64decode(one["clientConfig"].get("caBundle") or "")
            if problem := problem_of(held.certificate, trusted, service, now):
                return failed(CERTIFICATE, f"{one['name']}: {problem}", mend)
    end = end_of(held.certificate)
    return ok(CERTIFICATE, f"for {service}, trusted by the API server, valid until {end:%Y-%m-%d %H:%M} UTC")
