import os

collect_ignore_glob = [] if os.environ.get("REKINDLE_TEMPORAL_CLUSTER") else ["test_*.py"]
"""`make temporal-cluster` runs these tests: the first time on a machine builds the server, which takes minutes."""
