"""PostgreSQL on this machine: finds its programs, creates a database directory, and says how its server is started.

PostgreSQL refuses to run as root. Then it runs as the user `postgres`, which Debian's package creates.
"""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rekindle.errors import BadInput, Unavailable

USER = "temporal"
"""Owner of the databases. Nobody else reaches them: the server listens on the loopback interface only."""

BECOME = """
import ctypes, os, sys
uid, gid, parent, program = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
os.setgroups([]); os.setgid(gid); os.setuid(uid)
ctypes.CDLL(None).prctl(1, 9)
os.getppid() == parent or parent == 0 or sys.exit(1)
os.execv(program[0], program)
"""
"""Program that becomes another user, ends with its parent from then on, and becomes the program that it was given. The kernel
forgets with a change of users that a process is to end with its parent."""


@dataclass(frozen=True)
class Postgres:
    programs: Path
    """Folder with `initdb` and `postgres`."""

    directory: Path
    port: int

    def create(self) -> None:
        """Creates the database directory, if there is none yet.

        Raises:
            BadInput: the user of PostgreSQL cannot enter the directory. Unavailable: initdb failed, with its last lines.
        """
        if (self.directory / "PG_VERSION").is_file():
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        if user := _user():
            os.chown(self.directory, user.pw_uid, user.pw_gid)
            self._ensure_reachable(user)
        made = subprocess.run(
            self._as_user(self._initdb(), parent=0), cwd="/", capture_output=True, text=True, check=False, env=_plain()
        )
        if made.returncode:
            words = "\n  ".join((made.stderr or made.stdout).strip().splitlines()[-5:])
            raise Unavailable(f"initdb failed:\n  {words}")

    def command(self) -> list[str]:
        """Returns the command of the server."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
        }
        server = [str(self.programs / "postgres"), "-D", str(self.directory)]
        server += [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return self._as_user(server, parent=os.getpid())

    def _initdb(self) -> list[str]:
        program = [str(self.programs / "initdb"), "--pgdata", str(self.directory), "--username", USER]
        return [*program, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]

    def _as_user(self, command: Sequence[str], parent: int) -> list[str]:
        user = _user()
        if user is None:
            return list(command)
        return [sys.executable, "-I", "-S", "-c", BECOME, str(user.pw_uid), str(user.pw_gid), str(parent), *command]

    def _ensure_reachable(self, user: pwd.struct_passwd) -> None:
        for folder in self.directory.parents:
            found = folder.stat()
            if not found.st_mode & 0o001 and found.st_uid != user.pw_uid:
                raise BadInput(
                    f"--state-dir: {folder} cannot be entered by the user {user.pw_name}, as whom PostgreSQL runs "
                    f"(accepted: a directory that everybody may enter; mend: chmod o+x {folder})"
                )


def _user() -> pwd.struct_passwd | None:
    """Returns the user that PostgreSQL becomes. None: it runs as ourselves."""
    if os.geteuid():
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError as error:
        raise Unavailable("PostgreSQL does not run as root, and this machine has no user postgres to run it as") from error


def _plain() -> dict[str, str]:
    """Returns the environment without settings of other databases."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PG")} | {"LC_ALL": "C"}


def programs() -> Path:
    """Returns the folder with the programs of PostgreSQL: on PATH, or where Debian has those of each version.

    Raises:
        Unavailable: there are none; the message says how to install them.
    """
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: folder.parent.name, reverse=True)
    for folder in folders:
        if os.access(folder / "postgres", os.X_OK) and os.access(folder / "initdb", os.X_OK):
            return folder
    raise Unavailable("no PostgreSQL on this machine: apt-get install postgresql, or put its initdb and postgres on PATH")
