"""Workers of the tests as real processes, forked from one that has imported torch: a start takes 20 ms, not seconds.

A forked worker has its own memory, environment, exit code and signals, so it can be killed at any moment as one that
was started by a command; what a start itself does is tested with the command.
"""

import gc
import json
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from neobert import processes

MOST_BYTES = 1 << 20
WORKER = "neobert.runs.worker"
IMPORTED = "FORKED_WITH"
"""In a worker's environment: which package the process that forks it has imported, "deepspeed" or "optuna"."""


class ForkedProcess:
    """What of `subprocess.Popen` the tests use, for a process that another one forked."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.errors = -1
        self._status, self._said = status, b""

    def poll(self) -> int | None:
        """The exit code, negative where a signal ended it; None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked worker", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(int(os.read(self._status, 32)))
            os.close(self._status)
        return self.returncode

    def communicate(self, timeout: float = 300) -> tuple[None, bytes]:
        """Nothing, and what it said on stderr until nobody held that any more."""
        deadline = time.monotonic() + timeout
        while self.errors >= 0:
            if not select.select([self.errors], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise subprocess.TimeoutExpired("a forked worker", timeout)
            part = os.read(self.errors, 1 << 16)
            self._said += part
            if not part:
                os.close(self.errors)
                self.errors = -1
        self.wait(max(0.0, deadline - time.monotonic()))
        return None, self._said

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)


Child = ForkedProcess | subprocess.Popen[bytes]
START_CHILD = processes.start_child


def start_worker(arguments: Sequence[str], environment: Mapping[str, str], program: str = WORKER) -> ForkedProcess:
    """`python -m PROGRAM` with these arguments and this environment, its stderr in a pipe."""
    errors, its_errors = os.pipe()
    process = _fork(program, arguments, environment, its_errors)
    os.close(its_errors)
    process.errors = errors
    return process


def start_child(command: Sequence[str], environment: Mapping[str, str], stdout: int | None = None) -> Child:
    """`neobert.processes.start_child`, but that workers are forked."""
    if list(command[1:4]) != ["-P", "-m", WORKER]:
        return START_CHILD(command, environment, stdout)
    return _fork(WORKER, command[4:], environment, sys.__stderr__.fileno())


def _fork(program: str, arguments: Sequence[str], environment: Mapping[str, str], errors: int) -> ForkedProcess:
    status, its_status = os.pipe()
    asked = {"program": program, "arguments": list(arguments), "folder": str(Path.cwd())}
    request = json.dumps({**asked, "environment": dict(environment)})
    server, _ = _server(environment.get(IMPORTED, ""))
    socket.send_fds(server, [request.encode()], [errors, its_status])
    os.close(its_status)
    return ForkedProcess(int(server.recv(32)), status)


_servers: "dict[str, tuple[socket.socket, subprocess.Popen[bytes]]]" = {}


def _server(imported: str) -> "tuple[socket.socket, subprocess.Popen[bytes]]":
    """The process that forks; it ends with this one, whose end of the socket then closes."""
    if imported in _servers:
        return _servers[imported]
    own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(processes.REPOSITORY)}
    command = [sys.executable, str(Path(__file__).resolve()), str(its.fileno()), imported]
    process = subprocess.Popen(command, env=environment, pass_fds=[its.fileno()])
    its.close()
    _servers[imported] = own, process
    return own, process


def close() -> None:
    """End the processes that fork."""
    for server, process in _servers.values():
        server.close()
        process.wait()


_connect = sqlite3.dbapi2.connect


def connect(*arguments: Any, **settings: Any) -> sqlite3.Connection:
    """`sqlite3.connect`, as SQLAlchemy calls it, that does not wait for disks: what a process wrote survives its end
    without that."""
    connection = _connect(*arguments, **settings)
    connection.execute("PRAGMA synchronous=OFF")
    return connection


def _import_storages() -> None:
    """Import what workers on studies need beside Optuna, and what Optuna imports when it opens a database."""
    from optuna.storages import RDBStorage

    from neobert.search.samplers import import_for

    sqlite3.dbapi2.connect = connect
    RDBStorage("sqlite://")
    import_module("sqlalchemy.dialects.postgresql.psycopg")
    import_module("psycopg")
    import_for("qmc")


def serve(descriptor: int, imported: str) -> int:
    """Fork a worker for every request until nobody can ask any more; in a worker, its exit code. Workers do not wait
    for disks."""
    os.fsync = lambda descriptor: None
    if imported == "optuna":
        _import_storages()
    else:
        import torch

        import neobert.executors.pretraining  # noqa: F401 - what every worker needs
        from neobert.search import study  # noqa: F401
        from neobert.training import zero

        torch.optim.AdamW([torch.zeros(1)])  # imports torch's compiler
        if imported == "deepspeed":
            zero._deepspeed(torch.device("cpu"))
    gc.freeze()  # or each worker would copy the pages of all that is imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies of shepherds
    server = socket.socket(fileno=descriptor)
    while True:
        request, descriptors, _, _ = socket.recv_fds(server, MOST_BYTES, 2)
        if not request:
            return 0
        errors, status = descriptors
        asked = json.loads(request)
        program = import_module(asked["program"])
        if os.fork():
            os.close(errors)
            os.close(status)
            continue
        # A shepherd for each worker waits for it, since a process can wait for its own children alone.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
        if pid:
            os.close(errors)
            server.send(str(pid).encode())
            server.close()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _, code = os.waitpid(pid, 0)
            os.write(status, str(code).encode())
            os._exit(0)
        server.close()
        os.close(status)
        os.dup2(errors, sys.stderr.fileno())
        os.close(errors)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        sys.argv = [asked["program"], *asked["arguments"]]
        code: int = program.main(asked["arguments"])
        return code


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1]), sys.argv[2]))
