"""A rank's claim: one process of the machine speaks for it. Used by `processor.py`."""

import socket

_claims: dict[str, socket.socket] = {}
"""What this process holds as long as it lives."""


def claim(process: str, rank: int) -> None:
    """Makes this process the one that speaks for a rank, by a name of the kernel's that ends with its holder.

    Args:
        process: the name that the launcher gave to the rank's process.

    Raises:
        RuntimeError: another process has done so.
    """
    if process in _claims:
        return
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0rekindle/{process}")
    except OSError:
        holder.close()
        raise RuntimeError(
            f"session(): another process has begun a session as rank {rank}: `rekindle-train --nproc-per-node N` starts the "
            "ranks, so leave out what starts them in the script, such as torch.multiprocessing.spawn"
        ) from None
    _claims[process] = holder
