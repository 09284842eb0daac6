"""What this project does on a GPU, done on a pretended one, in its published widths. Runs in a process of its own."""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from ablations.loading import papers
from benchmarks.data import IDS, web_lengths
from benchmarks.pretraining import Setting, masked_documents, neobert_recipe, pretraining_engine
from neobert.data.batches import Batch
from neobert.data.sources import SyntheticSource
from neobert.data.tokenizers import TextTokenizer
from neobert.embeddings.contrastive import GradCache, StepCollator, StepTexts, match_texts
from neobert.embeddings.encoders import PackedEncoder, TextEncoder
from neobert.evaluation.heldout import HeldoutText, measure_heldout
from neobert.glue.encoding import EncodedSplit, EncodedTask
from neobert.glue.finetuning import FineTuner
from neobert.glue.tasks import task_named
from neobert.model.build import build_classifier, build_encoder, build_masked_language_model
from neobert.model.size import RESERVE_BYTES, MicroBatchShape, training_memory, trial_memory
from neobert.recipe import Point, Pretraining
from neobert.training.distributed import Process
from neobert.training.engine import Engine
from tests.support.pretended_cuda import GPU, Counts, pretended_cuda

CONTEXT = 1024
SLOTS = 65_536
"""Slots of a micro-batch: 60 rows of packed web pages, about 61,000 real tokens."""

WORDS = ("the", "cat", "a", "dog", "sleeps", "and", "bird", "stone", ".")
M0_FORM = {"positions": "learned", "norm": "layer_norm", "feedforward": "gelu", "dropout": 0.1}


def strictly(function: Callable[..., Any], arguments: Sequence[Any], named: dict[str, Any]) -> Any:
    """Call a function; warnings are errors. Errors of fake tensors cannot leave the process as they are."""
    with warnings.catch_warnings(action="error"):
        warnings.filterwarnings("ignore", ".torch.jit.script_method. is deprecated", DeprecationWarning)  # torch's own
        try:
            return function(*arguments, **named)
        except RuntimeError as error:
            raise RuntimeError(str(error)) from None


@dataclass
class Pass:
    """What was counted: while batches came to the device, in the pass itself, and when its numbers were read.
    `reckoned_bytes` is the memory that the model of memory gives the pass."""

    feeding: Counts = field(default_factory=Counts)
    work: Counts = field(default_factory=Counts)
    reading: Counts = field(default_factory=Counts)
    reckoned_bytes: int = 0


def dtypes(counts: Counts) -> Counter[str]:
    """How many products were made in each dtype."""
    found: Counter[str] = Counter()
    for product, times in counts.products.items():
        found[product.dtype] += times
    return found


def fresh_engine(recipe: Pretraining) -> Engine[Batch]:
    """The engine of pre-training; values are not initialised."""
    with GPU:
        model = build_masked_language_model(recipe.model, CONTEXT, recipe.precision)
    return pretraining_engine(model.train(), recipe, GPU)


def pretraining_batches() -> list[Batch]:
    """Micro-batches of packed web pages for variable-length kernels, on the CPU."""
    rows, recipe = SLOTS // CONTEXT, neobert_recipe("bf16")
    documents = masked_documents(web_lengths(4 * rows), recipe.model.vocabulary_size, CONTEXT)
    return Setting(recipe, documents, round(rows / documents.padded_fill), GPU).own_batches("eager")


def pretrain(layers: int, **changes: Any) -> Pass:
    """The second step of the engine, which has its optimizer's state, with one micro-batch."""
    recipe, measured = neobert_recipe("bf16", layers=layers, **changes), Pass()
    with pretended_cuda() as gpu:
        engine = fresh_engine(recipe)
        with gpu.counted() as measured.feeding:
            batches = [batch.to(GPU) for batch in pretraining_batches()[:2]]
        engine.step(batches[:1], 1e-4)
        with gpu.counted() as measured.work:
            update = engine.step(batches[1:], 1e-4)
        with gpu.counted() as measured.reading:
            update.measured()
    rows, context = batches[1].token_ids.shape
    shape = MicroBatchShape(rows, context, len(batches[1].targets))
    memory = training_memory(recipe, CONTEXT, shape, "single", 1, rows * context)
    measured.reckoned_bytes = memory.total - memory.reserve
    return measured


def faulty() -> Counts:
    """What would make a step wait, or compute in fp32."""
    with pretended_cuda() as gpu:
        values = torch.ones(64, 64, device=GPU)
        with gpu.counted() as counts:
            values.sum().item()
            values[values > 0] = 0
            torch.ones(3).to(GPU)
            values @ values
    return counts


def _random_texts(lengths: Any) -> list[tuple[Any, Any]]:
    drawn = np.random.default_rng(0)
    return [(drawn.integers(IDS.first_text_id, 30_000, n).astype(np.int32), np.zeros(n, np.int8)) for n in lengths]


