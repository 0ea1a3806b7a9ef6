"""Shows nodes to people, and writes what people say about them, on every cluster. Registered by the control worker."""

from temporalio import activity

from activities.clusters.port import Cluster
from activities.error_mapping import translating_errors
from activities.heartbeat import heartbeating
from activities.rule_breaker import Beliefs
from rekindle.model.explained import FEW_FACTS, MOST_DOUBTED, MOST_FACTS, Mark, NodesNow, NodesRequest
from rekindle.policy.detection.node_report import marked, node_now, nodes_now, there


class NodeActivities:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._beliefs = cluster, Beliefs(cluster)

    @activity.defn
    async def look_at_nodes(self, request: NodesRequest) -> NodesNow:
        """Returns nodes with what is seen of them, and the rule that decides about each fact."""
        rules = self._cluster.rules
        with translating_errors():
            async with heartbeating():
                if not request.names:
                    seen = await self._cluster.nodes()
                    return nodes_now(seen, rules, self._beliefs.among(seen))
                found = [await self._cluster.node(name) for name in request.names]
                most = MOST_FACTS if len(found) == 1 else FEW_FACTS
                shown = there(found[0], await self._cluster.pods_on(request.names[0]), rules) if request.pods else None
                doubted = await self._beliefs.about(found)
                nodes = tuple(node_now(node, rules, most, doubted) for node in found)
                return NodesNow(nodes=nodes, count=len(found), there=shown, unbelieved=doubted[:MOST_DOUBTED])

    @activity.defn
    async def cordon_nodes(self, request: NodesRequest) -> None:
        """Cordons these nodes, so that no new pod is placed there, or uncordons them."""
        with translating_errors():
            async with heartbeating():
                for name in request.names:
                    await self._cluster.cordon_node(name, cordoned=bool(request.cordon))

    @activity.defn
    async def mark_nodes(self, request: NodesRequest) -> None:
        """Writes what a person says about these nodes."""
        with translating_errors():
            async with heartbeating():
                for name in request.names:
                    await self._cluster.annotate_node(name, marked(request.mark or Mark.NONE, request.reason))
