"""A folder for sentence-transformers: the encoder, mean pooling, and empty prompts to fill in."""

import tempfile
from pathlib import Path

import torch

from neobert.export.huggingface import configuration, masked_language_model
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
    require_packages("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    with tempfile.TemporaryDirectory() as scratch:
        masked_language_model(checkpoint).model.save_pretrained(scratch)
        transformers_tokenizer(checkpoint.tokenizer, checkpoint.run.context).save_pretrained(scratch)
        pooling = Pooling(configuration(checkpoint).hidden_size, "mean")
        model = SentenceTransformer(modules=[Transformer(scratch), pooling], device="cpu")
        model.save_pretrained(str(folder), create_model_card=False)
    return check_sentence_transformers(checkpoint, folder)


def check_sentence_transformers(checkpoint: PretrainedCheckpoint, folder: Path) -> dict[str, float]:
    """Compare a folder with the run: token ids equal, sentence vectors within 1e-5.

    Raises:
        ParityOff: they differ.
    """
    from sentence_transformers import SentenceTransformer

    require_equal_tokens(load_transformers_tokenizer(folder), checkpoint)
    model = SentenceTransformer(str(folder), device="cpu")
    found = torch.from_numpy(model.encode(list(TEXTS), show_progress_bar=False))
    tokenizer = checkpoint.tokenizer
    framed = [tokenizer.frame(ids, max_tokens=checkpoint.run.context) for ids in tokenizer.encode(TEXTS)]
    expected = flat_means(checkpoint, [torch.tensor(ids) for ids in framed])
    return {"sentence_embedding": require_close("sentence vectors", found, expected, TOLERANCE)}
