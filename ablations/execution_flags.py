"""Flags that say how models are trained, wherever they are. Imports nothing heavy, so that --help is quick."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from neobert.command_line import count, whole_number

if TYPE_CHECKING:
    from ablations.plan import Row
    from neobert.runs.specifications import Execution


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
