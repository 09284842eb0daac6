"""What a cluster is made of, and the files that tell SLURM so. Nothing here starts anything."""

import contextlib
import random
import socket
from pathlib import Path

# Below the range that Linux gives to outgoing connections, so that none of those takes a port between choice and use.
PORTS = range(12000, 32000)
NODES = ("node1", "node2", "node3")
CORES = 16
"""Of a node; emulated, like the memory: SLURM hands them out and nothing holds a job to them."""
GPUS = 8
LARGEST_ARRAY = 8
"""Array indices run from 0 to one less. Small, so that the arrays of a test have to be split."""


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now, drawn at random so that two clusters started at once do not meet."""
    with contextlib.ExitStack() as held:
        found: list[int] = []
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            listener = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                break
    return found


def slurm_conf(folder: Path) -> str:
    """The text of slurm.conf: no cgroups, no systemd, no accounting, consumable cores, memory and GPUs, preemption
    between partitions. The time-outs are short, so that a test sees in seconds what takes minutes elsewhere.

    ``config_overrides`` lets a node have more cores than this machine; ``preempt_send_user_signal`` sends a preempted
    job the signal that its ``--signal`` asks for, rather than SIGTERM alone. A requeued job waits ``cred_expire``
    seconds before it may start again. After ``SlurmdTimeout`` and retries, about 30 s, a silent node is down.
    """
    host = socket.gethostname().split(".")[0]
    controller, *ports = free_ports(1 + len(NODES))
    everywhere = f"Nodes={','.join(NODES)} MaxTime=INFINITE DefaultTime=10 State=UP"
    resources = f"CPUs={CORES} CoresPerSocket={CORES} RealMemory=64000 Gres=gpu:{GPUS} State=UNKNOWN"
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {resources}"
        for name, port in zip(NODES, ports, strict=True)
    )
    return f"""\
ClusterName=emulated
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
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
KillWait=5
WaitTime=10
InactiveLimit=0
MinJobAge=300
SlurmctldTimeout=15
SlurmdTimeout=10
MaxArraySize={LARGEST_ARRAY}
GresTypes=gpu
{nodes}
PartitionName=main {everywhere} Default=YES PriorityTier=5 PreemptMode=REQUEUE GraceTime=20
PartitionName=high {everywhere} PriorityTier=10 PreemptMode=OFF
"""


def write_configuration(folder: Path) -> None:
    """Write slurm.conf, gres.conf, the links that stand for GPUs and the hosts file of the nodes into ``folder``."""
    for name in ("log", "state", "gpus", "jobs", *(f"spool/{node}" for node in NODES)):
        (folder / name).mkdir(parents=True)
    for number in range(GPUS):  # SLURM wants a character device for each GPU
        (folder / "gpus" / f"nvidia{number}").symlink_to("/dev/null")
    gpus = f"Name=gpu Count={GPUS} File={folder}/gpus/nvidia[0-{GPUS - 1}]"
    (folder / "slurm.conf").write_text(slurm_conf(folder))
    (folder / "gres.conf").write_text(f"AutoDetect=off\nNodeName={','.join(NODES)} {gpus}\n")
    known = Path("/etc/hosts").read_text()
    (folder / "hosts").write_text(f"127.0.0.1 {' '.join(NODES)}\n{known}")
