"""A run's tokenizer as files that transformers' AutoTokenizer loads."""

from pathlib import Path
from typing import cast

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from neobert.data.tokenizers import TextTokenizer


def transformers_tokenizer(tokenizer: TextTokenizer, context: int) -> PreTrainedTokenizerFast:
    """The same tokenizer for transformers; it frames texts itself, and reads "[MASK]" in a text as the mask.

    context: tokens, specials included, to which truncation cuts.
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


def load_transformers_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """What a user of the folder gets."""
    return cast(PreTrainedTokenizerFast, AutoTokenizer.from_pretrained(folder))
