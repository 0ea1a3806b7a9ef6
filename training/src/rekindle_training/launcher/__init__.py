"""`rekindle-train`: starts and ends the rank processes of one pod."""
