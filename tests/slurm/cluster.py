"""A real SLURM on this machine for tests: controller and emulated nodes with (fake) GPUs.

    with Cluster() as cluster:
        job = cluster.submit("hostname", "--nodelist=node1")
        cluster.wait_for(job, {"COMPLETED"}, 30)

Needs root, Linux and SLURM's own programs, and neither systemd nor cgroups. Nothing outside a temporary folder is
written. Start and revive from the main thread: daemons end with the thread that
started them, so that nothing is left when a test run is killed.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

from tests.slurm.clients import Clients
from tests.slurm.configuration import NODES, write_configuration
from tests.slurm.daemons import START_SECONDS, Daemon, Node, kill, start_daemon
from tests.support.waiting import until

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "munged", "munge", "unshare", "nsenter", "setpriv")


def reason_not_to_start() -> str | None:
    """Why no cluster can run here, in a sentence; None where one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a SLURM cluster of one's own needs Linux and root"
    missing = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if missing:
        return f"no {', '.join(missing)} here (the Debian packages are listed in .ci/run)"
    namespaces = ["unshare", "--fork", "--pid", "--mount-proc", "--uts", "hostname", "node1"]
    if subprocess.run(namespaces, env={"PATH": PATH}, capture_output=True, check=False).returncode:
        return "this machine does not allow namespaces (unshare --pid --mount-proc --uts)"
    return None


@dataclass
class Cluster(Clients):
    """See the module; what jobs and nodes do is asked with the methods of :class:`Clients`.

    Every method that waits raises TimeoutError after its limit, and names what it waited for.
    """

    nodes: dict[str, Node] = field(default_factory=dict, init=False)
    _munged: Daemon | None = field(default=None, init=False)
    _controller: Daemon | None = field(default=None, init=False)

    # Start and end

    def __enter__(self) -> Self:
        """Bring everything up and wait until all nodes are idle."""
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # a socket's path must be short
        self.folder.chmod(0o755)
        write_configuration(self.folder)
        self.nodes = {name: Node(name, self.folder, self._daemon_environment) for name in NODES}
        try:
            self._start_munged()
            self.restore()
        except BaseException as error:
            error.add_note(self.log_tails("*"))
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kill everything, jobs included, and remove the folder."""
        for node in self.nodes.values():
            node.power_cut()
        self.kill_controller()
        kill(self._munged)
        shutil.rmtree(self.folder)

    def restore(self) -> None:
        """Whatever a test has broken: everything runs again, no job or orphan is left and every node is idle."""
        self.start_controller()
        for name, node in self.nodes.items():
            if not node.whole:
                node.power_cut()
                self.revive(name)
        self._wait(self._is_quiet, START_SECONDS, "a cluster at rest")

    # What a test does to it

    def declare_down(self, node: str) -> None:
        """Spare a test the wait: the controller takes ``node`` for down now (NODE_FAIL, requeue). Until it is revived
        nothing is started there."""
        # Drained as well: an answer still on its way would bring a node that is down alone back into service.
        for state in ("DRAIN", "DOWN"):
            self.client("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=test")

    def revive(self, node: str) -> None:
        """After a power cut an empty node, after the end of slurmd alone a new one beside the old tasks; once it has
        registered. A controller that had not seen the loss learns of it now."""
        before = self._registered(node)  # in whole seconds: the next start must fall into another one
        until(lambda: datetime.now() > before + timedelta(seconds=1), 10, "a later second")
        self.nodes[node].power_on()
        until(lambda: self._registered(node) > before, START_SECONDS, f"{node} registered")
        until(lambda: self._in_service(node), START_SECONDS, f"{node} in service")

    def kill_controller(self) -> None:
        """kill −9 of slurmctld. Jobs run on; clients hang for about 9 s and fail. What happened in the last seconds is
        forgotten (a new job never was, a cancelled one lives), unless :meth:`wait_until_saved` came before."""
        kill(self._controller)
        self._controller = None

    def start_controller(self) -> None:
        """slurmctld with the state it had saved last; returns once it answers. Nothing to do where it runs."""
        if self._controller is None:
            output = self.folder / "log" / "slurmctld.out"
            self._controller = start_daemon(["slurmctld", "-D"], output, self._daemon_environment)
        until(lambda: not self.client("scontrol", "ping").returncode, START_SECONDS, "slurmctld")

    # How

    @property
    def _daemon_environment(self) -> dict[str, str]:
        return {"PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def _start_munged(self) -> None:
        key, socket = self.folder / "munge.key", self.folder / "munge.socket"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        command = ["munged", "--foreground", "--force", "--origin=127.0.0.1", f"--key-file={key}", f"--socket={socket}"]
        command += [
            f"--pid-file={self.folder}/munged.pid",
            f"--seed-file={self.folder}/munged.seed",
            "--num-threads=10",
        ]
        self._munged = start_daemon(command, self.folder / "log" / "munged.log", self._daemon_environment)
        until(
            lambda: not self.client("munge", "--no-input", "--socket", str(socket)).returncode, START_SECONDS, "munged"
        )

    def _is_quiet(self) -> bool:
        """Whether every node is idle and nothing runs or waits, which is cancelled."""
        active = self.client("squeue", "--noheader", "--format=%i").stdout
        if active:
            self.client("scancel", "--user=root")
        serving = [name for name in self.nodes if self._in_service(name)]
        return not active and len(serving) == len(self.nodes) and set(self.node_states().values()) == {"idle"}

    def _in_service(self, node: str) -> bool:
        """Whether jobs may start on ``node``; a drained one is resumed."""
        state = self.node_states().get(node, "unknown")
        if state.startswith("drain"):
            self.client("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return state in {"idle", "mixed", "allocated", "completing"}

    def _registered(self, node: str) -> datetime:
        """When the slurmd started that the controller knows of."""
        found = re.search(r" SlurmdStartTime=(\S+)", self.client("scontrol", "--oneliner", "show", "node", node).stdout)
        with contextlib.suppress(ValueError):  # "None", "Unknown"
            return datetime.fromisoformat(found[1]) if found else datetime.min
        return datetime.min
