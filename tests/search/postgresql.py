"""A PostgreSQL server of the tests' own: on a socket in a folder of its own, gone with the process that started it."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.waiting import until

PROGRAMS = ("initdb", "postgres", "pg_isready", "createdb")
START_SECONDS = 120


def _programs() -> Path | None:
    """The folder of the newest server's programs, which Debian keeps off the path; None without one."""
    on_path = [Path(found).parent for name in PROGRAMS if (found := shutil.which(name))]
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), *on_path]
    return next((each for each in folders if all((each / name).exists() for name in PROGRAMS)), None)


def reason_not_to_start() -> str | None:
    """Why no server can run here, in a sentence; None where one can."""
    if _programs() is None:
        return "no PostgreSQL here (the Debian package is listed in .ci/run)"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "PostgreSQL refuses to run as root, and there is no setpriv here"
    return None


@dataclass
class Server:
    """A server that can be stopped and started."""

    folder: Path
    _process: subprocess.Popen[bytes] | None = field(default=None)

    def address(self, database: str) -> str:
        """Create a database; its address for Optuna."""
        self._run("createdb", "--host", str(self.folder), "--username", "postgres", database)
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}"

    def initialise(self) -> None:
        """Make the files of an empty server."""
        self._run("initdb", "--no-sync", "--auth=trust", "--username=postgres", "--pgdata", str(self.folder / "data"))

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = ["listen_addresses=", f"unix_socket_directories={self.folder}", "fsync=off"]
        options = [word for setting in settings for word in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            command = self._command("postgres", "-D", str(self.folder / "data"), *options)
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        ready = self._command("pg_isready", "--quiet", "--host", str(self.folder))
        until(lambda: not subprocess.run(ready, check=False).returncode, START_SECONDS, "PostgreSQL")

    def stop(self) -> None:
        """End all its connections and the server."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(self._command(program, *arguments), check=True, capture_output=True, cwd="/")

    def _command(self, program: str, *arguments: str) -> list[str]:
        """A command as the unprivileged user that the server demands; it ends with this process."""
        folder = _programs()
        assert folder is not None
        user = ["--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        return ["setpriv", *user, "--pdeathsig", "INT", "--", str(folder / program), *arguments]


@contextmanager
def running() -> Iterator[Server]:
    """A server that runs."""
    folder = Path(tempfile.mkdtemp(prefix="postgresql-", dir="/tmp"))  # a socket's path must be short
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    server = Server(folder)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
