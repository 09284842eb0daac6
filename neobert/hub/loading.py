"""What a checkpoint may lack or have too much: a head, and nothing of the encoder."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HEADS = ("decoder.", "dense.", "classifier.", "qa_outputs.")
"""How the tensors of heads are named; all others belong to the encoder."""

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

SHOWN_KEYS = 3


def refuse_pickle(name_or_folder: Any, use_safetensors: bool | None) -> None:
    """Check that weights come as safetensors: a pickle runs code when it is read.

    Raises:
        ValueError: a pickle is asked for, or a folder holds nothing else.
    """
    if use_safetensors is False:
        raise ValueError("use_safetensors=False asks for pickled weights, which run code when read: leave it out")
    named = Path(str(name_or_folder))
    files = sorted(named.iterdir()) if named.is_dir() else [named]
    pickles = [file for file in files if file.suffix in PICKLE_SUFFIXES and file.is_file()]
    if pickles and not any(file.suffix == ".safetensors" for file in files):
        raise ValueError(
            f"{pickles[0]} is a pickle, which runs code when read, and is refused: save it as model.safetensors"
        )


def refuse_incomplete(name: Any, info: Mapping[str, Any], needs_decoder: bool, may_replace_head: bool) -> None:
    """Check what transformers' loading `info` says that a checkpoint lacked, had too much or in another shape.

    A classification head may be new, and heads of other tasks may stay behind; one of another size is replaced only
    where that was asked for (`may_replace_head`, transformers' ignore_mismatched_sizes).

    Raises:
        ValueError: tensors of the encoder, or the decoder that a language model needs, are among them.
    """
    may_be_new = tuple(head for head in HEADS if not (needs_decoder and head == "decoder."))
    lacking = sorted(key for key in info["missing_keys"] if not key.startswith(may_be_new))
    extra = sorted(key for key in info["unexpected_keys"] if not key.startswith(HEADS))
    if lacking:
        raise ValueError(f"the checkpoint {name} lacks {_named(lacking)}: it is incomplete or fits another config.json")
    if extra:
        raise ValueError(
            f"the checkpoint {name} has the unknown {_named(extra)}: its config.json describes another model"
        )
    _refuse_other_shapes(name, info["mismatched_keys"], may_be_new, may_replace_head)


def _refuse_other_shapes(
    name: Any, mismatched: Iterable[tuple[str, Any, Any]], may_be_new: tuple[str, ...], may_replace_head: bool
) -> None:
    for key, found, expected in sorted(mismatched, key=lambda entry: entry[0].startswith(may_be_new)):
        is_head = key.startswith(may_be_new)
        if is_head and may_replace_head:
            continue
        advice = (
            "pass ignore_mismatched_sizes=True for a new head" if is_head else "its config.json is of another model"
        )
        raise ValueError(
            f"the checkpoint {name} holds {key} as {tuple(found)}, but the configuration asks for {tuple(expected)}: "
            f"{advice}"
        )


def _named(keys: list[str]) -> str:
    shown = ", ".join(keys[:SHOWN_KEYS])
    return f"tensors {shown}" + (f" and {len(keys) - SHOWN_KEYS} more" if len(keys) > SHOWN_KEYS else "")
