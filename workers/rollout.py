"""Finds out whether a control worker is what its Deployment rolls out now. Called by `workers.control` before it takes over.

An upgrade, `helm rollback` and `kubectl rollout undo` all end in the Deployment's latest revision, also where that has an older
version. The worker of such a pod takes over at its start (docs/decisions/0116).
"""

import logging

from rekindle.errors import ClusterError
from rekindle.settings import Settings

DEPLOYMENT = "rekindle-control"
REVISION = "deployment.kubernetes.io/revision"
"""Annotation that the Deployment's controller writes on the Deployment, and on the ReplicaSet of each revision."""

logger = logging.getLogger("versions")


async def is_rolled_out(settings: Settings) -> bool:
    """Returns whether the latest revision of the Deployment is that of this pod. False if that is not known."""
    if not settings.pod_template_hash:
        return False
    from activities.clusters.api_server import Api  # over 2 s and 190 MB

    apps = f"/apis/apps/v1/namespaces/{settings.namespace}"
    try:
        async with Api(settings.kubeconfig) as api:
            deployment = await api.get(f"{apps}/deployments/{DEPLOYMENT}")
            ours = await api.get(f"{apps}/replicasets/{DEPLOYMENT}-{settings.pod_template_hash}")
    except ClusterError as error:
        logger.warning("revision of the Deployment not read", extra={"reason": str(error)})
        return False
    latest, own = ((one["metadata"].get("annotations") or {}).get(REVISION) for one in (deployment, ours))
    return latest is not None and latest == own
