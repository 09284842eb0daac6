"""What a checkpoint may lack or have too much: a head, and nothing of the encoder."""

from collections.abc import Iterable
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


def refuse_incomplete(name: Any, missing: Iterable[str], unexpected: Iterable[str], needs_decoder: bool) -> None:
    """Check which tensors a checkpoint lacked (`missing`) and which nobody wanted (`unexpected`).

    A classification head may be new, and heads of other tasks may stay behind.

    Raises:
        ValueError: tensors of the encoder, or the decoder that a language model needs, are among them.
    """
    may_be_new = tuple(head for head in HEADS if not (needs_decoder and head == "decoder."))
    lacking = sorted(key for key in missing if not key.startswith(may_be_new))
    extra = sorted(key for key in unexpected if not key.startswith(HEADS))
    if lacking:
        raise ValueError(f"the checkpoint {name} lacks {_named(lacking)}: it is incomplete or fits another config.json")
    if extra:
        raise ValueError(
            f"the checkpoint {name} has the unknown {_named(extra)}: its config.json describes another model"
        )


def _named(keys: list[str]) -> str:
    shown = ", ".join(keys[:SHOWN_KEYS])
    return f"tensors {shown}" + (f" and {len(keys) - SHOWN_KEYS} more" if len(keys) > SHOWN_KEYS else "")
