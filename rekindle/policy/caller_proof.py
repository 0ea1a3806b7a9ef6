"""Checks whether a caller may be a pod of a job, before the cluster is asked to confirm it. Pure; used by the gateway."""

import base64
import json
from collections.abc import Iterable

from rekindle.errors import MALFORMED, BadInput
from rekindle.model.keys import TOKEN_AUDIENCE
from rekindle.model.senders import Caller, Claims, Problem, Proof, Speakers

LONGEST_TOKEN = 4096
"""Maximum number of characters of a token. Those of Kubernetes have about 1,200."""

BEARER = "bearer "

WANTED = (
    f"the manager's pod needs a projected service account token with the audience {TOKEN_AUDIENCE}, "
    "mounted as /var/run/secrets/rekindle.io/token"
)


def token_of(authorizations: Iterable[str | bytes]) -> str:
    """Returns the bearer token of a call. Empty: there is none, or there are several."""
    said = [text for text in authorizations if isinstance(text, str)]
    if len(said) != 1 or said[0][: len(BEARER)].lower() != BEARER:
        return ""
    return said[0][len(BEARER) :].strip()


def claims_of(token: str) -> Claims:
    """Returns the content of a token, without verification.

    Raises:
        BadInput: this is no token that Kubernetes issues for a pod with the gateway's audience.
    """
    if len(token) > LONGEST_TOKEN:
        raise BadInput(f"the token has {len(token)} characters: accepted are at most {LONGEST_TOKEN}")
    try:
        _, payload, _ = token.split(".")
        said = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        audiences = [said["aud"]] if isinstance(said["aud"], str) else said["aud"]
        where, pod = said["kubernetes.io"], said["kubernetes.io"]["pod"]
        claims = Claims(
            str(pod["uid"]),
            tuple(map(str, audiences)),
            float(said["exp"]),
            str(where.get("namespace", "")),
            str(pod.get("name", "")),
        )
        if not "".join((*claims.audiences, claims.pod, claims.namespace, claims.name)).isprintable():
            raise ValueError("what it says cannot be repeated")
    except MALFORMED as error:
        raise BadInput("the token is none that Kubernetes makes for a pod") from error
    if TOKEN_AUDIENCE not in claims.audiences:
        raise BadInput(f"the token is for {', '.join(claims.audiences)[:100]}: accepted is the audience {TOKEN_AUDIENCE}")
    return claims


def caller_of(address: str, token: str) -> Caller:
    if not token:
        return Caller(address)
    try:
        return Caller(address, claims_of(token))
    except BadInput as error:
        return Caller(address, wrong=str(error))


def problem_of(caller: Caller, speakers: Speakers | None, proof: Proof) -> Problem | None:
    """Returns why the caller cannot be a pod of the job. None: it can be.

    Args:
        speakers: pods of the job; None: no such job is known.
    """
    if speakers is None:
        return Problem(f"no pod of this job has the address {caller.address}", may_pass=True)
    if proof is Proof.NOBODY:
        side = speakers.training_side
        return Problem(f"no sender is accepted for jobs of {side} here (REKINDLE_{side.upper()}_SENDERS)")
    if proof is Proof.TOKEN and caller.claims is None:
        return Problem(f"{caller.wrong}; {WANTED}")
    if proof is Proof.TOKEN and caller.claims and caller.claims.pod not in speakers.pods:
        return Problem("the token's pod is none of this job", may_pass=True)
    if proof is Proof.ADDRESS and caller.address not in speakers.addresses:
        return Problem(f"no pod of this job has the address {caller.address}", may_pass=True)
    return None
