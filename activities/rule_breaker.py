"""Decides which detection rules can be believed, for the activities that look at only a few nodes.

That depends on all nodes of the cluster.
"""

from collections.abc import Iterable, Sequence

from activities.clusters.port import Cluster
from rekindle.model.cluster import Node
from rekindle.model.rules import Rules, Unbelieved
from rekindle.policy.detection import rule_breaker


class Beliefs:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._rules = cluster, cluster.rules
        self._judged: tuple[Sequence[Node], tuple[Unbelieved, ...]] = ((), ())

    async def about(self, nodes: Iterable[Node]) -> tuple[Unbelieved, ...]:
        """Returns the rules that are not believed, if a rule that can be doubted applies to these nodes.

        Only then all nodes are read.
        """
        if not any(rule_breaker.called(node, self._rules) for node in nodes):
            return ()
        return self.among(await self._cluster.nodes())

    def among(self, nodes: Sequence[Node]) -> tuple[Unbelieved, ...]:
        """Returns the rules that are not believed, judged from all nodes of the cluster.

        The result is kept for as long as the same sequence of nodes is passed.
        """
        if nodes is not self._judged[0]:
            self._judged = nodes, rule_breaker.among(nodes, self._rules)
        return self._judged[1]

    async def rules(self, nodes: Iterable[Node]) -> Rules:
        """Returns the rules that can be believed for these nodes."""
        return rule_breaker.doubting(self._rules, await self.about(nodes))