def _text_lengths(count: int, mean: float, most: int) -> list[int]:
    drawn = np.random.default_rng(1).lognormal(np.log(mean), 0.5, count)
    return [int(length) for length in np.clip(drawn, 5, most)]


def encoded_task() -> EncodedTask:
    """A task of GLUE with examples as long as MNLI's, random tokens and labels."""
    task, texts = task_named("mnli"), _random_texts(_text_lengths(64, 32.0, 256))
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in texts])])
    labels = np.random.default_rng(2).integers(0, task.labels, len(texts))
    token_ids, token_types = (np.concatenate(column) for column in zip(*texts, strict=True))
    return EncodedTask(task, dict.fromkeys(task.splits, EncodedSplit(token_ids, offsets, token_types, labels)))


def fine_tune(layers: int, fixed: bool = False) -> Pass:
    """Two updates of GLUE with their batches by the paper's protocol, beside the best weights; in `work` the last
    one, in `reading` an evaluation, which never has rows of fixed sizes."""
    measured, task, model = Pass(), encoded_task(), neobert_recipe("bf16", layers=layers).model
    protocol = papers().variants["M10"].recipe.finetuning.model_copy(update={"epochs": 1})
    with pretended_cuda() as gpu:
        with GPU:
            classifier = build_classifier(model, CONTEXT, task.task.labels, 0.1)
        start = {name: tensor for name, tensor in classifier.state_dict().items() if name.startswith("model.")}
        tuner = FineTuner(classifier, start, task, protocol, GPU)
        tuner.compiled = fixed
        best = tuner._copy_of_weights()
        optimizer = tuner._optimizer(Point(batch_size=32, learning_rate=1e-5, weight_decay=0.01))
        with gpu.counted() as measured.feeding:
            batches = list(tuner._batches(32, 0))
        for batch in batches:
            with gpu.counted() as measured.work:
                tuner._update(optimizer, batch)
        if not fixed:
            with gpu.counted() as measured.reading:
                tuner.predict()
    assert best
    memory = trial_memory(model, "bf16", CONTEXT, *batches[-1].token_ids.shape)
    measured.reckoned_bytes = memory - RESERVE_BYTES
    return measured


def contrast(layers: int) -> Pass:
    """A contrastive step of 32 pairs in several micro-batches."""
    recipe, measured = neobert_recipe("bf16", layers=layers), Pass()
    texts = _random_texts(_text_lengths(64, 90.0, 512))
    matching = match_texts(*np.split(np.arange(64), 2), np.arange(0), keep_false_negatives=False)
    with pretended_cuda() as gpu:
        with GPU:
            model = PackedEncoder(build_encoder(recipe.model, 512)).train()
        loss = GradCache(temperature=0.07)
        engine = Engine(
            model, loss.loss, lambda batch: batch.query_count, recipe.optimization, "bf16", GPU, loss.prepare
        )
        collator = StepCollator(model, 2048, "bf16", Process(0, 1), GPU)
        step = StepTexts(texts, matching)
        for _ in range(2):
            with gpu.counted() as measured.feeding:
                batches = collator.collate(step, collator.split(step.lengths), collator.process)
            with gpu.counted() as measured.work:
                update = engine.step(batches, 1e-4)
        with gpu.counted() as measured.reading:
            update.measured()
    return measured


@cache
def _tokenizer() -> TextTokenizer:
    with TemporaryDirectory() as folder:
        return SyntheticSource(10).tokenizer("wordpiece", 512, Path(folder))


def encode(layers: int, **changes: Any) -> Pass:
    """Texts of MTEB to vectors, in several batches of one chunk."""
    measured, drawn = Pass(), np.random.default_rng(0)
    texts = [" ".join(drawn.choice(WORDS, length)) for length in _text_lengths(200, 60.0, 400)]
    with pretended_cuda() as gpu:
        with GPU:
            model = PackedEncoder(build_encoder(neobert_recipe("bf16", layers=layers, **changes).model, 512))
        encoder = TextEncoder(model, _tokenizer(), 512, precision="bf16", device=GPU)
        with gpu.counted() as measured.work:
            encoder.encode(texts)
    return measured


def measure_heldout_loss(layers: int) -> Pass:
    """The loss on held-out web pages, in several batches."""
    recipe, measured = neobert_recipe("bf16", layers=layers), Pass()
    vocabulary = recipe.model.vocabulary_size
    documents = masked_documents(web_lengths(100), vocabulary, CONTEXT).view
    text = HeldoutText("web", documents, CONTEXT, 16, "cut", np.full(vocabulary, 1 / vocabulary))
    with pretended_cuda() as gpu:
        model = fresh_engine(recipe).model
        with gpu.counted() as measured.work:
            measure_heldout(model, text, "bf16", GPU)
    return measured
