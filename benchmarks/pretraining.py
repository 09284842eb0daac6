"""Speed of pre-training: steps of our engine against Hugging Face's models on the same masked documents on a CPU, and
runs on a GPU."""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, cycle, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ablations.loading import papers
from benchmarks.data import IDS, NEOBERT_MASKING, SHORTEST, write_web_pages
from benchmarks.measuring import OPERATIONS_RATIO, Pairs, Result, Step, count_operations, lowest_ratio, race, summary
from neobert.data.batches import Batch, ExactSizes, PaddingBuckets, collate, micro_batches
from neobert.data.masking import counter_hash
from neobert.data.packing import PackedRows, Spans, pack_documents, reorder_rows
from neobert.data.shards import FRAME_TOKENS, Documents, Integers, TokenizedCorpus, all_documents
from neobert.data.streams import shuffle
from neobert.files import read_lines
from neobert.model.build import build_masked_language_model, initialize
from neobert.model.heads import IGNORED_TARGET
from neobert.processes import REPOSITORY, available_cores
from neobert.recipe import Model, Precision, Pretraining, PretrainingPrecision, gated_width
from neobert.runs.records import read_record
from neobert.training.compiling import compile_model, parts_of
from neobert.training.engine import Engine, autocast
from neobert.training.pretraining import summed_loss

SEED = 0
RATE = 1e-4
"""Learning rate of measured steps; no model is trained for long."""
OURS = "ours, packed"

Batching = Literal["padded", "bucketed", "concatenated"]
Mode = Literal["eager", "compiled"]
MODES: tuple[Mode, ...] = ("eager", "compiled")


