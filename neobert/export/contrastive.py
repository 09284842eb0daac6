"""A contrastive run as files that other programs load, checked to give the vectors that the run gives."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neobert.embeddings.encoding import Embedder, TextEncoder
from neobert.embeddings.external_encoding import ExternalTextEncoder
from neobert.embeddings.opening import open_contrastive
from neobert.embeddings.pairs import framed_texts
from neobert.embeddings.specification import ContrastiveRun
from neobert.export.graph import EMBEDDING, Embedding, run_graph, write_graph
from neobert.export.graph import TOLERANCE as GRAPH_TOLERANCE
from neobert.export.huggingface import TOLERANCE, configuration_of
from neobert.export.parity import TEXTS, require_close, require_equal_weights
from neobert.export.requirements import require_packages
from neobert.export.sentence import reloaded_vectors, save_modules
from neobert.export.source import chosen_step
from neobert.hub import NeoBERTModel
from neobert.hub.external import load_external
from neobert.hub.tokenizer import transformers_tokenizer
from neobert.layout import Layout
from neobert.specifications import RunFile, read_run_file

CPU = torch.device("cpu")
PROBES = (*TEXTS, "A text that is longer than any context. " * 60)


@dataclass(frozen=True, eq=False)
class ContrastiveCheckpoint:
    """A step of a run: how the run itself makes vectors, and its encoder and tokenizer as transformers has them.

    `record` is the finished run's, None for steps on the way.
    """

    folder: Path
    run_file: RunFile
    step: int
    record: dict[str, Any] | None
    embedder: Embedder
    encoder: Any
    tokenizer: Any

    @property
    def run(self) -> ContrastiveRun:
        """The specification of the run."""
        assert self.run_file.contrastive is not None
        return self.run_file.contrastive

    def expected(self, instruction: str | None = None) -> Tensor:
        """The run's vectors of the probes."""
        return torch.from_numpy(self.embedder.encode(PROBES, instruction=instruction))

    @cached_property
    def prompts(self) -> dict[str, str]:
        """For each data set what, before a query, reads as its instruction did in training; a set whose instruction no
        text can stand for is not among them."""
        if self.run.protocol.instructed == "nothing":
            return {}
        told = {pairs.name: self._prompt(pairs.instruction) for pairs in self.run.sets if pairs.instruction}
        return {name: prompt for name, prompt in told.items() if prompt is not None}

    def _prompt(self, instruction: str) -> str | None:
        assert isinstance(self.embedder, TextEncoder | ExternalTextEncoder)
        separator, opening = self.tokenizer.sep_token or "", self.tokenizer.cls_token or ""
        framed, _ = framed_texts(list(PROBES), self.embedder.tokenizer, instruction, self.run.max_tokens)
        for end in (separator, separator + opening, separator + separator):
            read = [self.tokenizer(f"{instruction}{end}{text}", truncation=True) for text in PROBES]
            if all(_reads_as(tokens, *text) for tokens, text in zip(read, framed, strict=True)):
                return f"{instruction}{end}"
        return None


def _reads_as(tokens: Any, token_ids: Any, token_types: Any) -> bool:
    types = tokens.get("token_type_ids", np.zeros(len(tokens["input_ids"])))
    return np.array_equal(tokens["input_ids"], token_ids) and np.array_equal(types, token_types)


def open_contrastive_checkpoint(folder: Path, step: int | None) -> ContrastiveCheckpoint:
    """The checkpoint of `step`, or the last one of a finished run.

    Raises:
        MissingData: there is no such step, or the run is unfinished and no step is named.
        DamagedFile: a file does not match its checksum.
    """
    run_file = read_run_file(folder)
    run = run_file.contrastive
    assert run is not None
    chosen, record = chosen_step(folder, run.protocol.steps, step)
    layout = Layout(folder.parent.parent)
    embedder = open_contrastive(layout, run_file.id, CPU, "fp32", chosen)
    encoder, tokenizer = _for_transformers(layout, run, embedder)
    return ContrastiveCheckpoint(folder, run_file, chosen, record, embedder, encoder, tokenizer)


