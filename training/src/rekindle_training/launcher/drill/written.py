"""Files that a script writes by itself: a drill's runs share them, as two runs of the script do."""

import os
from pathlib import Path

MOST_FILES = 20_000
"""Files that are looked at."""
SHOWN = 5
LEFT_OUT = ("__pycache__", "site-packages", "node_modules")


def since(moment: float, folder: Path, ours: Path) -> list[str]:
    """Returns files below a folder that were written since a moment, as far as a few are looked at; not those of the drill.

    Args:
        moment: seconds since the epoch.
        ours: the folder of the drill.
    """
    found: list[str] = []
    seen = 0
    for where, folders, files in os.walk(folder):
        folders[:] = [
            name for name in folders if not name.startswith(".") and name not in LEFT_OUT and Path(where) / name != ours
        ]
        for name in files:
            seen += 1
            path = Path(where) / name
            if path.is_file() and path.stat().st_mtime >= moment:
                found.append(str(path.relative_to(folder)))
        if seen > MOST_FILES:
            break
    return [*found[:SHOWN], f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else found
