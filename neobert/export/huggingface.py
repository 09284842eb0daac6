"""A folder for transformers: model.safetensors, config.json, tokenizer files."""

from pathlib import Path

import torch

from neobert.data.tokenizers import TextTokenizer
from neobert.export.parity import (
    flat_logits,
    padded,
    probe_documents,
    require_close,
    require_equal_tokens,
    require_equal_weights,
)
from neobert.export.source import PretrainedCheckpoint
from neobert.hub import NeoBERTConfig, NeoBERTForMaskedLM
from neobert.hub.tokenizer import load_transformers_tokenizer, transformers_tokenizer
from neobert.runs.specifications import PretrainingRun

TOLERANCE = 1e-5


def configuration(checkpoint: PretrainedCheckpoint) -> NeoBERTConfig:
    """The run's config.json."""
    return configuration_of(checkpoint.run, checkpoint.tokenizer)


def configuration_of(run: PretrainingRun, tokenizer: TextTokenizer) -> NeoBERTConfig:
    """The config.json of what a pre-training run built."""
    ids = tokenizer.ids
    special_ids = {"pad_token_id": ids.pad, "cls_token_id": ids.cls, "sep_token_id": ids.sep}
    return NeoBERTConfig.from_recipe(run.recipe.model, run.context, dtype="float32", **special_ids)


def masked_language_model(checkpoint: PretrainedCheckpoint) -> NeoBERTForMaskedLM:
    """The run's weights in the transformers class."""
    model = NeoBERTForMaskedLM(configuration(checkpoint))
    model.load_state_dict(checkpoint.weights)
    return model.eval()


def write_transformers(checkpoint: PretrainedCheckpoint, folder: Path) -> dict[str, float]:
    """Write the folder and reload it; returns the deviations that were measured.

    Raises:
        ParityOff: the reloaded class is not equal to the run.
    """
    masked_language_model(checkpoint).save_pretrained(folder)
    transformers_tokenizer(checkpoint.tokenizer, checkpoint.run.context).save_pretrained(folder)
    return check_transformers(checkpoint, folder)


@torch.no_grad()
def check_transformers(checkpoint: PretrainedCheckpoint, folder: Path) -> dict[str, float]:
    """Compare a folder with the run: weights and token ids equal, logits of padded rows within 1e-5.

    Raises:
        ParityOff: they differ.
    """
    model = NeoBERTForMaskedLM.from_pretrained(folder)
    require_equal_weights(model.state_dict(), checkpoint.weights)
    require_equal_tokens(load_transformers_tokenizer(folder), checkpoint)
    documents = probe_documents(checkpoint.run.recipe.model.vocabulary_size, checkpoint.run.context)
    token_ids, mask = padded(documents)
    found = model(token_ids, attention_mask=mask).logits[mask.bool()]
    return {"logits": require_close("model", found, flat_logits(checkpoint, documents), TOLERANCE)}
