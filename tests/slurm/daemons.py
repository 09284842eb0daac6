"""Daemons that end with this process at the latest, and a node: namespaces of its own with a slurmd inside."""

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.waiting import until

Daemon = subprocess.Popen[bytes]
START_SECONDS = 300
"""For a daemon to answer: a second or two, and minutes where other processes have taken every core."""


def start_daemon(command: list[str], output: Path, environment: Mapping[str, str]) -> Daemon:
    """Start ``command`` in a session of its own. The kernel kills it when the thread that started it ends."""
    with output.open("ab") as stream:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def kill(daemon: Daemon | None) -> None:
    """kill −9, and wait for the end. None is nothing to do."""
    if daemon is not None:
        daemon.kill()
        daemon.wait()


@dataclass
class Node:
    """An emulated node: PID, mount and UTS namespaces, held by a first process that only collects the dead.

    The hostname is the node's name and /etc/hosts knows all nodes, in here alone. The end of the first process is the
    end of every process of the node, like a power cut; the end of slurmd alone leaves its jobs running.
    """

    name: str
    folder: Path
    environment: Mapping[str, str]
    _machine: Daemon | None = field(default=None, init=False)
    _first: int = field(default=0, init=False)
    _slurmd: Daemon | None = field(default=None, init=False)
    _orphans: bool = field(default=False, init=False)

    @property
    def whole(self) -> bool:
        """Whether slurmd runs and no task of an earlier slurmd can be left."""
        return self._slurmd is not None and self._slurmd.poll() is None and not self._orphans

    def power_on(self) -> None:
        """Make the namespaces if there are none, and start slurmd in them if none runs."""
        if self._machine is None:
            first = f"hostname {self.name} && mount --bind {self.folder}/hosts /etc/hosts && echo up && "
            first += "while :; do sleep 1; done"
            output = self.folder / "log" / f"{self.name}.out"
            output.unlink(missing_ok=True)
            namespaces = ["unshare", "--fork", "--kill-child=KILL", "--pid", "--mount-proc", "--uts"]
            self._machine = start_daemon([*namespaces, "sh", "-c", first], output, self.environment)
            until(lambda: output.read_text() == "up\n", START_SECONDS, f"namespaces of {self.name}")
            self._first = int(Path(f"/proc/{self._machine.pid}/task/{self._machine.pid}/children").read_text())
        if self._slurmd is None:
            output = self.folder / "log" / f"slurmd.{self.name}.out"
            self._slurmd = start_daemon(self._inside("slurmd", "-D", "-N", self.name), output, self.environment)

    def power_cut(self) -> None:
        """Kill everything on the node at once; nothing of it is left. The controller sees it after about 30 s."""
        if self._machine is not None:
            os.kill(self._first, signal.SIGKILL)
            self._machine.wait()  # unshare ends after its child, and the kernel lets that child end last of all
        if self._slurmd is not None:
            self._slurmd.wait()
        self._machine = self._slurmd = None
        self._orphans = False

    def kill_slurmd(self) -> None:
        """kill −9 of slurmd alone: its step daemons and tasks live on. The controller sees it after about 30 s."""
        assert self._slurmd is not None, f"slurmd of {self.name} does not run"
        process = (self.folder / f"slurmd.{self.name}.pid").read_text().strip()
        self.run("kill", "-KILL", process)
        self._slurmd.wait()
        self._slurmd = None
        self._orphans = True

    def run(self, *command: str) -> str:
        """What ``command`` prints, run on the node; raises CalledProcessError. Process ids are those of the node."""
        done = subprocess.run(
            self._inside(*command), env=self.environment, check=True, stdout=subprocess.PIPE, text=True, timeout=60
        )
        return done.stdout

    def _inside(self, *command: str) -> list[str]:
        assert self._machine is not None, f"{self.name} is off"
        spaces = Path(f"/proc/{self._machine.pid}/ns")
        return [
            "nsenter", f"--pid={spaces / 'pid_for_children'}", f"--mount={spaces / 'mnt'}", f"--uts={spaces / 'uts'}",
            "--", *command,
        ]  # fmt: skip
