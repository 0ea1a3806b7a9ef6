"""Default process group at the end of a session. Used by the communicator."""

import torch.distributed as dist


def end_group() -> None:
    """Destroys the default group, if it is there."""
    if dist.is_initialized():
        dist.destroy_process_group()


def meet_by_store(store: dist.Store, world_size: int) -> None:
    """Returns when all ranks have called it, for as long as a collective would wait.

    Raises:
        RuntimeError: the connection to the store was cut.
    """
    if store.add("came", 1) == world_size:
        store.set("all", "")
    store.wait(["all"], dist.default_pg_timeout)