@dataclass(frozen=True, eq=False)
class MaskedDocuments:
    """Documents of a corpus in memory, cut to `context` tokens; `keys` (documents,) determine their masks."""

    view: Documents
    keys: Integers
    context: int

    @property
    def padded_fill(self) -> float:
        """Share of real tokens if every document has a row of its own."""
        return float(self.view.framed_lengths.mean()) / self.context

    @property
    def grid(self) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, labels (-100 where nothing is predicted) and a mask of real tokens, all (documents, context)."""
        numbers, lengths = np.arange(len(self.view)), self.view.framed_lengths
        zeros = np.zeros_like(numbers)
        spans = Spans(numbers, zeros, lengths, self.view.numbers, zeros, lengths, self.keys, zeros)
        batch = collate(PackedRows(self.context, len(numbers), spans, isolated=True), self.view.corpus, NEOBERT_MASKING)
        labels = torch.full_like(batch.token_ids, IGNORED_TARGET)
        labels[batch.token_ids == IDS.mask] = batch.targets[: batch.predicted_tokens]  # all targets are masked
        return batch.token_ids, labels, batch.token_ids != IDS.pad


def masked_documents(framed_lengths: Integers, vocabulary_size: int, context: int) -> MaskedDocuments:
    """Return documents of random tokens with `framed_lengths`, specials included, cut to `context`."""
    lengths, ids = framed_lengths - FRAME_TOKENS, replace(IDS, end_text_id=vocabulary_size)
    generator = np.random.default_rng(0)
    tokens = generator.integers(ids.first_text_id, ids.end_text_id, size=int(lengths.sum())).astype(np.uint16)
    hashes = generator.integers(0, 2**63, size=len(lengths)).astype(np.uint64)
    view = all_documents(TokenizedCorpus(ids, lengths, 4 * lengths, hashes, (tokens,), {})).truncated(context)
    return MaskedDocuments(view, counter_hash(SEED, view.numbers), context)


def beta_lengths(count: int, context: int) -> Integers:
    """Return lengths (count,) with a mean of 0.6 of the context; some fill a row and most do not."""
    drawn = context * np.random.default_rng(SEED).beta(1.2, 0.8, size=count)
    return np.clip(drawn.round(), SHORTEST, context).astype(np.int64)


def peer_batches(documents: MaskedDocuments, batching: Batching, documents_per_step: int) -> list[dict[str, Tensor]]:
    """Return arguments of a Hugging Face model, all (rows, tokens) int64: all documents once, in steps of about equally
    many tokens.

    "padded": one document per row, all rows as wide as the context. "bucketed": documents of similar length together,
    padded to a multiple of 8; consecutive steps differ in width. "concatenated": documents cut into full rows as in
    run_mlm.py, so that they attend to each other, without an attention mask.
    """
    token_ids, labels, real = documents.grid
    if batching == "concatenated":
        missing = -int(real.sum()) % documents.context  # of the last row, which is padded
        shown = {"input_ids": (token_ids, IDS.pad), "labels": (labels, IGNORED_TARGET)}
        grids = [nn.functional.pad(grid[real], (0, missing), value=filler) for grid, filler in shown.values()]
        steps = round(len(documents.view) / documents_per_step)
        parts = [grid.view(-1, documents.context).tensor_split(steps) for grid in grids]
        return [dict(zip(shown, step, strict=True)) for step in zip(*parts, strict=True)]
    lengths = real.sum(dim=1)
    groups = torch.arange(len(documents.view)).split(documents_per_step)
    if batching == "bucketed":
        by_length = lengths.argsort(stable=True).split(documents_per_step)
        groups = tuple(chain.from_iterable(by_length[start::5] for start in range(5)))  # narrow and wide in turn
    batches = []
    for group in groups:
        longest = documents.context if batching == "padded" else int(lengths[group].max())
        width = min(-(-longest // 8) * 8, documents.context)
        columns = {"input_ids": token_ids, "labels": labels, "attention_mask": real.long()}
        batches.append({name: column[group, :width] for name, column in columns.items()})
    return batches


@dataclass(frozen=True)
class Peer:
    """A Hugging Face class and its batching. ModernBERT computes logits only at predicted tokens; BERT cannot."""

    family: Literal["bert", "modernbert"]
    batching: Batching

    @property
    def name(self) -> str:
        """Family, head and batching."""
        return f"HF {self.family}, {'sparse head, ' if self.family == 'modernbert' else ''}{self.batching}"

    def build(self, model: Model, context: int) -> nn.Module:
        """Build the masked language model in the shape of `model`, with an untied decoder and no dropout.

        ModernBERT keeps its own local attention: two out of three layers see 128 tokens.
        """
        from transformers import AutoConfig, AutoModelForMaskedLM

        gated = self.family == "modernbert"
        width = gated_width(model.feedforward_width) if gated else model.feedforward_width
        no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        own_ids = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), IDS.cls)
        config = AutoConfig.for_model(
            self.family,
            **huggingface_shape(model.layers, model.width, model.heads, width),
            vocab_size=model.vocabulary_size,
            max_position_embeddings=context,
            tie_word_embeddings=False,
            pad_token_id=IDS.pad,
            **(own_ids | {"sparse_prediction": True} if gated else no_dropout),
        )
        torch.manual_seed(0)
        built: nn.Module = AutoModelForMaskedLM.from_config(config)
        return built


def huggingface_shape(layers: int, width: int, heads: int, feedforward_width: int) -> dict[str, int]:
    """Return a shape in the words of transformers' configurations."""
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return sizes | {"intermediate_size": feedforward_width}


def neobert_recipe(precision: PretrainingPrecision, **shape: Any) -> Pretraining:
    """Return NeoBERT's pre-training recipe, optionally with another shape."""
    recipe = papers().variants["M10"].recipe.pretraining
    model = recipe.model.model_copy(update=shape)
    return recipe.model_copy(update={"model": model, "precision": precision})


def pretraining_engine(model: nn.Module, recipe: Pretraining, device: torch.device) -> Engine[Batch]:
    return Engine(
        model, summed_loss, lambda batch: batch.predicted_tokens, recipe.optimization, recipe.precision, device
    )


