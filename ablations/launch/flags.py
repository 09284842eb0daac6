"""Flags that commands share, and values computed from them. Imports nothing heavy, so that --help is fast."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.ladders import SCALES
from neobert.command_line import count, number_above_0
from neobert.processes import REPOSITORY

if TYPE_CHECKING:
    from ablations.launch.execute import Workspace
    from ablations.launch.request import Place, Selection

DEFAULT_RUNS = Path("runs")
EXECUTION = ("compile", "deterministic", "heldout")
"""Flags of how runs execute, named like the fields of `neobert.execution.Execution`."""
Flags = Mapping[str, Any]
"""The values of a command's flags by name."""
MODEL_HELP = "an external encoder: a folder, a hub model, or a baseline of the paper, as BERT-base"


def add_ladder_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ladder", metavar="FILE.py", help="a ladder of your own (default: the paper's)")


def add_scale_flag(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --scale. `Ladder.scale_named` checks its value, because a ladder can have scales of its own."""
    parser.add_argument("--scale", metavar=f"{{{','.join(SCALES)}}}", help=text)


def add_data_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command on a ladder: the ladder, a scale, the data, the folder of runs, and --json."""
    add = parser.add_argument
    add_ladder_flag(parser)
    add_scale_flag(parser, "size of models and runs (default: smoke; for a ladder of your own, its own or as-written)")
    add("--data", metavar="SOURCE", help="synthetic, hub, or a folder (default: synthetic)")
    add("--runs", type=Path, default=DEFAULT_RUNS, help="folder of runs (default: ./runs)")
    add("--json", action="store_true", help="print JSON on stdout")


def add_place_flags(parser: argparse.ArgumentParser, shown: str = "") -> None:
    """Add the flags of a command that runs something; `shown` is what a dry run prints, if there is one. Those of
    resources are named like the fields of `neobert.slurm.profile.Resources`."""
    add = parser.add_argument
    add("--workers", type=count, metavar="N", help="processes at a time (default: one per GPU, or per core)")
    if shown:
        add("--dry-run", action="store_true", help=f"print the {shown} and stop")
    track = "send metrics and scores of runs to a tracker, offline, below RUNS/tracking (docs/guide.md)"
    add("--track", choices=("tensorboard", "wandb"), help=track)
    add(
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


def add_trust_flag(parser: argparse.ArgumentParser) -> None:
    code = "with --model: run Python files of the folder or of NAME@COMMIT with all your permissions; read them first"
    parser.add_argument("--trust-remote-code", action="store_true", help=code)


def add_benchmark_flag(parser: argparse.ArgumentParser) -> None:
    """Add --benchmark, whose value `neobert.data.mteb_tasks` checks."""
    parser.add_argument(
        "--benchmark",
        nargs="+",
        action="extend",
        metavar="NAME",
        help='with mteb: only the tasks of "MTEB(eng, v1)" or "MTEB(eng, v2)" (default: v1)',
    )


def add_execution_flags(parser: argparse.ArgumentParser) -> None:
    """Add a group with `--compile`, `--deterministic` and `--heldout`."""
    group = parser.add_argument_group("training", "how runs execute; they change no id")
    add = group.add_argument
    add(
        "--compile",
        choices=("auto", "on", "off"),
        default="auto",
        help="compile models; auto: on a GPU, except in contrastive fine-tuning and for few updates of fine-tuning "
        "(default: auto)",
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


def selection_from(flags: Flags) -> "Selection":
    """Return what a command's flags select; a flag that the command does not have counts as not given.

    Raises:
        MissingData, ValueError: as `load`; there is no such scale; a flag of models is given without one.
    """
    from ablations.launch.request import Selection
    from ablations.loading import load
    from ablations.recipe_runs import EmbeddingChoice

    get = flags.get
    if get("trust_remote_code") and get("model") is None:
        raise ValueError("--trust-remote-code goes with --model: name the model, or leave it out")
    ladder = load(flags["ladder"])
    return Selection(
        ladder=ladder,
        scale=ladder.scale_named(flags["scale"]),
        data=flags["data"],
        runs=flags["runs"],
        variants=tuple(get("variant") or ()),
        design=get("design"),
        model=get("model"),
        trusts_code=get("trust_remote_code", False),
        seeds=tuple(get("seed") or [0]),
        finetuning_seeds=tuple(get("finetuning_seed") or ()),
        stages=tuple(get("stages", ())),
        embedding=EmbeddingChoice(get("pairs"), get("tasks"), get("benchmark"), get("zero_shot", False)),
    )


def place_from(flags: Flags) -> "Place":
    """Return where the flags of `add_place_flags` let the work run.

    Raises:
        MissingData: there is no such cluster profile.
        ValueError: a key or value of it is refused.
    """
    from ablations.launch.request import Place
    from neobert.slurm.profile import Resources, read_profile

    named = {name: flags[name] for name in Resources.model_fields if flags.get(name) is not None}
    if "sbatch" in named:
        named["sbatch"] = tuple(named["sbatch"])
    profile = flags["cluster_profile"]
    is_file = profile is None or profile.endswith(".toml") or "/" in profile
    path = Path(profile) if profile and is_file else None if is_file else REPOSITORY / "clusters" / f"{profile}.toml"
    return Place(
        cluster=flags["cluster"],
        profile=read_profile(path, named),
        named=frozenset(named),
        workers=flags["workers"],
        max_running=flags["max_running"],
        track=flags["track"],
    )


def workspace_from(flags: Flags, selection: "Selection") -> "Workspace":
    """Open the workspace of a selection in the place and with the execution that the flags name. Raises as
    `place_from` and `open_workspace`."""
    from ablations.launch.execute import open_workspace

    changes = {name: flags[name] for name in EXECUTION if flags.get(name) is not None}
    return open_workspace(selection, place_from(flags), changes, dry_run=flags["dry_run"], as_json=flags["json"])
