"""Pseudo-perplexity of a finished stage of pre-training, with each token masked alone: work of one part, one record."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt
from torch.nn import functional

from neobert.data.preparation import tokenized_corpus
from neobert.data.shards import FRAME_TOKENS, Documents, TokenizedCorpus, all_documents
from neobert.errors import MissingData, RunFailed
from neobert.evaluation.texts import Passage, TextFiles, choose_documents, cut_passages, tokenize_files
from neobert.files import append_line, mend_lines, read_lines
from neobert.identity import NUMERICS, chosen, identity, plain
from neobert.model.attention import GatherIndex, send, whole_rows_plan
from neobert.model.build import build_masked_language_model
from neobert.model.heads import MaskedLanguageModel
from neobert.processes import Stopped, StopRequest
from neobert.recipe import PretrainingPrecision, Value
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.records import (
    PerplexityAtLength,
    PerplexityConfig,
    PerplexityScores,
    publish_record,
    timed_provenance,
    utc_now,
)
from neobert.runs.run_file import RunFile
from neobert.runs.specifications import PretrainingRun
from neobert.runs.work import Part, error_beside
from neobert.training.distributed import default_device
from neobert.training.engine import autocast
from neobert.training.trainer import last_checkpoint

CONFIDENCE = 0.95

LEAST_DOCUMENTS = 2
"""Fewest documents for an interval: one document has no variance."""

ENOUGH_DOCUMENTS = 8
"""Lengths that fewer documents reach are left out, since the same documents are used at every length. If a text has
fewer documents, all of them are enough."""

BATCH_TOKENS = {"cpu": 4096, "cuda": 131_072}

VERSION = 2  # 2: the same documents at every length
"""Increase it when the numbers change. Models and tokenizers have their own versions."""


@torch.inference_mode()
def measure_losses(
    model: MaskedLanguageModel, passage: Passage, mask: int, precision: PretrainingPrecision, batch_tokens: int
) -> NDArray[np.float64]:
    """Return −log p in nats of the tokens at the passage's positions, (positions,), each masked alone.

    A batch of at most `batch_tokens` has copies of the text, each with a different token replaced by the id `mask`. The
    copies are equally long and need neither padding nor an attention mask. The decoder and (except for keys and values)
    the last block compute only the masked token of each copy, with the same result. With NeoBERT's 28 × 768 this saves
    13 % of the products with weights (11 % in the decoder, 3 % for 5/6 of a block), and the memory of all other logits.

    Raises:
        ValueError: the passage is longer than the model's learned positions.
    """
    device = next(model.parameters()).device
    text, positions = (send(torch.from_numpy(array), device) for array in (passage.token_ids, passage.positions))
    losses = []
    for some in positions.split(max(1, batch_tokens // len(text))):
        columns = some.unsqueeze(1)
        token_ids = text.repeat(len(some), 1).scatter_(1, columns, mask)
        with autocast(device, precision):
            logits = model.logits(token_ids, whole_rows_plan(token_ids), GatherIndex.at(columns, len(text)))
        losses.append(functional.cross_entropy(logits.float(), text[some], reduction="none"))
    return torch.cat(losses).double().cpu().numpy()


@dataclass(frozen=True)
class DocumentLoss:
    """Mean −log p in nats of a document's tokens, each masked alone, and the number of these tokens."""

    loss: float
    positions: int


def pseudo_perplexity(tokens: int, documents: Sequence[DocumentLoss]) -> PerplexityAtLength:
    """Return exp of the mean loss over documents (Salazar et al. 2020), equally weighted, with a 95 % interval.

    The interval is Student's t interval of the mean over at least two documents, exponentiated. If positions are
    sampled, the variance of document means includes that of the sampling.

    Raises:
        RunFailed: a loss is not finite.
    """
    from scipy import stats

    losses = np.array([document.loss for document in documents])
    if not np.isfinite(losses).all():
        raise RunFailed(
            f"a loss at {tokens} tokens is not finite: the checkpoint's weights or its precision are broken"
        )
    mean, count = float(losses.mean()), len(losses)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
    half = quantile * float(losses.std(ddof=1)) / math.sqrt(count)
    return PerplexityAtLength(
        tokens=tokens,
        pseudo_perplexity=math.exp(mean),
        low=math.exp(max(0.0, mean - half)),
        high=math.exp(mean + half),
        positions=sum(document.positions for document in documents),
        documents=count,
    )


