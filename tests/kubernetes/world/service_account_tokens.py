"""Tokens of pods: issued by the real API server, signed here with any key, or with an invalid signature."""

import base64
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from activities.clusters.api_server import Object
from rekindle.model.keys import TOKEN_AUDIENCE
from tests.kubernetes.world.control_plane import Namespace


async def token_of(namespace: Namespace, pod: Object | None, audience: str = TOKEN_AUDIENCE) -> str:
    """Returns a token as a kubelet would project it into the pod; without a pod it is bound to none."""
    spec: Object = {"audiences": [audience], "expirationSeconds": 600}
    if pod:
        metadata = pod["metadata"]
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = await namespace.api.create(namespace.path("serviceaccounts", "default/token"), body)
    return str(answer["status"]["token"])


def claims_in(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return found


def claims_of_pod(uid: str, *, audience: str = TOKEN_AUDIENCE, lasts: float = 86_400) -> dict[str, Any]:
    """Returns the claims of a pod's token in the format of Kubernetes."""
    return {"aud": [audience], "exp": time.time() + lasts, "kubernetes.io": {"pod": {"name": "a-pod", "uid": uid}}}


def signed(claims: dict[str, Any], key: Path) -> str:
    """Returns a token with these claims, signed with the key."""
    text = f"{_part({'alg': 'RS256', 'typ': 'JWT'})}.{_part(claims)}"
    command = ["openssl", "dgst", "-sha256", "-sign", str(key)]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    return f"{text}.{_encoded(done.stdout)}"


def unsigned(claims: object, signature: str = "c2lnbmF0dXJl") -> str:
    """Returns a token with these claims and an invalid signature."""
    return f"{_part({'alg': 'RS256'})}.{_part(claims)}.{signature}"


def new_key(path: Path) -> Path:
    subprocess.run(["openssl", "genrsa", "-out", str(path), "2048"], capture_output=True, check=True)
    return path


def _part(content: object) -> str:
    return _encoded(json.dumps(content).encode())


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
