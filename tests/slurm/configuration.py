"""What a cluster is made of, and the files that tell SLURM so. Nothing here starts anything."""

import contextlib
import random
import socket
from dataclasses import dataclass
from pathlib import Path

# Below the range that Linux gives to outgoing connections, so that none of those takes a port between choice and use.
PORTS = range(12000, 32000)


@dataclass(frozen=True)
class Options:
    """The shape of a cluster. The time-outs are short, so that a test sees in seconds what takes minutes elsewhere."""

    nodes: int = 3
    cpus: int = 16
    """Of a node; emulated, like the memory: SLURM hands them out and nothing holds a job to them."""
    memory_mebibytes: int = 64_000
    gpus: int = 8
    accounting: bool = True
    """Whether slurmdbd and a MariaDB run too (sacct answers)."""
    grace_seconds: int = 20
    """Between the signal of a preemption and the end of the preempted job."""
    kill_wait_seconds: int = 5
    """Between SIGTERM and SIGKILL of a job that has to end."""
    credential_seconds: int = 5
    """How long a requeued job waits before it may start again (SLURM's own: 120)."""
    node_timeout_seconds: int = 10
    """Silence after which a node counts as down; with retries it takes about 30 s until SLURM says so."""
    max_array_size: int = 8
    """Array indices run from 0 to one less. Small, so that the arrays of a test have to be split."""

    @property
    def names(self) -> tuple[str, ...]:
        """node1, node2, …"""
        return tuple(f"node{number}" for number in range(1, self.nodes + 1))


@dataclass(frozen=True)
class Ports:
    """Where the daemons of one cluster listen on the loopback interface."""

    controller: int
    accounting: int
    database: int
    nodes: tuple[int, ...]


def free_ports(nodes: int) -> Ports:
    """Ports that nothing listens on now, drawn at random so that two clusters started at once do not meet."""
    with contextlib.ExitStack() as held:
        found: list[int] = []
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            listener = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == nodes + 3:
                break
    controller, accounting, database, *rest = found
    return Ports(controller, accounting, database, tuple(rest))


def _accounting(folder: Path, ports: Ports) -> str:
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports.accounting}
AccountingStoragePass={folder}/munge.socket
AccountingStorageTRES=gres/gpu
"""


def _nodes(options: Options, ports: Ports, host: str) -> str:
    size = f"CPUs={options.cpus} Sockets=1 CoresPerSocket={options.cpus} ThreadsPerCore=1"
    resources = f"{size} RealMemory={options.memory_mebibytes} Gres=gpu:{options.gpus}"
    lines = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {resources} State=UNKNOWN\n"
        for name, port in zip(options.names, ports.nodes, strict=True)
    ]
    return "".join(lines)


def slurm_conf(options: Options, ports: Ports, folder: Path) -> str:
    """The text of slurm.conf: no cgroups, no systemd, consumable cores, memory and GPUs, preemption between partitions.

    ``config_overrides`` lets a node have more cores than this machine; ``preempt_send_user_signal`` sends a preempted
    job the signal that its ``--signal`` asks for, rather than SIGTERM alone.
    """
    host = socket.gethostname().split(".")[0]
    everywhere = f"Nodes={','.join(options.names)} MaxTime=INFINITE DefaultTime=10 State=UP"
    return f"""\
ClusterName=emulated
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports.controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={options.credential_seconds}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
JobRequeue=1
ReturnToService=2
OverTimeLimit=0
KillWait={options.kill_wait_seconds}
WaitTime=10
InactiveLimit=0
MinJobAge=300
SlurmctldTimeout=15
SlurmdTimeout={options.node_timeout_seconds}
MaxArraySize={options.max_array_size}
GresTypes=gpu
{_accounting(folder, ports) if options.accounting else ""}\
{_nodes(options, ports, host)}\
PartitionName=main {everywhere} Default=YES PriorityTier=5 PreemptMode=REQUEUE GraceTime={options.grace_seconds}
PartitionName=high {everywhere} PriorityTier=10 PreemptMode=OFF
"""


def gres_conf(options: Options, folder: Path) -> str:
    """The text of gres.conf: SLURM wants a character device for each GPU and a link to /dev/null is one."""
    return f"""\
AutoDetect=off
NodeName={",".join(options.names)} Name=gpu Count={options.gpus} File={folder}/gpus/nvidia[0-{options.gpus - 1}]
"""


def slurmdbd_conf(ports: Ports, folder: Path, password: str) -> str:
    """The text of slurmdbd.conf; holds the database's password, and slurmdbd wants it readable by its owner alone."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost={socket.gethostname().split(".")[0]}
DbdAddr=127.0.0.1
DbdPort={ports.accounting}
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports.database}
StorageUser=slurm
StoragePass={password}
StorageLoc=accounting
"""


def write_configuration(options: Options, ports: Ports, folder: Path) -> None:
    """Write slurm.conf, gres.conf, the links that stand for GPUs and the hosts file of the nodes into ``folder``."""
    for name in ("log", "state", "spool", "gpus", "jobs"):
        (folder / name).mkdir()
    for name in options.names:
        (folder / "spool" / name).mkdir()
    for number in range(options.gpus):
        (folder / "gpus" / f"nvidia{number}").symlink_to("/dev/null")
    (folder / "slurm.conf").write_text(slurm_conf(options, ports, folder))
    (folder / "gres.conf").write_text(gres_conf(options, folder))
    known = Path("/etc/hosts").read_text()
    (folder / "hosts").write_text(f"127.0.0.1 {' '.join(options.names)}\n{known}")
