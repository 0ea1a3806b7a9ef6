"""AdmissionReview, version 1: reads the request of the API server, and writes the answer. Source: admission.k8s.io/v1."""

import json
from base64 import b64encode
from typing import Any

from rekindle.errors import BadInput
from rekindle.policy.parameters.admission import Verdict
from rekindle.policy.parameters.reading import Document, mapping, text
from rekindle.policy.parameters.values import quoted

API, KIND = "admission.k8s.io/v1", "AdmissionReview"


def request_of(body: bytes) -> Document:
    """Returns the request of a review.

    Raises:
        BadInput: it is no review of this version; the message names what is missing.
    """
    try:
        review = mapping(json.loads(body))
    except RecursionError as error:
        raise BadInput("the body is nested too deep to be read") from error
    except ValueError as error:
        raise BadInput(f"the body is not JSON: {error}") from error
    for field, accepted in (("apiVersion", API), ("kind", KIND)):
        if review.get(field) != accepted:
            said = str(review.get(field)).encode(errors="backslashreplace").decode()  # it may have half a surrogate pair
            raise BadInput(f"{field}: {quoted(said)} is not accepted (accepted: {accepted})")
    request = mapping(review.get("request"))
    for field in ("uid", "operation"):
        if not text(request.get(field)):
            raise BadInput(f"request.{field}: missing, accepted is a text")
    return request


def answer(request: Document, verdict: Verdict) -> dict[str, Any]:
    """Returns the review with the verdict."""
    response: dict[str, Any] = {"uid": request["uid"], "allowed": not verdict.refusal}
    if verdict.refusal:
        response["status"] = {"status": "Failure", "code": 422, "reason": "Invalid", "message": verdict.refusal}
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    if verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = b64encode(json.dumps(verdict.patch).encode()).decode()
    return {"apiVersion": API, "kind": KIND, "response": response}
