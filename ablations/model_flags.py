"""Flags that say what a model from elsewhere may bring. Imports nothing heavy, so that --help is quick."""

import argparse

from neobert.model_files import Trust

MODEL_HELP = "an encoder from elsewhere: a folder, a hub model, a word of list, or list"


def add_trust_flags(parser: argparse.ArgumentParser) -> None:
    """What `--model` may read beyond safetensors and classes of transformers."""
    add = parser.add_argument
    pickle = "with --model: read pickled weights (pytorch_model.bin), of which tensors alone are taken and nothing runs"
    code = "with --model: run the Python files of the folder, or of NAME@COMMIT, with all your rights; read them first"
    add("--allow-pickle", action="store_true", help=pickle)
    add("--trust-remote-code", action="store_true", help=code)


def trust_of(options: argparse.Namespace) -> Trust:
    """What the flags allow.

    Raises:
        ValueError: one of them is given without a model.
    """
    for flag in ("allow_pickle", "trust_remote_code"):
        if getattr(options, flag) and options.model is None:
            raise ValueError(f"--{flag.replace('_', '-')} goes with --model: name the model, or leave it out")
    return Trust(pickle=options.allow_pickle, code=options.trust_remote_code)
