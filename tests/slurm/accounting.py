"""The accounting of a cluster: a MariaDB with a database of its own, and slurmdbd before it."""

import secrets
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.slurm.configuration import Ports, slurmdbd_conf
from tests.slurm.daemons import START_SECONDS, Daemon, kill, start_daemon
from tests.support.waiting import until


@dataclass
class Accounting:
    """Started, stopped and started again with the same records."""

    folder: Path
    ports: Ports
    environment: Mapping[str, str]
    _database: Daemon | None = field(default=None, init=False)
    _slurmdbd: Daemon | None = field(default=None, init=False)

    def start(self) -> None:
        """Start what does not run and wait until sacctmgr answers."""
        if self._database is None:
            self._start_database()
        if self._slurmdbd is None:
            output = self.folder / "log" / "slurmdbd.out"
            self._slurmdbd = start_daemon(["slurmdbd", "-D"], output, self.environment)
        until(self._answers, START_SECONDS, "slurmdbd")

    def stop(self) -> None:
        """Kill slurmdbd: sacct fails from here on."""
        kill(self._slurmdbd)
        self._slurmdbd = None

    def close(self) -> None:
        """Kill slurmdbd and the database."""
        self.stop()
        kill(self._database)
        self._database = None

    def _start_database(self) -> None:
        data = self.folder / "database"
        if not data.exists():
            self._create_database(data)
        command = [
            "mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={data}",
            f"--socket={self.folder}/database.socket",
            f"--pid-file={self.folder}/database.pid",
            "--bind-address=127.0.0.1",
            f"--port={self.ports.database}",
            "--skip-name-resolve",
            f"--init-file={self.folder}/database.sql",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
            "--innodb-lock-wait-timeout=900",
            "--innodb-flush-log-at-trx-commit=0",
            "--performance-schema=OFF",
        ]
        self._database = start_daemon(command, self.folder / "log" / "database.out", self.environment)
        until(self._listens, START_SECONDS, "MariaDB")

    def _create_database(self, data: Path) -> None:
        password = secrets.token_hex(16)
        user = "'slurm'@'127.0.0.1'"
        configuration, statements = self.folder / "slurmdbd.conf", self.folder / "database.sql"
        for path in (configuration, statements):
            path.touch(mode=0o600)
        configuration.write_text(slurmdbd_conf(self.ports, self.folder, password))
        statements.write_text(
            "CREATE DATABASE IF NOT EXISTS accounting;\n"
            f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{password}';\n"
            f"GRANT ALL ON accounting.* TO {user};\n"
        )
        command = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}", "--skip-test-db"]
        command += ["--auth-root-authentication-method=socket"]
        with (self.folder / "log" / "database.out").open("ab") as output:
            subprocess.run(
                command, env=self.environment, check=True, stdout=output, stderr=output, timeout=START_SECONDS
            )

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.ports.database)) == 0

    def _answers(self) -> bool:
        """Asks for the cluster and adds it where it is missing. sacctmgr exits 0 on errors too: what counts is text."""
        command = ["sacctmgr", "--noheader", "--parsable2", "show", "cluster", "emulated", "format=cluster"]
        if "emulated" in self._manage(command):
            return True
        self._manage(["sacctmgr", "--immediate", "--quiet", "add", "cluster", "emulated"])
        return False

    def _manage(self, command: list[str]) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout if "error:" not in done.stderr else ""
