"""Where pods may run: nodes that are avoided, nodes that are unfit, standbys, and admission."""
