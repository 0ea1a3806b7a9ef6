"""Real peers that are scripted: training sides, clusters, controllers and platforms."""
