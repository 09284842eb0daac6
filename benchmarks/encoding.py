"""Texts to vectors: this encoder against sentence-transformers with the same weights, at its best batch size.

python -m benchmarks.encoding [--data DIR]      DIR holds mteb and tokenizers; without it texts are synthetic
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from benchmarks.encoding_texts import TextSets, samples, short_samples, text_sets
from benchmarks.initial_run import model_of, write_initial_run
from benchmarks.measuring import in_turns, load, median_ratio, seconds
from benchmarks.results import FOLDER, Goal, write_result, write_unmeasured
from neobert.command_line import guarded
from neobert.embeddings.encoders import DTYPES, TextEncoder
from neobert.export.__main__ import export
from neobert.export.source import PretrainedCheckpoint, open_checkpoint
from neobert.recipe import Model, Precision
from neobert.specifications import Source

NAME = "encoding_over_sentence_transformers"
GOAL = Goal(1.5, "at least", "texts a second on a CPU in fp32, this encoder / sentence-transformers (6 × 384)")
GPU_GOAL = Goal(1.2, "at least", "texts a second on a GPU in bf16, this encoder / sentence-transformers (12 × 768)")
CONTEXT = 512
VOCABULARY_SIZE = 30_522
BATCH_SIZES = {"cpu": (8, 16, 32, 64), "cuda": (32, 64, 128, 256)}
LEAST_COSINE = 0.9999
SMALL, LARGE = "6 × 384", "12 × 768"
SHAPES = {SMALL: (6, 384, 6), LARGE: (12, 768, 12)}
OURS = "this encoder"

Array = np.ndarray[Any, np.dtype[Any]]
Encode = Callable[[], Array]


@dataclass(frozen=True)
class Pair:
    """The same weights in both programs, on one device and in one precision, and the texts; each list is a call."""

    ours: TextEncoder
    theirs: Any
    texts: TextSets

    @classmethod
    def of(cls, weights: "Weights", texts: TextSets, device: torch.device, precision: Precision) -> "Pair":
        """Both, loaded."""
        from sentence_transformers import SentenceTransformer

        checkpoint = weights.checkpoint
        encoder = deepcopy(checkpoint.network.model)
        ours = TextEncoder(encoder, checkpoint.tokenizer, CONTEXT, precision=precision, device=device)
        options = {"dtype": DTYPES[precision]}
        return cls(ours, SentenceTransformer(str(weights.exported), device=str(device), model_kwargs=options), texts)

    def our_vectors(self) -> Array:
        """(texts, width)."""
        return np.concatenate([self.ours.encode(texts) for texts in self.texts.values()])

    def their_vectors(self, batch_size: int) -> Array:
        """(texts, width)."""
        options = {"batch_size": batch_size, "show_progress_bar": False, "convert_to_tensor": True}
        vectors = [self.theirs.encode(texts, **options).float().cpu() for texts in self.texts.values()]
        return np.asarray(torch.cat(vectors).numpy())

    def contenders(self, batch_sizes: Sequence[int]) -> dict[str, Encode]:
        """What encodes the texts, by name."""
        return {OURS: self.our_vectors, **{_theirs(size): partial(self.their_vectors, size) for size in batch_sizes}}

    def tokens_computed(self, batch_size: int) -> dict[str, int]:
        """Tokens that each computes for the texts, padding included."""
        theirs: list[int] = []
        hook = self.theirs[0].register_forward_pre_hook(lambda _, given: theirs.append(given[0]["input_ids"].numel()))
        self.their_vectors(batch_size)
        hook.remove()
        before = self.ours.counts.tokens
        self.our_vectors()
        return {OURS: self.ours.counts.tokens - before, _theirs(batch_size): sum(theirs)}


def _theirs(batch_size: int) -> str:
    return f"sentence-transformers, batch {batch_size}"


@dataclass(frozen=True)
class Weights:
    """Initial weights as a checkpoint, and as the folder that the project's own command exports."""

    checkpoint: PretrainedCheckpoint
    exported: Path

    @classmethod
    def written(cls, root: Path, model: Model, data: Path | None) -> "Weights":
        """Both below `root`."""
        source = Source(name="synthetic" if data is None else str(data.resolve()), synthetic_documents=2000)
        run = write_initial_run(root, model, CONTEXT, source)
        with redirect_stdout(sys.stderr):
            export(run, "sentence-transformers", root / "exported", 0)
        return cls(open_checkpoint(run, 0), root / "exported")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encoding", description=__doc__)
    parser.add_argument("--data", type=Path, help="data folder with mteb and tokenizers (default: synthetic texts)")
    parser.add_argument("--repetitions", type=int, default=2, help="of every cell (default: 2)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: 1)")
    options = parser.parse_args(arguments)
    if find_spec("sentence_transformers") is None:
        print("not measured: sentence-transformers is not installed; pip install -e '.[export]'", file=sys.stderr)
        write_unmeasured(NAME, GOAL)
        write_unmeasured(f"{NAME}_gpu", GPU_GOAL)
        return 0
    return guarded("benchmarks.encoding", lambda: measure(options), FOLDER)


