"""Flags that say where work runs and what a cluster is asked for. Imports nothing heavy, so that --help is quick."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from neobert.command_line import count, number_above_0, whole_number
from neobert.evaluation.pseudo_perplexity import TEXT_HELP, sample
from neobert.external import Trust

if TYPE_CHECKING:
    from ablations.plan import Row
    from neobert.runs.specifications import Execution


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


def add_design_flags(parser: argparse.ArgumentParser) -> None:
    """--design, --factors and --fraction."""
    add = parser.add_argument
    kinds = ("ladder", "leave-one-out", "add-one", "factorial")
    add("--design", choices=kinds, help="variants that answer a question, instead of --variant")
    add("--factors", nargs="+", action="extend", metavar="NAME", help="what a design varies: positions, norm, …")
    add("--fraction", choices=("full", "half"), default="full", help="how much of a factorial (default: full)")


def add_execution_flags(parser: argparse.ArgumentParser) -> None:
    """`--compile`, `--trace-steps`, `--heldout` and `--heldout-context`, in a group of their own."""
    group = parser.add_argument_group("training", "how it executes; none of it decides an id")
    add = group.add_argument
    add(
        "--compile",
        choices=("auto", "on", "off"),
        default="auto",
        help="compile models; auto does where the steps that are left earn it back, never in contrastive fine-tuning "
        "(default: auto)",
    )
    add(
        "--trace-steps",
        type=whole_number,
        default=0,
        metavar="N",
        help="write a trace of N steps behind the first few to attempts/*/trace.json of each run of pre-training or "
        "contrastive fine-tuning (default: 0, none)",
    )
    add(
        "--heldout",
        choices=("own", "all"),
        default="own",
        help="measure the held-out loss on the corpus of each run, or on all corpora of the source (default: own)",
    )

    add(
        "--heldout-context",
        type=count,
        metavar="N",
        help="measure the held-out loss with documents cut to N tokens too, beside each run's own context, so that "
        "runs of other contexts and tokenizers can be compared (default: the shortest context of the scale)",
    )


def refuse_execution_flags(options: argparse.Namespace) -> None:
    """Check that the stages can do what the flags ask for.

    Raises:
        ValueError: contrastive fine-tuning is to be compiled.
    """
    if options.compile == "on" and "contrastive" in options.stages:
        raise ValueError(
            "--compile on does not reach contrastive fine-tuning, in which no two micro-batches have the same lengths: "
            "run the other stages with it first, and contrastive without"
        )


def with_execution_flags(execution: "Execution", options: argparse.Namespace) -> "Execution":
    """The execution of a scale as the flags want it."""
    chosen = {"compile": options.compile, "trace_steps": options.trace_steps, "heldout": options.heldout}
    context = {} if options.heldout_context is None else {"heldout_context": options.heldout_context}
    return execution.model_copy(update=chosen | context)


def refuse_heldout_context(context: int | None, rows: "Iterable[Row]") -> None:
    """Check that every variant can be measured in the common context, where one is asked for.

    Raises:
        ValueError: it has no room for text, or is beyond a variant's learned positions.
    """
    from neobert.data.shards import FRAME_TOKENS
    from neobert.runs.specifications import PretrainingRun

    if context is None:
        return
    if context <= FRAME_TOKENS:
        raise ValueError(f"--heldout-context {context} has no room beside {FRAME_TOKENS} special tokens: take more")
    for row in rows:
        for run in (unit.run for unit in row.units):
            table = run.position_table if isinstance(run, PretrainingRun) else None
            if table is not None and context > table:
                raise ValueError(
                    f"--heldout-context {context} is beyond the learned positions of {row.variant.name}, which hold "
                    f"{table} tokens: take {table} or fewer, or leave {row.variant.name} out"
                )


MODEL_HELP = "an encoder from elsewhere: a folder, a hub model, a word of list, or list"


def add_trust_flags(parser: argparse.ArgumentParser) -> None:
    """What `--model` may read beyond safetensors and classes of transformers."""
    add = parser.add_argument
    pickle = "with --model: read pickled weights (pytorch_model.bin), of which tensors alone are taken and nothing runs"
    code = "with --model: run the Python files of the folder, or of NAME@COMMIT, with all your rights; read them first"
    add("--allow-pickle", action="store_true", help=pickle)
    add("--trust-remote-code", action="store_true", help=code)


def trust_of(options: argparse.Namespace) -> Trust:
    """What the flags allow.

    Raises:
        ValueError: one of them is given without a model.
    """
    for flag in ("allow_pickle", "trust_remote_code"):
        if getattr(options, flag) and options.model is None:
            raise ValueError(f"--{flag.replace('_', '-')} goes with --model: name the model, or leave it out")
    return Trust(pickle=options.allow_pickle, code=options.trust_remote_code)


def add_perplexity_flags(parser: argparse.ArgumentParser) -> None:
    """`--perplexity-text` and `--perplexity-sample`; the command itself has more."""
    group = parser.add_argument_group("pseudo-perplexity", "with --stages … perplexity (Figure 2)")
    group.add_argument("--perplexity-text", type=Path, metavar="PATH", help=TEXT_HELP)
    group.add_argument(
        "--perplexity-sample",
        type=sample,
        default=64,
        metavar="N",
        help="positions of a document, or all (default: 64)",
    )
