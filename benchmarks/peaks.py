"""The most memory that a step of pre-training keeps, counted on a pretended GPU for the stages of the ladder.

examples:
  python -m benchmarks.peaks            # each distinct step at paper scale, beside the model of memory
  python -m benchmarks.peaks --write    # keep them where `ablations/run.py --dry-run` reads them

All rows are full: no micro-batch of a run keeps more. Exit codes: 2 bad input, 3 no C++ compiler, or a torch that is
built for CUDA.
"""

import argparse
import csv
import io
import sys
from collections.abc import Sequence

import numpy as np

from ablations.ladders import variants
from ablations.launch.costs import PRETENDED_PEAKS, step_id
from benchmarks.contenders import SEED, pretraining_engine
from benchmarks.data import random_corpus
from benchmarks.pretended_cuda import GPU, pretended_cuda, pretending_process
from neobert.command_line import guarded, parser_from
from neobert.data.batches import collate
from neobert.data.masking import counter_hash
from neobert.data.rows import pack_documents
from neobert.data.shards import FRAME_TOKENS, all_documents
from neobert.errors import EXIT_DONE
from neobert.files import replace_file
from neobert.model.build import build_masked_language_model
from neobert.model.size import MicroBatchShape, training_memory
from neobert.recipe import Pretraining

MICRO_BATCH_TOKENS = (1 << 15, 1 << 16)
"""Values of the profile for H100s, and the default of the paper scale."""

COLUMNS = ("step", "stages", "rows", "context", "peak_bytes")


def stages_of_the_ladder() -> dict[str, tuple[list[str], Pretraining, int, int]]:
    """Return {id of a step: (names of stages, recipe, size of the position table, rows)}. The names are the stages of
    the ladder that have this step, or one stage of another variant."""
    steps: dict[str, tuple[list[str], Pretraining, int, int]] = {}
    for variant in variants().values():
        whole = variant.recipe.pretraining
        for index in range(len(whole.stages)):
            recipe = whole.model_copy(update={"stages": whole.stages[: index + 1]})
            table = (whole if whole.model.positions == "learned" else recipe).longest_context
            for tokens in MICRO_BATCH_TOKENS:
                rows = tokens // recipe.stages[-1].context
                names, *_ = steps.setdefault(step_id(recipe, table, rows), ([], recipe, table, rows))
                if not names or "@" not in variant.name:
                    names.append(f"{variant.name} stage {index + 1}")
    return steps


def peak_of_step(recipe: Pretraining, position_table: int, rows: int) -> int:
    """Return the peak memory in bytes of the engine's second step, which has the optimizer's state. The step has two
    micro-batches of full rows, so that the second runs beside the first's gradients; runs in a `pretending_process`."""
    context = recipe.stages[-1].context
    documents = all_documents(random_corpus(np.full(rows, context - FRAME_TOKENS), recipe.model.vocabulary_size))
    packed = pack_documents(documents, documents.numbers, counter_hash(SEED, documents.numbers), context)
    with pretended_cuda() as gpu:
        with GPU:
            model = build_masked_language_model(recipe.model, position_table, recipe.precision)
        model.train()
        engine = pretraining_engine(model, recipe, GPU)
        batch = collate(packed, documents.corpus, recipe.masking, flat=True).to(GPU)
        engine.step([batch, batch], recipe.optimization.peak_learning_rate)
        with gpu.counted() as counts:
            engine.step([batch, batch], recipe.optimization.peak_learning_rate)
    return counts.peak_bytes


def modelled_bytes(recipe: Pretraining, position_table: int, rows: int) -> int:
    """Return the bytes that the model of memory predicts for the same step, without its reserve."""
    context = recipe.stages[-1].context
    shape = MicroBatchShape.of(rows, context, recipe.masking.highest_rate)
    memory = training_memory(recipe, position_table, shape, "single", 1, rows * context)
    return memory.total - memory.reserve


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    parser = parser_from("python -m benchmarks.peaks", __doc__)
    parser.add_argument("--write", action="store_true", help="keep the peaks for --dry-run")
    options = parser.parse_args(arguments)
    return guarded("benchmarks.peaks", lambda: count_all(options), PRETENDED_PEAKS)


def count_all(options: argparse.Namespace) -> int:
    """Count every step and print it.

    Raises:
        MissingData: no GPU can be pretended here.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    with pretending_process() as process:
        for step, (names, recipe, table, rows) in stages_of_the_ladder().items():
            peak, context = process.submit(peak_of_step, recipe, table, rows).result(), recipe.stages[-1].context
            share = modelled_bytes(recipe, table, rows) / peak - 1
            stages = ", ".join(names)
            print(f"{stages}: {rows} × {context}: {peak / 1e9:.1f} GB, the model of memory {share:+.1%}")
            writer.writerow((step, stages, rows, context, peak))
    if options.write:
        replace_file(PRETENDED_PEAKS, text.getvalue().encode())
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
