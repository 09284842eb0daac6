"""The files of an external model's folder that decide what it computes. Torch-free.

Loading reads a view of the folder that holds these files and no other (`neobert.hub.external`), so that a model's id
covers every file that is read.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from neobert.errors import MissingData

CONFIGURATION = "config.json"
WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "*.model")
TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
CODE = "*.py"

MODULES = "modules.json"
SENTENCE_SETTINGS = ("config_sentence_transformers.json", "sentence_*_config.json")
MODULE_SETTINGS = "[0-9]*_*/config.json"

Content = TypeVar("Content")

SAFETENSORS = ".safetensors"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True)
class Trust:
    """What a user lets a model's folder bring beyond safetensors and classes of transformers.

    pickle: weights in pytorch_model.bin, read as torch.load does with weights_only, which refuses all but tensors.
    code: modules of its own, which run with all rights of the process.
    """

    pickle: bool = False
    code: bool = False


NO_TRUST = Trust()


def tokenizer_files(folder: Path) -> list[str]:
    """The names of the files of a folder's tokenizer."""
    return _present(folder, (*VOCABULARIES, *TOKENIZER_SETTINGS))


def sentence_files(folder: Path) -> list[str]:
    """The names of the files that say how sentence-transformers makes vectors; none where there is no modules.json."""
    if not (folder / MODULES).is_file():
        return []
    return _present(folder, (MODULES, *SENTENCE_SETTINGS, MODULE_SETTINGS))


def code_files(folder: Path) -> list[str]:
    """The names of the Python files of a folder whose config.json or tokenizer_config.json names classes of its own."""
    settings = (folder / CONFIGURATION, folder / "tokenizer_config.json")
    if not any(path.is_file() and read_settings(path).get("auto_map") for path in settings):
        return []
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob(CODE) if path.is_file())


def model_files(folder: Path, name: str, trust: Trust) -> list[str]:
    """The names, relative to the folder, of the files that are read; `name` is for errors.

    Raises:
        MissingData: config.json, weights or tokenizer are not there, or not all that an index names.
        ValueError: weights are pickles that `trust` does not allow, or outside the folder, or a JSON file is torn.
    """
    if not (folder / CONFIGURATION).is_file():
        raise MissingData(f"{name} has no {CONFIGURATION}: --model takes a folder that AutoModel.from_pretrained reads")
    if read_settings(folder / CONFIGURATION).get("transformers_weights"):
        raise ValueError(
            f"{CONFIGURATION} of {name} names its weights itself (transformers_weights): call them model.safetensors, "
            "and leave that key out"
        )
    weights = _weight_files(folder, name, trust)
    tokenizer = tokenizer_files(folder)
    if not set(tokenizer) - set(TOKENIZER_SETTINGS):
        raise MissingData(f"{name} has no tokenizer ({', '.join(VOCABULARIES[:3])} …): save it beside the model")
    code = code_files(folder) if trust.code else []
    return sorted({CONFIGURATION, *weights, *tokenizer, *sentence_files(folder), *code})


def _weight_files(folder: Path, name: str, trust: Trust) -> list[str]:
    """Safetensors, else pickles; behind an index the files that it names."""
    for patterns in (WEIGHTS, PICKLES):
        found = _present(folder, patterns)
        indices = [file for file in found if file.endswith(".json") and patterns[0] not in found]
        named = [file for index in indices for file in _shards(folder, index, name)]
        shards = [file for file in [*found, *named] if not file.endswith(".json")]
        if not shards:
            continue
        pickles = [file for file in shards if not file.endswith(SAFETENSORS)]
        if pickles and not trust.pickle:
            raise ValueError(
                f"{name} has its weights in {pickles[0]}, a pickle, which runs code when read, and is refused: save "
                "the model as model.safetensors, or give --allow-pickle, which reads tensors from it and nothing else"
            )
        return [*found, *named]
    others = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    told = f"weights in other formats are not read, nor is {others[0]}" if others else "other formats are not read"
    raise MissingData(f"{name} has no model.safetensors ({told})")


def _shards(folder: Path, index: str, name: str) -> Iterator[str]:
    """The files that an index names.

    Raises:
        ValueError: it is none, or one would lie outside the folder.
        MissingData: one is not there.
    """
    shards = read_settings(folder / index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(file, str) for file in shards.values()):
        raise ValueError(f"{index} of {name} is no index of weights: fetch it again")
    for file in sorted(set(shards.values())):
        if not is_inside(file):
            raise ValueError(f"{index} of {name} names {file}, which is outside the folder: put the weights beside it")
        if not (folder / file).is_file():
            raise MissingData(f"{index} of {name} names {file}, which is not there: fetch it")
        yield file


def is_inside(file: str) -> bool:
    """Whether a relative name stays in its folder."""
    path = PurePosixPath(file)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in file


def _present(folder: Path, patterns: Iterable[str]) -> list[str]:
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return sorted(path.relative_to(folder).as_posix() for path in files)


def read_settings(path: Path) -> dict[str, Any]:
    """The JSON object of a file that others wrote.

    Raises:
        ValueError: it holds none.
    """
    return _read(path, dict)


def read_settings_list(path: Path) -> list[Any]:
    """The JSON array of a file that others wrote.

    Raises:
        ValueError: it holds none.
    """
    return _read(path, list)


def _read(path: Path, kind: type[Content]) -> Content:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable as JSON ({error}): fetch it again") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} holds no JSON {'object' if kind is dict else 'array'}: fetch it again")
    return content