@dataclass(frozen=True, eq=False)
class Setting:
    """Settings that all contenders of a benchmark share; `backend` is the compiler backend of ours."""

    recipe: Pretraining
    documents: MaskedDocuments
    documents_per_step: int
    device: torch.device
    backend: str = "inductor"

    def own_batches(self, mode: Mode) -> list[Batch]:
        """Return all documents once, packed with borders and masked by this project, in steps of about equally many
        tokens: for the kernels of the device, but on the CPU, and of fixed sizes for a compiled model."""
        documents, view, context = self.documents, self.documents.view, self.documents.context
        packed = pack_documents(view, np.arange(len(view)), documents.keys, context)
        rows = reorder_rows(packed, shuffle(packed.count, SEED))
        about = round(self.documents_per_step * documents.padded_fill)
        sizes = range(about - about // 10, about + about // 10 + 1)
        size = min(sizes, key=lambda size: (-rows.count % size, abs(size - about)))  # the last step lacks fewest rows
        buckets = PaddingBuckets(size, context, NEOBERT_MASKING.rate, float(view.framed_lengths.mean()))
        shapes = buckets if mode == "compiled" else ExactSizes(size)
        return [
            collate(part, view.corpus, NEOBERT_MASKING, sizes=shapes, varlen=self.device.type == "cuda")
            for part in micro_batches(rows, size)
        ]

    def own_engine(self, mode: Mode) -> Engine[Batch]:
        """Return the engine of a run of the recipe, with initial weights."""
        recipe = self.recipe
        model = build_masked_language_model(recipe.model, self.documents.context, recipe.precision)
        initialize(model, recipe.model.initialization, recipe.seed)
        model.train()
        if mode == "compiled":
            compile_model(parts_of(model, self.device), self.device, backend=self.backend)
        return pretraining_engine(model, recipe, self.device)

    def contenders(self, precisions: Sequence[Precision], peers: Sequence[Peer]) -> Mapping[str, Callable[[], Step]]:
        """Return makers of the contenders' steps by name, which ends with precision and mode."""
        makers: dict[str, Callable[[], Step]] = {}
        for precision, mode in product(precisions, MODES):
            setting = replace(self, recipe=self.recipe.model_copy(update={"precision": precision}))
            makers[f"{OURS}, {precision}, {mode}"] = partial(setting._own_step, mode)
            for peer in peers:
                makers[f"{peer.name}, {precision}, {mode}"] = partial(setting._peer_step, peer, mode)
        return makers

    def _own_step(self, mode: Mode) -> Step:
        """Return a step that makes one update of our engine on the next batch."""
        engine = self.own_engine(mode)
        upcoming = cycle([batch.to(self.device) for batch in self.own_batches(mode)])

        def step() -> int:
            batch = next(upcoming)
            engine.step([batch], RATE).measured()
            return batch.real_tokens

        return step

    def _peer_step(self, peer: Peer, mode: Mode) -> Step:
        """Return a step that makes one update on the next batch: the class's mean loss, autocast, gradient clipping as
        in Trainer's defaults, and fused AdamW. It is compiled for one width if all batches have it, else for any."""
        module = peer.build(self.recipe.model, self.documents.context).to(self.device).train()
        batches = peer_batches(self.documents, peer.batching, self.documents_per_step)
        real_tokens = [int((batch["input_ids"] != IDS.pad).sum()) for batch in batches]
        several_widths = len({batch["input_ids"].shape[1] for batch in batches}) > 1
        if mode == "compiled":
            module.compile(dynamic=several_widths or None)
        optimization = self.recipe.optimization
        optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=optimization.weight_decay, fused=True)
        there = [{name: tensor.to(self.device) for name, tensor in batch.items()} for batch in batches]
        upcoming = cycle(zip(there, real_tokens, strict=True))

        def step() -> int:
            batch, tokens = next(upcoming)
            with autocast(self.device, self.recipe.precision):
                loss = module(**batch).loss
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), optimization.clip_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return tokens

        return step


BURST_STEPS = 3
ROUNDS = 5
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
DOCUMENTS_PER_STEP = 32
PADDED, CONCATENATED, BUCKETED = Peer("bert", "padded"), Peer("bert", "concatenated"), Peer("modernbert", "bucketed")


def at_equal_precision(peer: Peer, *precisions: Precision) -> Pairs:
    """Return the pairs of ours and a peer in each precision, compiled or not."""
    return [(f"{OURS}, {precision}", f"{peer.name}, {precision}") for precision in precisions]


