"""Names of MindCluster's TaskD, with Rekindle's training side behind them."""
