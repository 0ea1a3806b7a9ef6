"""Shows nodes to people, and writes what people say about them, on every cluster. Registered by the control worker."""

from temporalio import activity

from activities.clusters.port import Cluster
from activities.error_mapping import translating_errors
from activities.heartbeat import heartbeating
from activities.rule_breaker import Beliefs
from rekindle.errors import ClusterError, Forbidden, Invalid, NotFound
from rekindle.model.bounds import note
from rekindle.model.cluster import ClusterEvent
from rekindle.model.explained import FEW_FACTS, MOST_DOUBTED, MOST_FACTS, Mark, NodesNow, NodesRequest
from rekindle.model.keys import ISOLATED
from rekindle.model.node_record import AsideRequest, AsideResult
from rekindle.policy.detection import isolation
from rekindle.policy.detection.node_report import marked, node_now, nodes_now, there
from rekindle.policy.placement import node_records


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

    @activity.defn
    async def set_aside(self, request: AsideRequest) -> AsideResult:
        """Sets a node aside, so that no new pod is placed there, unless too many nodes are."""
        with translating_errors():
            async with heartbeating():
                nodes = {node.metadata.name: node for node in await self._cluster.nodes()}
                if request.node not in nodes:
                    return AsideResult(refused="there is no such node any more")
                marks = nodes[request.node].metadata.annotations
                if marks.get(ISOLATED) == note(request.reason):
                    return AsideResult()  # by an earlier try
                if isolation.is_isolated(marks):
                    return AsideResult(refused="it has no new pods already")
                if why := node_records.too_many(len(isolation.isolated(nodes.values())), len(nodes)):
                    return AsideResult(refused=note(why))
                try:
                    await self._cluster.annotate_node(request.node, isolation.isolation(marks, request.reason))
                except (Forbidden, Invalid) as error:
                    return AsideResult(refused=note(str(error)))
                await self._record(request, "NodeSetAside", request.reason)
        return AsideResult()

    @activity.defn
    async def release_node(self, request: AsideRequest) -> None:
        """Releases a node that was set aside for this reason. A mark of others stays."""
        with translating_errors():
            async with heartbeating():
                try:
                    marks = (await self._cluster.node(request.node)).metadata.annotations
                except NotFound:
                    return
                if marks.get(ISOLATED) == note(request.reason):
                    await self._cluster.annotate_node(request.node, isolation.release(marks))

    async def _record(self, request: AsideRequest, reason: str, words: str) -> None:
        event = ClusterEvent(name=request.node, kind="Node", reason=reason, message=words, type="Warning")
        try:
            await self._cluster.record(request.job_id, event)
        except ClusterError as error:
            activity.logger.warning("event of a node not recorded", extra={"node": request.node, "error": str(error)})