def _for_transformers(layout: Layout, run: ContrastiveRun, embedder: Embedder) -> tuple[Any, Any]:
    """Encoder and tokenizer; the tokenizer cuts texts as the run does."""
    if isinstance(embedder, ExternalTextEncoder):
        embedder.tokenizer.tokenizer.model_max_length = run.max_tokens
        return embedder.encoder.encoder, embedder.tokenizer.tokenizer
    assert isinstance(embedder, TextEncoder)
    pretraining = read_run_file(layout.pretraining(run.weights)).pretraining
    assert pretraining is not None
    encoder = NeoBERTModel(configuration_of(pretraining, embedder.tokenizer)).eval()
    encoder.load_state_dict(embedder.encoder.state_dict())
    return encoder, transformers_tokenizer(embedder.tokenizer, run.max_tokens)


def write_contrastive(checkpoint: ContrastiveCheckpoint, form: str, folder: Path) -> dict[str, float]:
    """Write a folder of the kind `form` and reload it; returns the deviations that were measured.

    Raises:
        ValueError: a package is not installed, or the form is not for encoders from elsewhere.
        ParityOff: what was reloaded does not give the run's vectors.
    """
    writers = {"hf": _write_transformers, "sentence-transformers": _write_sentence_transformers, "onnx": _write_onnx}
    return writers[form](checkpoint, folder)


def _write_transformers(checkpoint: ContrastiveCheckpoint, folder: Path) -> dict[str, float]:
    checkpoint.encoder.save_pretrained(folder)
    checkpoint.tokenizer.save_pretrained(folder)
    encoder, tokenizer = load_external(folder, str(folder))
    require_equal_weights(encoder.encoder.state_dict(), checkpoint.encoder.state_dict())
    reloaded = ExternalTextEncoder(encoder, tokenizer, tokenizer.most_tokens, precision="fp32", device=CPU)
    found = torch.from_numpy(reloaded.encode(PROBES))
    return {"vectors": require_close("vectors", found, checkpoint.expected(), TOLERANCE)}


def _write_sentence_transformers(checkpoint: ContrastiveCheckpoint, folder: Path) -> dict[str, float]:
    save_modules(checkpoint.encoder, checkpoint.tokenizer, folder, checkpoint.prompts)
    found = reloaded_vectors(folder, PROBES)
    parity = {"vectors": require_close("vectors", found, checkpoint.expected(), TOLERANCE)}
    for pairs in checkpoint.run.sets:
        if pairs.name in checkpoint.prompts:
            found = reloaded_vectors(folder, PROBES, pairs.name)
            what = f"vectors behind the prompt {pairs.name}"
            parity[what] = require_close(what, found, checkpoint.expected(pairs.instruction), TOLERANCE)
    return parity


def _write_onnx(checkpoint: ContrastiveCheckpoint, folder: Path) -> dict[str, float]:
    encoder, tokenizer = checkpoint.encoder, checkpoint.tokenizer
    if not isinstance(encoder, NeoBERTModel):
        raise ValueError(
            f"{type(encoder).__name__} is not written as an ONNX graph here: export it with --to hf, and convert that "
            "folder with optimum-cli"
        )
    require_packages("onnx", "onnxscript", "onnxruntime")
    folder.mkdir(parents=True, exist_ok=True)
    write_graph(Embedding(encoder), encoder.config.max_length, folder / EMBEDDING)
    encoder.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tokens = tokenizer(list(PROBES), padding=True, truncation=True, return_tensors="pt")
    _, found = run_graph(folder / EMBEDDING, tokens["input_ids"], tokens["attention_mask"])
    return {"vectors": require_close("vectors", found, checkpoint.expected(), GRAPH_TOLERANCE)}
