"""World of the random walks: a scripted training side, cluster and network, on a driver without a server."""
