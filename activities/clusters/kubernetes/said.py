"""Nodes as the watch knows them, each with what others say of it now."""

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.reports import Where, in_order, read
from rekindle.model.cluster import Node, NodeReport
from rekindle.model.keys import HEALTH, ISOLATED, NODE_HEALTHY
from rekindle.model.rules import Rules
from rekindle.policy.rules import is_of_matter


class SaidOfNodes:
    """There are thousands of nodes, and tens of thousands of events of them: what no rule looks at is not kept."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._annotations = {*rules.annotations, HEALTH, ISOLATED, NODE_HEALTHY}
        self._nodes: dict[str, Node] = {}
        self._reports: dict[str, dict[str, tuple[NodeReport, ...]]] = {}
        """By node, and by the UID of the object that says it."""
        self._about: dict[str, tuple[str, ...]] = {}
        """Nodes that an object is about, by its UID."""

    def put(self, node: Node) -> Node:
        """A node as its own object is now."""
        metadata = node.metadata
        kept = {
            "labels": {key: value for key, value in metadata.labels.items() if key in self._rules.labels},
            "annotations": {key: value for key, value in metadata.annotations.items() if key in self._annotations},
        }
        slim = node.model_copy(update={"metadata": metadata.model_copy(update=kept)})
        self._nodes[metadata.name] = slim
        return self._whole(slim)

    def drop(self, node: Node) -> Node:
        self._nodes.pop(node.metadata.name, None)
        return node

    def take(self, where: Where, thing: Object, *, gone: bool) -> list[Node]:
        """An object that says something of nodes; answers the nodes that it concerns, as they are now."""
        uid = str(thing["metadata"]["uid"])
        found = {} if gone else read(where, thing)
        if found is None:
            return []  # what it said before holds
        said = {name: self._of_matter(reports) for name, reports in found.items()}
        said = {name: reports for name, reports in said.items() if reports}
        before = self._about.pop(uid, ())
        if said:
            self._about[uid] = tuple(said)
        for name in before:
            self._reports[name].pop(uid, None)
            if not self._reports[name]:
                del self._reports[name]
        for name, reports in said.items():
            self._reports.setdefault(name, {})[uid] = reports
        concerned = (self._nodes.get(name) for name in dict.fromkeys((*before, *said)))
        return [self._whole(node) for node in concerned if node]

    def _of_matter(self, reports: tuple[NodeReport, ...]) -> tuple[NodeReport, ...]:
        return tuple(one for one in reports if is_of_matter(one, self._rules))

    def _whole(self, node: Node) -> Node:
        reports = [one for some in self._reports.get(node.metadata.name, {}).values() for one in some]
        if not reports:
            return node
        return node.model_copy(update={"status": node.status.model_copy(update={"reports": in_order(reports)})})
