"""TaskD's part of a rank: profiling, link switches and stress tests. Rekindle's session does the last two by itself."""

import logging

log = logging.getLogger(__name__)


def init_taskd_worker(rank_id: int, upper_limit_of_disk_in_mb: int = 5000, framework: str = "pt") -> bool:
    """Returns True: there is nothing to prepare."""
    return True


def start_taskd_worker() -> bool:
    """Returns True: the session does the work. There is no profiling."""
    log.warning("taskd: no worker started, ranks need none; there is no profiling")
    return True


def destroy_taskd_worker() -> bool:
    """Returns True: there is nothing to end."""
    return True