class PerplexityMeasurement(Value):
    """Everything that determines the result: the run, the lengths in tokens, the number of documents and of positions
    of each (None: all), the seed of the sampling, and the hash of the text (None: held-out documents of the run)."""

    run: str
    lengths: tuple[PositiveInt, ...]
    documents: PositiveInt
    sampled_positions: PositiveInt | None
    seed: NonNegativeInt
    text: str | None

    @property
    def id(self) -> str:
        """The id of the measurement."""
        numerics = chosen(NUMERICS, ("tokenization", "model"))
        return identity({"kind": "pseudo_perplexity", "measurement": self, "numerics": numerics, "version": VERSION})


@dataclass(frozen=True)
class PerplexityRun:
    """A measurement on the last checkpoint of a finished run, on its held-out documents or on another `text`.
    `batch_tokens` affects speed and rounding."""

    layout: Layout
    run_file: RunFile
    measurement: PerplexityMeasurement
    batch_tokens: int | None = None
    text: TextFiles | None = None

    @property
    def run_specification(self) -> PretrainingRun:
        """The measured stage of pre-training."""
        return self.run_file.specification(PretrainingRun)

    @cached_property
    def part(self) -> Part:
        """The part that a worker claims, with the path of its record."""
        record = self.layout.pseudo_perplexity(self.measurement.id)
        return Part(
            id=self.measurement.id,
            title=f"pseudo-perplexity {self.measurement.id} of pre-training {self.measurement.run}",
            record=record,
            error=error_beside(record),
        )

    @property
    def documents_path(self) -> Path:
        """The file with a line for each length and document, from which a stopped measurement resumes."""
        return self.part.record.with_suffix(".jsonl")

    def is_ready(self) -> bool:
        """Return whether the run has its last checkpoint."""
        return (self.layout.pretraining(self.measurement.run) / "done.json").exists()

    @cached_property
    def corpus(self) -> TokenizedCorpus:
        """The tokens of the text, or of the run's corpus."""
        if self.text is not None:
            return tokenize_files(self.layout, self.run_file, self.text)
        return tokenized_corpus(self.layout, self.run_specification, self.run_file.source)

    @cached_property
    def documents(self) -> Documents:
        """All documents of the text, or the held-out documents of the run's corpus."""
        everything = all_documents(self.corpus)
        return everything if self.text is not None else everything.split_heldout()[1]

    @property
    def text_name(self) -> str:
        """The name of the text in the record; for other files it includes the hash of their bytes."""
        return f"held-out {self.run_specification.recipe.data.corpus}" if self.text is None else str(self.text)

    @cached_property
    def least_documents(self) -> int:
        """Number of documents that must reach a length for it to be measured."""
        long_enough = self.documents.framed_lengths >= min(self.measurement.lengths)
        there = len(np.unique(self.corpus.text_hashes[self.documents.numbers[long_enough]]))
        return max(LEAST_DOCUMENTS, min(ENOUGH_DOCUMENTS, self.measurement.documents, there))

    @cached_property
    def passages(self) -> dict[int, list[Passage]]:
        """The beginnings of the same documents, by length. Lengths with too few documents are left out."""
        asked = self.measurement
        documents, lengths = choose_documents(self.documents, asked.lengths, asked.documents, self.least_documents)
        return {tokens: cut_passages(documents, tokens, asked.sampled_positions, asked.seed) for tokens in lengths}

    @cached_property
    def left_out(self) -> dict[str, str]:
        """The lengths that are not measured, each with the reason."""
        longest = int(self.documents.framed_lengths.max(initial=0))
        which = "documents of the text" if self.text is not None else "held-out documents"
        reason = f"fewer than {self.least_documents} {which} are that long (the longest has {longest} tokens)"
        return {str(tokens): reason for tokens in self.measurement.lengths if tokens not in self.passages}

    def refuse_impossible(self) -> None:
        """Check that the measurement is possible, before anything is computed.

        Raises:
            ValueError: a length leaves no room for text, or exceeds the model's learned positions.
            MissingData: no length has enough documents.
        """
        shortest, longest = min(self.measurement.lengths), max(self.measurement.lengths)
        if shortest <= FRAME_TOKENS:
            raise ValueError(
                f"{shortest} tokens have no room beside {FRAME_TOKENS} special tokens: name a longer length"
            )
        table = self.run_specification.position_table
        if table is not None and longest > table:
            raise ValueError(
                f"run {self.measurement.run} has learned positions for {table} tokens, not for {longest}: "
                f"name lengths up to {table}"
            )
        if not self.passages:
            raise MissingData(f"nothing to read at {shortest} tokens or more: {self.left_out[str(shortest)]}")

    def run(self, claim: Claim, stop: StopRequest) -> None:
        """Measure what earlier attempts have not measured, then publish the record."""
        started = time.perf_counter()
        run, device = self.run_specification, default_device()
        model = build_masked_language_model(run.recipe.model, run.context, run.recipe.precision)
        model.load_state_dict(last_checkpoint(self.layout, self.measurement.run).weights())
        model.to(device).eval()
        batch_tokens = self.batch_tokens or BATCH_TOKENS[device.type]
        before = self._lines_before()
        done = {(line["tokens"], line["text_hash"]): DocumentLoss(line["loss"], line["positions"]) for line in before}
        started_at = before[0].get("started_at") if before else utc_now()
        for tokens, texts in self.passages.items():
            for passage in texts:
                if (tokens, passage.text_hash) in done:
                    continue
                if stop.requested:
                    raise Stopped(f"asked to stop after {len(done)} documents, which are kept", progressed=bool(done))
                losses = measure_losses(model, passage, self.corpus.ids.mask, run.recipe.precision, batch_tokens)
                loss = DocumentLoss(float(losses.mean()), len(losses))
                done[tokens, passage.text_hash] = loss
                place = {"tokens": tokens, "text_hash": passage.text_hash, "started_at": started_at}
                append_line(self.documents_path, {**place, **vars(loss)})
        claim.check()
        costs = {"seconds": round(time.perf_counter() - started, 3), **timed_provenance(started_at)}
        publish_record(self.part.record, {**self._record(done, device), **costs})

    def _lines_before(self) -> list[dict[str, Any]]:
        """Return the lines of the documents that earlier attempts have measured."""
        keys = ("tokens", "text_hash", "loss", "positions")
        mend_lines(self.documents_path, *keys)
        return list(read_lines(self.documents_path, *keys))

    def _record(self, done: dict[tuple[int, int], DocumentLoss], device: torch.device) -> dict[str, Any]:
        run, asked = self.run_specification, self.measurement
        lengths = tuple(
            pseudo_perplexity(tokens, [done[tokens, passage.text_hash] for passage in texts])
            for tokens, texts in self.passages.items()
        )
        config = PerplexityConfig(
            stage=run.stage, text=self.text_name, sampled_positions=asked.sampled_positions, same_documents=True
        )
        return {
            "kind": "pseudo_perplexity",
            "id": self.part.id,
            "state": "done",
            "inputs": {"pretraining": asked.run, "data": asked.text or run.data_id},
            "config": plain(config),
            "labels": self.run_file.labels,
            "scores": plain(PerplexityScores(lengths=lengths)),
            "seed": asked.seed,
            "left_out": self.left_out,
            "most_documents": asked.documents,
            "precision": run.recipe.precision,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        }
