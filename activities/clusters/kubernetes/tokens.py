"""Identifies the pod that a token is bound to, by asking the API server. The gateway uses it through the driver."""

from activities.clusters.api_server import Api
from rekindle.errors import ClusterUnavailable, Refused
from rekindle.model.keys import TOKEN_AUDIENCE

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
POD_UID = "authentication.kubernetes.io/pod-uid"

LONGEST_REASON = 200
"""Maximum length of the server's message."""


async def pod_of_token(api: Api, token: str) -> str:
    """Returns the UID of the existing pod that the token is bound to.

    Raises:
        Refused: the token is invalid, or not for us. ClusterUnavailable: the server cannot check it.
    """
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [TOKEN_AUDIENCE]},
    }
    status = (await api.create(TOKEN_REVIEWS, body))["status"]
    if not status.get("authenticated"):
        if not await api.is_ready():
            raise ClusterUnavailable("the API server is not ready, and confirms no token")
        raise Refused(f"the API server does not confirm the token: {str(status.get('error'))[:LONGEST_REASON]}")
    uids = (status["user"].get("extra") or {}).get(POD_UID, [])
    if TOKEN_AUDIENCE not in status.get("audiences", ()) or len(uids) != 1:  # a server without support for audiences returns none
        raise Refused(f"the token is not one of a pod for the audience {TOKEN_AUDIENCE}")
    return str(uids[0])
