"""A folder for sentence-transformers: the encoder, mean pooling, and prompts by name."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neobert.export.huggingface import masked_language_model
from neobert.export.parity import TEXTS, flat_means, require_close, require_equal_tokens
from neobert.export.requirements import require_packages
from neobert.export.source import PretrainedCheckpoint
from neobert.hub.tokenizer import load_transformers_tokenizer, transformers_tokenizer

TOLERANCE = 1e-5


def write_sentence_transformers(checkpoint: PretrainedCheckpoint, folder: Path) -> dict[str, float]:
    """Write the folder and reload it; returns the deviations that were measured.

    Raises:
        ValueError: sentence-transformers is not installed.
        ParityOff: the reloaded encoder's sentence vectors are not the run's.
    """
    tokenizer = transformers_tokenizer(checkpoint.tokenizer, checkpoint.run.context)
    save_modules(masked_language_model(checkpoint).model, tokenizer, folder, {})
    return check_sentence_transformers(checkpoint, folder)


def save_modules(encoder: Any, tokenizer: Any, folder: Path, prompts: Mapping[str, str]) -> None:
    """Write an encoder and a tokenizer of transformers with mean pooling; `prompts` stand before texts, by name.

    Raises:
        ValueError: sentence-transformers is not installed.
    """
    require_packages("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    with tempfile.TemporaryDirectory() as scratch:
        encoder.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        modules = [Transformer(scratch), Pooling(encoder.config.hidden_size, "mean")]
        model = SentenceTransformer(modules=modules, device="cpu", prompts=dict(prompts))
        model.save_pretrained(str(folder), create_model_card=False)


@dataclass(frozen=True, eq=False)
class Reloaded:
    """A folder as sentence-transformers reads it."""

    model: Any

    def vectors(self, texts: Sequence[str], prompt_name: str | None = None) -> Tensor:
        """Vectors of texts (texts, width), behind a prompt of the folder where one is named."""
        return torch.from_numpy(self.model.encode(list(texts), prompt_name=prompt_name, show_progress_bar=False))


def reloaded(folder: Path) -> Reloaded:
    """The folder, loaded."""
    from sentence_transformers import SentenceTransformer

    return Reloaded(SentenceTransformer(str(folder), device="cpu"))


def check_sentence_transformers(checkpoint: PretrainedCheckpoint, folder: Path) -> dict[str, float]:
    """Compare a folder with the run: token ids equal, sentence vectors within 1e-5.

    Raises:
        ParityOff: they differ.
    """
    require_equal_tokens(load_transformers_tokenizer(folder), checkpoint)
    found = reloaded(folder).vectors(TEXTS)
    tokenizer = checkpoint.tokenizer
    framed = [tokenizer.frame(ids, max_tokens=checkpoint.run.context) for ids in tokenizer.encode(TEXTS)]
    expected = flat_means(checkpoint, [torch.tensor(ids) for ids in framed])
    return {"sentence_embedding": require_close("sentence vectors", found, expected, TOLERANCE)}
