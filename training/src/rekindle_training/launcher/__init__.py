"""`rekindle-train`: starts and ends the rank processes of one pod."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # see BEFORE_TORCH; what is forked has what the launcher has loaded
