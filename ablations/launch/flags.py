"""Flags that commands share, and values computed from them. Imports nothing heavy, so that --help is fast."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ablations.loading import add_ladder_flag, add_scale_flag
from neobert.command_line import count, number_above_0, whole_number

if TYPE_CHECKING:
    from ablations.ladders import Ladder
    from neobert.runs.run_file import Execution

DEFAULT_RUNS = Path("runs")
MEASURED = ("heldout", "heldout_context")
"""Flags of what pre-training measures. A run has one record, so later commands change them only if given."""
MODEL_HELP = "an external encoder: a folder, a hub model, or a baseline of the paper (--model list names them)"


def add_common_flags(parser: argparse.ArgumentParser, shown: str, *, models: bool = True) -> None:
    """Add the flags of a command that runs something: scale, data, folder, place.

    `shown` is what a dry run prints; `models` is True if the command also takes external models.
    """
    add = parser.add_argument
    add_ladder_flag(parser)
    add_scale_flag(parser, "size of models and runs (default: smoke; for a ladder of your own, its own or as-written)")
    add("--data", metavar="SOURCE", help="synthetic, hub, or a folder (default: synthetic)")
    add("--workers", type=count, metavar="N", help="processes at a time (default: cores / threads of the scale)")
    add("--runs", type=Path, default=DEFAULT_RUNS, help="folder of runs (default: ./runs)")
    add("--dry-run", action="store_true", help=f"print the {shown} and stop")
    add("--json", action="store_true", help="print JSON on stdout")
    track = "send metrics and scores of runs to a tracker, offline, below RUNS/tracking (docs/guide.md)"
    add("--track", choices=("tensorboard", "trackio", "wandb"), help=track)
    if models:
        code = "with --model: run Python files of the folder or of NAME@COMMIT with all your rights; read them first"
        add("--trust-remote-code", action="store_true", help=code)
    _add_cluster_flags(parser)


def add_benchmark_flag(parser: argparse.ArgumentParser) -> None:
    """Add --benchmark, whose value `neobert.data.mteb_tasks` checks."""
    parser.add_argument(
        "--benchmark",
        nargs="+",
        action="extend",
        metavar="NAME",
        help='with mteb: only the tasks of "MTEB(eng, v1)" or "MTEB(eng, v2)" (default: v1, and tasks of your own)',
    )


def trusts_code(options: argparse.Namespace) -> bool:
    """Return whether an external model may run its own code. Raises ValueError if this is allowed without a model."""
    if options.trust_remote_code and options.model is None:
        raise ValueError("--trust-remote-code goes with --model: name the model, or leave it out")
    return bool(options.trust_remote_code)


def _add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Add --cluster and the flags of resources, named like the fields of `neobert.slurm.profile.Resources`."""
    parser.add_argument(
        "--cluster",
        choices=("auto", "here", "slurm"),
        default="auto",
        help="auto: SLURM if it is available, else this machine; inside a job, its machine (default: auto)",
    )
    group = parser.add_argument_group("resources", "of jobs on SLURM, or of this machine; they change no id")
    add = group.add_argument
    add("--cluster-profile", metavar="NAME", help="clusters/NAME.toml, or a file (default: SLURM's own defaults)")
    add("--max-running", type=count, metavar="N", help="run at most N elements of an array at once")
    for name in ("partition", "account", "qos", "constraint"):
        add(f"--{name}", metavar="NAME", help="as for sbatch")
    add("--nodes", type=count, metavar="N", help="nodes of a pre-training job")
    together = "GPUs per node, or of this machine, that train a model together"
    add("--gpus", dest="gpus_per_node", type=count, metavar="N", help=together)
    add("--gpu", metavar="NAME", help="model of the GPUs, for estimates (default: the profile's; at scale paper, H100)")
    add("--cpus", dest="cpus_per_task", type=count, metavar="N", help="cores per task")
    add("--memory-gb", type=number_above_0, metavar="GB", help="memory of a job on each node")
    add("--hours", type=number_above_0, metavar="H", help="time limit; a job that reaches it saves and requeues")
    add("--micro-batch-tokens", type=count, metavar="N", help="tokens that a GPU computes at once")
    add("--engine", choices=("single", "ddp", "zero1", "zero2"), help="how GPUs share a model (default: ddp)")
    add("--sbatch", action="append", metavar="LINE", help="an additional option of sbatch, such as mail-type=FAIL")


def add_execution_flags(parser: argparse.ArgumentParser) -> None:
    """Add a group with `--compile`, `--trace-steps`, `--deterministic`, `--heldout` and `--heldout-context`."""
    group = parser.add_argument_group("training", "how runs execute; they change no id")
    add = group.add_argument
    add(
        "--compile",
        choices=("auto", "on", "off"),
        default="auto",
        help="compile models; auto: if the remaining steps justify the compile time, never in contrastive fine-tuning "
        "(default: auto)",
    )
    add(
        "--trace-steps",
        type=whole_number,
        default=0,
        metavar="N",
        help="write a profiler trace of N steps, after the first few, to attempts/*/trace.json of each run of "
        "pre-training or contrastive fine-tuning (default: 0, none)",
    )
    add(
        "--deterministic",
        action="store_true",
        help="on a GPU, use kernels that always give the same bits (torch.use_deterministic_algorithms), which are "
        "slower; on a CPU, runs do so anyway",
    )
    add(
        "--heldout",
        choices=("own", "all"),
        help="measure the held-out loss on the corpus of each run, or on all corpora of the source (default: as the "
        "run was planned, at first own)",
    )
    add(
        "--heldout-context",
        type=count,
        metavar="N",
        help="measure the held-out loss also with documents cut to N tokens, so that runs with different contexts and "
        "tokenizers can be compared (default: as the run was planned, at first the shortest context of the scale)",
    )


def add_stages_flag(parser: argparse.ArgumentParser, stages: Sequence[str], text: str) -> None:
    """Add `--stages`, whose values are kinds of work; `pretrain` is short for pretraining."""
    parser.add_argument(
        "--stages",
        nargs="+",
        type=lambda word: "pretraining" if word == "pretrain" else word,
        choices=stages,
        default=["pretraining", "glue"],
        help=text,
    )


def execution_of(ladder: "Ladder", options: argparse.Namespace) -> "Execution":
    """Return the execution of a scale on this machine, with the values of the execution flags if the command has them.
    Raises ValueError if they request compilation of contrastive fine-tuning."""
    from ablations.scaling import execution_at

    execution = execution_at(ladder, options.scale)
    if "compile" not in options:
        return execution
    if options.compile == "on" and "contrastive" in options.stages:
        raise ValueError(
            "--compile on does not reach contrastive fine-tuning, in which no two micro-batches have the same lengths: "
            "run the other stages with it first, and contrastive without"
        )
    words = {"compile", "trace_steps", "deterministic", *MEASURED} - set(kept_of(options))
    return execution.model_copy(update={word: vars(options)[word] for word in words})


def kept_of(options: argparse.Namespace) -> list[str]:
    """Return the fields of the execution that a run keeps from its first plan: those that no flag gives."""
    return [word for word in MEASURED if vars(options).get(word) is None]
