"""Objects that a cluster has once: priority classes, and the policies that protect our marks."""

from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.pod_objects import STANDBY_CLASS
from rekindle.model.examined import Link, failed, ok, warning
from workers.examination.installation import APPLY, Installation, asked, found

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"

OWN_CLASS = "rekindle"

KIND = "ValidatingAdmissionPolicy"

SHIPPED = [Path(__file__).parents[2] / "deploy" / "base" / name for name in ("marks.yaml", "priority.yaml")]
"""Files with the policies of this release."""

POLICIES = {
    "rekindle-marks": "any tenant may say that its pods are of another tenant's job",
    "rekindle-priority": "any tenant may give its pods the priority of Rekindle",
}
"""Policies, each with what is possible without it."""


async def objects(installation: Installation) -> AsyncIterator[Link | None]:
    """Examines the priority classes and the admission policies."""
    yield await asked("priority of our pods", _own_class(installation))
    yield await asked("priority of standbys", _standby_class(installation))
    for policy, danger in POLICIES.items():
        yield await asked(f"policy {policy}", _policy(installation, policy, danger))


async def _own_class(installation: Installation) -> Link:
    name = "priority of our pods"
    there = await found(installation.api.get(f"{CLASSES}/{OWN_CLASS}"))
    if there is None:
        return failed(name, f"PriorityClass {OWN_CLASS} is missing: no pod of ours is admitted", APPLY)
    if there["value"] <= 0:
        return warning(name, f"{OWN_CLASS} is {there['value']}: jobs push our pods off their nodes", APPLY)
    return ok(name, f"{OWN_CLASS} is {there['value']}")


async def _standby_class(installation: Installation) -> Link:
    name = "priority of standbys"
    there = await found(installation.api.get(f"{CLASSES}/{STANDBY_CLASS}"))
    if there is None:
        words = f"PriorityClass {STANDBY_CLASS} is missing: standbys have the priority of their job, and push others off"
        return warning(name, words, f"{APPLY} (shared.standbyPriorityClass=true)")
    if there["value"] >= 0 or there.get("preemptionPolicy") != "Never":
        words = f"{STANDBY_CLASS} is {there['value']}, {there.get('preemptionPolicy')}: standbys push other pods off their nodes"
        return warning(name, words, APPLY)
    return ok(name, f"{STANDBY_CLASS} is {there['value']}, and takes nobody's place")


async def _policy(installation: Installation, policy: str, danger: str) -> Link:
    name = f"policy {policy}"
    path = f"{ADMISSION}/validatingadmissionpolicies/{policy}"
    there, binding = [
        await found(installation.api.get(one)) for one in (path, f"{ADMISSION}/validatingadmissionpolicybindings/{policy}")
    ]
    if there is None:
        return failed(name, f"missing: {danger}", APPLY)
    if binding is None:
        return failed(name, f"not bound: {danger}", APPLY)
    if problem := _weakness(there, binding, policy):
        return failed(name, f"{problem}: {danger}", APPLY)
    if _rules(there) != _shipped(policy):
        return warning(name, f"its rules are not those of this release: perhaps {danger}", APPLY)
    if warnings := ((there.get("status") or {}).get("typeChecking") or {}).get("expressionWarnings"):
        return warning(name, f"the API server warns of it: {warnings[0].get('warning', '')}", APPLY)
    return ok(name, "in force in the whole cluster")


def _weakness(policy: Object, binding: Object, name: str) -> str:
    """Returns why a policy is not in force for all pods; empty: it is."""
    spec = binding["spec"]
    if spec.get("policyName") != name:
        return f"its binding is for {spec.get('policyName')}"
    if "Deny" not in (spec.get("validationActions") or ()):
        return "its binding denies nothing"
    if spec.get("matchResources"):
        return "its binding is for some objects only"
    if policy["spec"].get("failurePolicy") == "Ignore":
        return "it lets pass what it cannot judge"
    constraints = policy["spec"].get("matchConstraints") or {}
    if any(constraints.get(one) for one in ("namespaceSelector", "objectSelector", "excludeResourceRules")):
        return "it is for some objects only"
    return ""


def _rules(policy: Object) -> list[object]:
    """Returns what a policy judges, and by what. Messages may differ."""
    spec = policy["spec"]
    judged = [
        [one.get(part) for part in ("operations", "apiGroups", "apiVersions", "resources")]
        for one in (spec.get("matchConstraints") or {}).get("resourceRules") or ()
    ]
    parts = ("matchConditions", "variables", "validations")
    return [judged, *([one["expression"] for one in spec.get(part) or ()] for part in parts)]


def _shipped(policy: str) -> list[object]:
    """Returns the rules of a policy of this release."""
    things = (one for file in SHIPPED for one in yaml.safe_load_all(file.read_text()))
    return next(_rules(one) for one in things if (one["kind"], one["metadata"]["name"]) == (KIND, policy))
