"""Rights of the accounts of an installation: each request of the table of rights is put to the API server's own authorizer."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.kind import Right
from activities.clusters.kubernetes.rights import OWN, is_of_cluster, rights_at_home, rights_of
from rekindle.errors import ClusterError
from rekindle.model.bounds import few
from rekindle.model.examined import Link, failed, ok
from workers.examination.installation import APPLY, Installation, asked

REVIEWS = "/apis/authorization.k8s.io/v1"
OWN_NAME = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

AT_ONCE = 8
"""Requests in flight at a time."""

MOST_NAMESPACES = 3
"""Maximum number of served namespaces that are asked about."""


@dataclass(frozen=True)
class Question:
    right: Right
    verb: str
    namespace: str = ""
    """Namespace of the objects. Empty: all namespaces, or none."""
    name: str = ""

    @property
    def attributes(self) -> Object:
        resource, _, part = self.right.resource.partition("/")
        where = {"namespace": self.namespace, "name": self.name, "subresource": part}
        given = {key: value for key, value in where.items() if value}
        return {"group": self.right.group, "resource": resource, "verb": self.verb, **given}

    def __str__(self) -> str:
        group = f".{self.right.group}" if self.right.group else ""
        return f"{self.verb} {self.right.resource}{group}" + (f" in {self.namespace}" if self.namespace else "")


def questions(account: str, installation: Installation) -> Iterator[Question]:
    """Yields the requests that the process of an account makes."""
    for right in rights_of(account):
        scopes = ("",) if is_of_cluster(right) else installation.served[:MOST_NAMESPACES] or ("",)
        yield from (Question(right, verb, scope) for scope in scopes for verb in right.verbs)
    for right in rights_at_home(account):
        for verb in right.verbs:
            yield from (Question(right, verb, installation.namespace, name) for name in right.names or ("",))


async def rights(installation: Installation) -> AsyncIterator[Link | None]:
    """Examines the rights of each account. Without the right to ask about others, those of our own account."""
    own = await _own_name(installation.api)
    for account in OWN:
        yield await asked(f"rights of {account}", _of(account, installation, own))


async def _own_name(api: Api) -> str:
    """Returns the user as whom we ask. Empty: the API server does not say it."""
    try:
        answer = await api.create(OWN_NAME, {})
        return str(answer["status"]["userInfo"]["username"])
    except (ClusterError, LookupError, TypeError):
        return ""


async def _of(account: str, installation: Installation, own: str) -> Link:
    name, namespace = f"rights of {account}", installation.namespace
    user = f"system:serviceaccount:{namespace}:rekindle-{account}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    asks_for_itself = user == own
    path = f"{REVIEWS}/{'selfsubjectaccessreviews' if asks_for_itself else 'subjectaccessreviews'}"
    places = asyncio.Semaphore(AT_ONCE)

    async def is_allowed(question: Question) -> bool:
        spec: Object = {"resourceAttributes": question.attributes}
        async with places:
            answer = await installation.api.create(
                path, {"spec": spec if asks_for_itself else {**spec, "user": user, "groups": groups}}
            )
        return bool(answer["status"]["allowed"])

    wanted = list(dict.fromkeys(questions(account, installation)))
    first = await is_allowed(wanted[0])  # alone: without the right to ask, all of them would be refused
    answers = [first, *await asyncio.gather(*map(is_allowed, wanted[1:]))]
    denied = [str(one) for one, allowed in zip(wanted, answers, strict=True) if not allowed]
    if not denied:
        left = len(installation.served) - MOST_NAMESPACES
        more = f"; those in {left} of its {len(installation.served)} namespaces were not asked for" if left > 0 else ""
        return ok(name, f"all {len(wanted)} requests of its process are allowed{more}")
    words = f"account rekindle-{account} may not {few(denied)}"
    return failed(name, words, f"{APPLY}: it has the rules of access (rbac.yaml)")
