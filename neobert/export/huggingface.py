"""Exports for transformers (model.safetensors, config.json, tokenizer files) and for sentence-transformers."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from neobert.data.tokenizers import TextTokenizer
from neobert.export.checkpoint import (
    TEXTS,
    PretrainedCheckpoint,
    flat_logits,
    flat_means,
    probes,
    require_close,
    require_equal_tokens,
    require_equal_weights,
    require_packages,
)
from neobert.files import json_bytes, replace_file
from neobert.hub import NeoBERTConfig, NeoBERTForMaskedLM
from neobert.kinds.pretraining import PretrainingRun
from neobert.own_code import SOURCES, sources_in

TOLERANCE = 1e-5


def transformers_tokenizer(tokenizer: TextTokenizer, context: int) -> PreTrainedTokenizerFast:
    """Convert a tokenizer for transformers. It adds special tokens itself and reads "[MASK]" in a text as the mask.

    context: length after truncation in tokens, specials included.
    """
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    ids, fast = tokenizer.ids, Tokenizer.from_str(tokenizer.tokenizer.to_str())
    names = {name: fast.id_to_token(getattr(ids, name)) for name in ("pad", "cls", "sep", "mask", "unk")}
    cls, sep = names["cls"], names["sep"]
    opening = f"{cls} " if tokenizer.opens_second else ""
    fast.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} {opening}$B:1 {sep}:1",
        special_tokens=[(cls, ids.cls), (sep, ids.sep)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        model_max_length=context,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in names.items()},
    )


def configuration_of(run: PretrainingRun, tokenizer: TextTokenizer) -> NeoBERTConfig:
    """Return the transformers configuration of a pre-training run's model."""
    ids = tokenizer.ids
    special_ids = {"pad_token_id": ids.pad, "cls_token_id": ids.cls, "sep_token_id": ids.sep}
    return NeoBERTConfig.from_recipe(run.recipe.model, run.context, dtype="float32", **special_ids)


def masked_language_model(checkpoint: PretrainedCheckpoint) -> NeoBERTForMaskedLM:
    """Return the transformers model with the run's weights."""
    model = NeoBERTForMaskedLM(configuration_of(checkpoint.run, checkpoint.tokenizer))
    model.load_state_dict(checkpoint.weights)
    return model.eval()


def write_own_code(run: PretrainingRun, folder: Path) -> None:
    """Write the sources of the model's own parts, if it has any, for `neobert.own_code.trust_folder`."""
    if sources := sources_in(run.recipe.model):
        replace_file(folder / SOURCES, json_bytes(sources))


@torch.no_grad()
def write_transformers(checkpoint: PretrainedCheckpoint, folder: Path) -> dict[str, float]:
    """Write the folder, reload it and compare it with the run; return the deviation of logits of padded rows.

    Raises:
        ParityOff: weights or token ids differ from the run's, or logits differ by more than 1e-5.
    """
    masked_language_model(checkpoint).save_pretrained(folder)
    write_own_code(checkpoint.run, folder)
    transformers_tokenizer(checkpoint.tokenizer, checkpoint.run.context).save_pretrained(folder)
    model = NeoBERTForMaskedLM.from_pretrained(folder)
    require_equal_weights(model.state_dict(), checkpoint.weights)
    require_equal_tokens(AutoTokenizer.from_pretrained(folder), checkpoint)
    documents, token_ids, mask = probes(checkpoint.run)
    found = model(token_ids, attention_mask=mask).logits[mask.bool()]
    return {"logits": require_close("model", found, flat_logits(checkpoint, documents), TOLERANCE)}


def write_sentence_transformers(checkpoint: PretrainedCheckpoint, folder: Path) -> dict[str, float]:
    """Write the folder, reload it and compare it with the run; return the deviation of sentence vectors.

    Raises:
        ValueError: sentence-transformers is not installed.
        ParityOff: token ids differ from the run's, or sentence vectors differ by more than 1e-5.
    """
    tokenizer, context = checkpoint.tokenizer, checkpoint.run.context
    save_modules(masked_language_model(checkpoint).model, transformers_tokenizer(tokenizer, context), folder, {})
    write_own_code(checkpoint.run, folder)
    require_equal_tokens(AutoTokenizer.from_pretrained(folder), checkpoint)
    framed = [tokenizer.frame(ids, max_tokens=context) for ids in tokenizer.encode(TEXTS)]
    expected = flat_means(checkpoint, [torch.tensor(ids) for ids in framed])
    found = load_sentence_encoder(folder)(TEXTS)
    return {"sentence_embedding": require_close("sentence vectors", found, expected, TOLERANCE)}


def save_modules(encoder: Any, tokenizer: Any, folder: Path, prompts: Mapping[str, str]) -> None:
    """Write a transformers encoder and tokenizer with mean pooling and named `prompts`, which are prepended to texts.

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


def load_sentence_encoder(folder: Path) -> Callable[..., Tensor]:
    """Load a folder with sentence-transformers; return a function of texts and a prompt's name that returns vectors
    (texts, width)."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")

    def encode(texts: Sequence[str], prompt_name: str | None = None) -> Tensor:
        return torch.from_numpy(model.encode(list(texts), prompt_name=prompt_name, show_progress_bar=False))

    return encode
