"""Models and tokenizers of runs as those of transformers and sentence-transformers."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from neobert.data.tokenizers import TextTokenizer
from neobert.hub import NeoBERTConfig
from neobert.kinds.pretraining import PretrainingRun


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


Encode = Callable[[Sequence[str], str | None], Any]
"""Function of texts and the name of a prompt that returns vectors (texts, width)."""


def transformers_vectors(folder: Path) -> Encode:
    """Return a function that encodes with a folder for transformers, which has no prompts."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)

    @torch.no_grad()
    def encode(texts: Sequence[str], prompt: str | None) -> Any:
        tokens = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        mask = tokens["attention_mask"].unsqueeze(-1)
        return ((model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)).numpy()

    return encode


def sentence_vectors(folder: Path) -> Encode:
    """Return a function that encodes with a folder for sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts, prompt: model.encode(list(texts), prompt_name=prompt, show_progress_bar=False)


def require_packages(*names: str) -> None:
    """Raise ValueError unless packages are installed."""
    if missing := [name for name in names if find_spec(name) is None]:
        raise ValueError(f"this export needs {', '.join(missing)}: install the extra with pip install -e '.[export]'")