def measure(options: argparse.Namespace) -> int:
    """Write both results."""
    torch.set_num_threads(options.threads)
    sets = text_sets(options.data)
    chosen = {SMALL: samples(sets), LARGE: short_samples(sets)}
    figures = measured(torch.device("cpu"), options.data, chosen, options.repetitions)
    ratio = figures[SMALL]["fp32"]["texts a second, ratio"]["processor"]
    print(write_result(NAME, ratio, GOAL, {"threads": options.threads, **figures}).read_text())
    if not torch.cuda.is_available():
        write_unmeasured(f"{NAME}_gpu", GPU_GOAL)
        return 0
    figures = measured(torch.device("cuda"), options.data, dict.fromkeys(SHAPES, sets), options.repetitions)
    write_result(f"{NAME}_gpu", figures[LARGE]["bf16"]["texts a second, ratio"]["wall"], GPU_GOAL, figures)
    return 0


def measured(
    device: torch.device, data: Path | None, chosen: Mapping[str, TextSets], repetitions: int
) -> dict[str, Any]:
    """Both precisions of every shape on a device."""
    figures: dict[str, Any] = {"load_before": load()}
    for shape, texts in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            weights = Weights.written(Path(folder), model_of(*SHAPES[shape], VOCABULARY_SIZE), data)
            figures[shape] = {"texts": {name: len(own) for name, own in texts.items()}}
            for precision in get_args(Precision):
                print(shape, precision, flush=True)
                figures[shape][precision] = compared(Pair.of(weights, texts, device, precision), repetitions)
    return figures | {"load_after": load()}


def compared(pair: Pair, repetitions: int) -> dict[str, Any]:
    """Find sentence-transformers' best batch size, then time both in turns."""
    sizes = BATCH_SIZES[pair.ours.device.type]
    vectors: dict[str, Array] = {}
    contenders = {name: partial(_keep, vectors, name, run) for name, run in pair.contenders(sizes).items()}
    first = in_turns(contenders, 1)
    best = min(sizes, key=lambda size: first[_theirs(size)][0].processor)
    cosine = least_cosine(vectors[OURS], vectors[_theirs(best)])
    if pair.ours.dtype == torch.float32 and not cosine > LEAST_COSINE:
        raise AssertionError(f"the vectors of both programs differ: cosine {cosine}")
    timings = in_turns({name: contenders[name] for name in (OURS, _theirs(best))}, repetitions)
    return {
        "least cosine": round(cosine, 6),
        "texts a second, ratio": median_ratio(timings[_theirs(best)], timings[OURS]),
        "tokens computed": pair.tokens_computed(best),
        "first pass": {name: seconds(timing) for name, timing in first.items()},
        **{name: seconds(timing) for name, timing in timings.items()},
    }


def _keep(vectors: dict[str, Array], name: str, encode: Encode) -> None:
    vectors[name] = encode()


def least_cosine(ours: Array, theirs: Array) -> float:
    """The least cosine between two vectors (texts, width) of one text."""
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((ours * theirs).sum(axis=1) / lengths).min())


if __name__ == "__main__":
    sys.exit(main())
