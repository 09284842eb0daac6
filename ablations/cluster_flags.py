"""Flags that say where work runs and what a cluster is asked for. Imports nothing heavy, so that --help is quick."""

import argparse

from neobert.command_line import count, number_above_0

FLAGS_OF_RESOURCES = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "nodes": "nodes",
    "gpus": "gpus_per_node",
    "cpus": "cpus_per_task",
    "memory_gb": "memory_gb",
    "hours": "hours",
    "micro_batch_tokens": "micro_batch_tokens",
    "engine": "engine",
}


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """`--cluster` and, in a group of their own, what SLURM is asked for."""
    parser.add_argument(
        "--cluster",
        choices=("auto", "here", "slurm"),
        default="auto",
        help="auto takes SLURM where it answers, else this machine; inside a job it means here",
    )
    group = parser.add_argument_group(
        "resources", "of jobs on SLURM, or of this machine; none decides a result or an id"
    )
    add = group.add_argument
    add("--cluster-profile", metavar="NAME", help="clusters/NAME.toml, or a file (default: SLURM's own defaults)")
    add("--max-running", type=count, metavar="N", help="of each array, run at most N elements at once")
    for name in ("partition", "account", "qos", "constraint"):
        add(f"--{name}", metavar="NAME", help="as sbatch takes it")
    add("--nodes", type=count, metavar="N", help="nodes of a pre-training job")
    help_of_gpus = "GPUs of each node, or of this machine, that train a model together"
    add("--gpus", type=count, metavar="N", help=help_of_gpus)
    add("--cpus", type=count, metavar="N", help="cores of a task")
    add("--memory-gb", type=number_above_0, metavar="GB", help="memory of a node's share")
    add("--hours", type=number_above_0, metavar="H", help="time limit; a job that hits it saves and comes back")
    add("--micro-batch-tokens", type=count, metavar="N", help="tokens a GPU computes at once")
    add("--engine", choices=("single", "ddp", "zero1", "zero2"), help="how GPUs share a model (default: ddp)")
    add("--sbatch", action="append", metavar="LINE", help="a further line for sbatch, such as mail-type=FAIL")
