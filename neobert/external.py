"""Models from elsewhere: which bytes they are, and where they lie. Torch-free.

An external model is named by its bytes or, on the hub, by repository and commit; neither the folder that it lies in nor
what it is called decides anything. models/<id>/model.json below the folder of runs tells workers where it is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import PositiveInt

from neobert.errors import DamagedFile, MissingData
from neobert.files import json_bytes, read_json, replace_file, sha256_of
from neobert.identity import identity
from neobert.layout import Layout
from neobert.recipe import Value
from neobert.specifications import EXTERNAL_PREFIX

CONFIGURATION = "config.json"
WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "*.model")
TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
POOLING = "1_Pooling/config.json"
POOLING_FLAG = "pooling_mode_"
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


class ExternalModel(Value):
    """A model that others trained. `name` (its folder's, or the hub's) and `folder` are how it was found last.

    origin: the SHA-256 of each file that decides it, or its hub `repository` and `revision` (a commit).
    context: tokens, specials included, that it reads at most; None where nothing bounds them.
    """

    name: str
    folder: str
    origin: dict[str, str]
    tokenizer_origin: str
    model_type: str
    parameters: PositiveInt
    context: PositiveInt | None

    @property
    def id(self) -> str:
        """The model's name in studies and records."""
        return external_id(self.origin)

    def require_unchanged(self) -> Path:
        """The folder, checked to hold what the id names.

        Raises:
            MissingData: it is not there any more.
            DamagedFile: a file is another one than when the model was named.
        """
        folder = Path(self.folder)
        if not (folder / CONFIGURATION).is_file():
            raise MissingData(f"{self.name} is no longer in {folder}: give its new place to --model")
        if "revision" not in self.origin and self.origin != file_origin(folder):
            raise DamagedFile(
                f"the files in {folder} have changed since {self.id} was named: give --model {folder} again"
            )
        return folder


@dataclass(frozen=True)
class Located:
    """A folder with a model's files, and what identifies them; models with equal tokenizers share encoded tasks."""

    name: str
    folder: Path
    origin: Mapping[str, str]
    tokenizer_origin: str


def external_id(origin: Mapping[str, str]) -> str:
    """The name of an external model."""
    return f"{EXTERNAL_PREFIX}{identity({'kind': 'external_model', 'origin': origin})}"


def file_origin(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file of a folder that decides what the model computes: {file name: digest}."""
    return _digests(folder, (CONFIGURATION, *WEIGHTS, *VOCABULARIES, *TOKENIZER_SETTINGS))


def _digests(folder: Path, patterns: tuple[str, ...]) -> dict[str, str]:
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return {path.name: sha256_of(path) for path in sorted(files)}


def locate(name_or_folder: str) -> Located:
    """The files of a folder, or of a model on the Hugging Face hub at its newest commit (offline: the newest here).

    Raises:
        MissingData: there is no such folder or model, or config.json, weights or tokenizer are not in it.
        ValueError: its weights are pickles.
    """
    folder = Path(name_or_folder)
    if folder.is_dir():
        folder = folder.resolve()
        require_files(folder, name_or_folder)
        return Located(folder.name, folder, file_origin(folder), _tokenizer_origin(folder))
    if not HUB_NAME.fullmatch(name_or_folder) or folder.exists():
        raise MissingData(f"there is no folder {name_or_folder}: --model takes a folder or a model of the hub")
    folder = _hub_snapshot(name_or_folder)
    require_files(folder, name_or_folder)
    origin = {"repository": name_or_folder, "revision": folder.name}
    return Located(name_or_folder, folder, origin, _tokenizer_origin(folder))


def _tokenizer_origin(folder: Path) -> str:
    return f"tokenizer:{identity(_digests(folder, (*VOCABULARIES, *TOKENIZER_SETTINGS)))}"


def _hub_snapshot(repository: str) -> Path:
    """The folder of a repository's files, which bears the commit's name."""
    from huggingface_hub import snapshot_download

    wanted = [CONFIGURATION, *WEIGHTS, *VOCABULARIES, *TOKENIZER_SETTINGS]
    try:
        return Path(snapshot_download(repository, allow_patterns=wanted))
    except Exception as error:  # no network, no such repository, no permission: each has a class of its own
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise MissingData(
            f"{repository} is no folder, and the hub gave no such model ({cause}): check the name, or fetch it where "
            f"there is a network with `hf download {repository}`"
        ) from error


def require_files(folder: Path, name: str) -> None:
    """Check that a folder holds a configuration, safetensors and a tokenizer.

    Raises:
        MissingData, ValueError: as `locate`.
    """
    if not (folder / CONFIGURATION).is_file():
        raise MissingData(f"{name} has no {CONFIGURATION}: --model takes a folder that AutoModel.from_pretrained reads")
    if not _has_any(folder, WEIGHTS[:2]):
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        if pickles:
            raise ValueError(
                f"{name} has its weights in {pickles[0]}, a pickle, which runs code when read, and is refused: "
                f"save the model as model.safetensors"
            )
        raise MissingData(f"{name} has no model.safetensors (weights in other formats are not read)")
    if not _has_any(folder, VOCABULARIES):
        raise MissingData(f"{name} has no tokenizer ({', '.join(VOCABULARIES[:3])} …): save it beside the model")


def _has_any(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(path.is_file() for pattern in patterns for path in folder.glob(pattern))


def adopt(layout: Layout, name_or_folder: str) -> ExternalModel:
    """The model behind `--model`. One that is not known yet is loaded once and looked at; writes nothing.

    Raises:
        MissingData, ValueError: it is not there, or nothing that this harness fine-tunes.
    """
    located = locate(name_or_folder)
    place = {"name": located.name, "folder": str(located.folder)}
    model_id = external_id(located.origin)
    if layout.model(model_id).exists():
        return read_model_file(layout, model_id).model_copy(update=place)
    from neobert.hub.external import examine

    facts = examine(located.folder, name_or_folder)
    return ExternalModel(
        **place,
        origin=dict(located.origin),
        tokenizer_origin=located.tokenizer_origin,
        model_type=facts.model_type,
        parameters=facts.parameters,
        context=facts.context,
    )


def declared_pooling(folder: Path) -> str | None:
    """How a folder of sentence-transformers makes one vector of a text; None where it does not say."""
    path = folder / POOLING
    if not path.is_file():
        return None
    content = read_json(path)
    newer = content.get("pooling_mode")
    flags = [name for name, is_used in content.items() if name.startswith(POOLING_FLAG) and is_used is True]
    older = " and ".join(name.removeprefix(POOLING_FLAG).removesuffix("_tokens") for name in flags)
    modes = newer if isinstance(newer, str) else older
    return modes or None


def write_model_file(layout: Layout, model: ExternalModel) -> None:
    """Tell workers where a model lies; a moved one is found in its new folder from now on."""
    path = layout.model(model.id)
    content = json_bytes(model.model_dump(mode="json"))
    if not path.exists() or path.read_bytes() != content:
        replace_file(path, content)


def read_model_file(layout: Layout, model_id: str) -> ExternalModel:
    """What `write_model_file` wrote.

    Raises:
        MissingData: there is none.
        DamagedFile: it is torn or of another version.
    """
    path = layout.model(model_id)
    if not path.exists():
        raise MissingData(f"{path} is not there: give --model the folder of {model_id}")
    try:
        return ExternalModel.model_validate(read_json(path))
    except ValueError as error:
        raise DamagedFile(f"{path} describes no external model of this version: remove it ({error})") from error