COMPARISONS: Mapping[str, tuple[Peer, Pairs]] = {
    "pretraining_over_bert_padded": (PADDED, at_equal_precision(PADDED, *PRECISIONS)),
    "pretraining_over_bert_concatenated": (CONCATENATED, at_equal_precision(CONCATENATED, *PRECISIONS)),
    "pretraining_over_bert_defaults": (PADDED, [(OURS, f"{PADDED.name}, fp32, eager")]),
    "pretraining_over_modernbert_bucketed": (BUCKETED, at_equal_precision(BUCKETED, "bf16")),
}


def small_setting(count: int) -> Setting:
    """Return a setting with `count` documents of up to 128 tokens for models of 4 × 256."""
    recipe = neobert_recipe("fp32", layers=4, width=256, heads=4, feedforward_width=1024, vocabulary_size=8192)
    documents = masked_documents(beta_lengths(count, 128), recipe.model.vocabulary_size, 128)
    return Setting(recipe, documents, DOCUMENTS_PER_STEP, torch.device("cpu"))


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Measure a step against Hugging Face's BERT and ModernBERT: same documents, predicted tokens and size. With a GPU
    measure the speed of a run instead."""
    if torch.cuda.is_available():
        yield from measure_runs()
        return
    torch.set_num_threads(available_cores())
    setting, peers = small_setting(DOCUMENTS_PER_STEP * BURST_STEPS * ROUNDS), (PADDED, CONCATENATED, BUCKETED)
    makers = setting.contenders(PRECISIONS, peers)
    counted = count_operations(
        {name: makers[f"{name}, fp32, eager"]() for name in (OURS, *(peer.name for peer in peers))}, BURST_STEPS
    )
    found = race(makers, rounds=ROUNDS, steps=BURST_STEPS)
    for name, (peer, pairs) in COMPARISONS.items():
        ratio, figures = lowest_ratio(found, pairs)
        equal = {OPERATIONS_RATIO: round(counted[peer.name] / counted[OURS], 3), "operations per real token": counted}
        yield Result(name, ratio, equal | figures | {"threads": torch.get_num_threads()})


GOALS_BY_CONTEXT = {1024: 310_000, 4096: 200_000}
"""Real tokens a second."""
PAGES, WINDOWS = 12_000, 3


def measure_runs() -> Iterator[Result]:
    """Measure the runs of benchmarks/speed.py on random web pages, as run.py starts them."""
    with tempfile.TemporaryDirectory() as folder:
        pages, runs = f"{folder}/pages", f"{folder}/runs"
        write_web_pages(Path(pages), PAGES, neobert_recipe("bf16").model.vocabulary_size)
        command = "ablations/run.py --ladder benchmarks/speed.py --scale speed --variant M9 --stages pretraining"
        place = f"--data {pages} --runs {runs} --cluster here --workers 1 --compile on"
        subprocess.run([sys.executable, *command.split(), *place.split()], cwd=REPOSITORY, check=True)
        for path in sorted(Path(runs).glob("pretraining/*/done.json")):
            record = read_record(path)
            context = record["config"]["recipe"]["stages"][-1]["context"]
            steps = [line for line in read_lines(path.with_name("metrics.jsonl"), "step") if "loss" in line]
            yield result_of_run(context, steps, {key: record[key] for key in RECORDED})


RECORDED = ("tokens_per_second", "model_flops_utilization", "compile_seconds", "peak_memory_bytes")


def result_of_run(context: int, steps: Sequence[Mapping[str, Any]], recorded: dict[str, Any]) -> Result:
    """Return the speed in equal parts of the steps of a run / the goal; `recorded` are figures of its record."""
    parts = [steps[len(steps) * part // WINDOWS : len(steps) * (part + 1) // WINDOWS] for part in range(WINDOWS)]
    speeds = [sum(step["real_tokens"] for step in part) / sum(step["seconds"] for step in part) for part in parts]
    figures = {"real tokens per second": [round(speed) for speed in speeds], "steps": len(steps)} | recorded
    return Result(f"pretraining_gpu_{context}", summary([s / GOALS_BY_CONTEXT[context] for s in speeds]), figures)
