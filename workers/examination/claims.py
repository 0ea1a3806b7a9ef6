"""Leases by which installations show that they live, and other installations that serve the same jobs."""

from collections.abc import AsyncIterator

from activities.clusters.kubernetes.claims import LASTS
from activities.clusters.kubernetes.leftovers import Leftovers
from rekindle.model.bounds import few
from rekindle.model.examined import Link, failed, ok, warning
from rekindle.settings import Settings
from workers.examination.installation import Installation, asked, installation_of

LEASE, OTHERS = "lease of the installation", "other installations"


async def installations(installation: Installation) -> AsyncIterator[Link | None]:
    """Examines whether the installation claims jobs, and who else does."""
    looks = Leftovers(installation.api, Settings(namespace=installation.namespace))
    yield await asked(LEASE, _lease(looks, installation))
    yield await asked(OTHERS, _others(looks, installation))


async def _lease(looks: Leftovers, installation: Installation) -> Link:
    if holder := await looks.running():
        return ok(LEASE, f"{holder} was renewed in the last {LASTS} s")
    words = (
        f"none in namespace {installation.namespace} was renewed in the last {LASTS} s: another installation takes its jobs over"
    )
    look = f"kubectl -n {installation.namespace} logs deployment/rekindle-control"
    return failed(LEASE, words, f"look at the control worker: {look}")


async def _others(looks: Leftovers, installation: Installation) -> Link:
    places = {holder.partition("/")[0] for holder in await looks.alive()} - {installation.namespace}
    if not places:
        return ok(OTHERS, "none lives in this cluster")
    both = []
    for place in sorted(places):
        other = await installation_of(installation.api, place)
        served = "all namespaces" if not other.served else ", ".join(other.served)
        if not (other.served and installation.served) or set(other.served) & set(installation.served):
            both.append(f"that in {place} serves {served}" + ("" if other.is_read else ", as far as can be seen"))
    if not both:
        return ok(OTHERS, f"those in {few(sorted(places))} serve other namespaces")
    words = f"{'; '.join(both)}: each job has one that recovers it, and the others observe it"
    return warning(OTHERS, words, "let each serve namespaces of its own: the value `namespaces`, with rbac.scope=namespaces")
