"""External models: which of their files are read, their ids, and where they are found. Without torch.

A model's id is a hash of its files or, on the hub, of repository and commit; name and folder are not part of it.
models/<id>/model.json below the folder of runs records the model's folder for workers.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import PositiveInt, model_validator

from neobert.errors import DamagedFile, MissingData
from neobert.files import is_local, sha256_of
from neobert.identity import identity
from neobert.recipe import Value

EXTERNAL_PREFIX = "model-"
"""Prefix of the ids of external models. Run ids are hexadecimal digits."""

CONFIGURATION = "config.json"
INDEX = "model.safetensors.index.json"
WEIGHTS = ("model.safetensors", "model-*.safetensors", INDEX)
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "*.model")
TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
CODE = "*.py"

MODULES = "modules.json"
SENTENCE_SETTINGS = ("config_sentence_transformers.json", "sentence_*_config.json")
MODULE_SETTINGS = "[0-9]*_*/config.json"

Content = TypeVar("Content")


def tokenizer_files(folder: Path) -> list[str]:
    """Return the names of a folder's tokenizer files."""
    return _present(folder, (*VOCABULARIES, *TOKENIZER_SETTINGS))


def sentence_files(folder: Path) -> list[str]:
    """Return the names of the files that configure sentence-transformers; empty without modules.json."""
    if not (folder / MODULES).is_file():
        return []
    entries = read_json_as(list, folder / MODULES)
    paths = [str(entry.get("path") or ".") for entry in entries if isinstance(entry, dict)]
    named = [f"{path}/{CONFIGURATION}" for path in paths if path != "." and is_local(path)]
    return _present(folder, (MODULES, *SENTENCE_SETTINGS, MODULE_SETTINGS, *named))


def code_files(folder: Path) -> list[str]:
    """Return the Python files of a folder; empty unless config.json or tokenizer_config.json has an auto_map."""
    settings = (folder / CONFIGURATION, folder / "tokenizer_config.json")
    has_classes = any(path.is_file() and read_settings(path).get("auto_map") for path in settings)
    return _present(folder, (f"**/{CODE}",)) if has_classes else []


def model_files(folder: Path, name: str, trusts_code: bool = False) -> list[str]:
    """Return the names, relative to the folder, of the files that are read. `name` is used in errors.

    Raises:
        MissingData: config.json, weights, a tokenizer, or a file that the index names is missing.
        ValueError: weights are pickles, or a JSON file is torn.
    """
    if not (folder / CONFIGURATION).is_file():
        raise MissingData(f"{name} has no {CONFIGURATION}: --model takes a folder that AutoModel.from_pretrained reads")
    if read_settings(folder / CONFIGURATION).get("transformers_weights"):
        raise ValueError(
            f"{CONFIGURATION} of {name} names its weights itself (transformers_weights): call them model.safetensors, "
            "and leave that key out"
        )
    tokenizer = tokenizer_files(folder)
    if not set(tokenizer) - set(TOKENIZER_SETTINGS):
        raise MissingData(f"{name} has no tokenizer ({', '.join(VOCABULARIES[:3])} …): save it beside the model")
    code = code_files(folder) if trusts_code else []
    return sorted({CONFIGURATION, *_weight_files(folder, name), *tokenizer, *sentence_files(folder), *code})


def _weight_files(folder: Path, name: str) -> list[str]:
    """Return the safetensors files, with an index and the files that it names."""
    found = _present(folder, WEIGHTS)
    if not found:
        pickles = _present(folder, ("*.bin",))
        if pickles:
            raise ValueError(
                f"{name} has its weights in {pickles[0]}, a pickle, which runs code when read, and is refused: save "
                "the model as model.safetensors"
            )
        raise MissingData(f"{name} has no model.safetensors, and weights in other formats are not read")
    if "model.safetensors" in found or INDEX not in found:
        return found
    shards = read_settings(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict):
        raise ValueError(f"{INDEX} of {name} has no weight_map: fetch it again")
    for shard in sorted(set(map(str, shards.values()))):
        if not (is_local(shard) and shard.endswith(".safetensors") and (folder / shard).is_file()):
            raise MissingData(f"{INDEX} of {name} names {shard}, which is no safetensors file in the folder")
        found.append(shard)
    return found


def _present(folder: Path, patterns: Iterable[str]) -> list[str]:
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return sorted(path.relative_to(folder).as_posix() for path in files)


def read_settings(path: Path) -> dict[str, Any]:
    """Read the JSON object of a foreign file. Raises ValueError if it contains none."""
    return read_json_as(dict, path)


def read_json_as(kind: type[Content], path: Path) -> Content:
    """Read the JSON object or array of a foreign file. Raises ValueError if it contains none."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable as JSON ({error}): fetch it again") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} has no JSON {'object' if kind is dict else 'array'}: fetch it again")
    return content


HUB_NAME = re.compile(r"(?P<repository>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?")
COMMIT = re.compile(r"[0-9a-f]{40}")


class ExternalModel(Value):
    """Model trained outside this harness. `name` (of the folder or on the hub) and `folder` are where it was found.

    origin: the SHA-256 of each file that determines it, or its hub `repository` and `revision` (a commit).
    context: maximum number of tokens that it reads, including special tokens; None if unlimited.
    trusts_code: whether its own modules run, with all rights of the process, as --trust-remote-code allowed.
    """

    name: str
    folder: str
    origin: dict[str, str]
    tokenizer_origin: str
    model_type: str
    parameters: PositiveInt
    context: PositiveInt | None
    trusts_code: bool = False

    @model_validator(mode="before")
    @classmethod
    def _as_older_versions_wrote_it(cls, content: Any) -> Any:
        if not isinstance(content, dict) or "trust" not in content:
            return content
        rest = {key: value for key, value in content.items() if key != "trust"}
        return {**rest, "trusts_code": content["trust"]["code"]}

    @property
    def id(self) -> str:
        """Id of the model in studies and records."""
        return external_id(self.origin)

    def require_unchanged(self) -> Path:
        """Return the folder after checking that its files match the id.

        Raises:
            MissingData: the folder no longer exists.
            DamagedFile: a file has changed.
        """
        folder = Path(self.folder)
        if not (folder / CONFIGURATION).is_file():
            raise MissingData(f"{self.name} is no longer in {folder}: give its new folder to --model")
        revision = self.origin.get("revision")
        repository = self.origin["repository"] if revision is not None else None
        if self.origin != origin_of(folder, self.name, self.trusts_code, repository, revision):
            raise DamagedFile(f"the files in {folder} are not those that {self.id} names: give --model {folder} again")
        return folder


@dataclass(frozen=True)
class Located:
    """Folder with a model's files, and their origins. Models with equal `tokenizer_origin` share encoded tasks."""

    name: str
    folder: Path
    origin: Mapping[str, str]
    tokenizer_origin: str


def external_id(origin: Mapping[str, str]) -> str:
    return f"{EXTERNAL_PREFIX}{identity({'kind': 'external_model', 'origin': origin})}"


def origin_of(
    folder: Path, name: str, trusts_code: bool = False, repository: str | None = None, revision: str | None = None
) -> dict[str, str]:
    """Return what identifies a model's computation: {file name: SHA-256} of every file that is read.

    For a model of the hub, whose commit identifies its files: `repository`, `revision`, and the digests of files that
    are not always read, namely modules of sentence-transformers, which once had no effect, and trusted code. Raises the
    same errors as `model_files`.
    """
    files = model_files(folder, name, trusts_code)
    if repository is None or revision is None:
        return _digests(folder, files)
    read_by_some = {*sentence_files(folder), *(code_files(folder) if trusts_code else ())}
    return {"repository": repository, "revision": revision, **_digests(folder, sorted(read_by_some))}


def _digests(folder: Path, files: Iterable[str]) -> dict[str, str]:
    return {file: sha256_of(folder / file) for file in files}


def locate(name_or_folder: str, trusts_code: bool = False) -> Located:
    """Locate the files of a folder, or of a model on the Hugging Face hub.

    A hub model is NAME@REVISION, or NAME for its newest commit (offline: the newest in the local cache).

    Raises:
        MissingData: there is no such folder or model, or it lacks config.json, weights or a tokenizer.
        ValueError: its weights are pickles, or its code is trusted without naming a commit.
    """
    folder = Path(name_or_folder)
    if folder.is_dir():
        folder = folder.resolve()
        origin = origin_of(folder, name_or_folder, trusts_code)
        return Located(folder.name, folder, origin, _tokenizer_origin(folder))
    found = HUB_NAME.fullmatch(name_or_folder)
    if found is None or folder.exists():
        raise MissingData(f"there is no folder {name_or_folder}: --model takes a folder or a model of the hub")
    repository, revision = found["repository"], found["revision"]
    if trusts_code and not (revision and COMMIT.fullmatch(revision)):
        raise ValueError(
            f"--trust-remote-code runs what {name_or_folder} holds, which may be other code tomorrow: name the commit "
            f"that you have read, --model {repository}@<40 hexadecimal digits>"
        )
    folder = _hub_snapshot(repository, revision, trusts_code)
    origin = origin_of(folder, name_or_folder, trusts_code, repository, folder.name)
    return Located(repository, folder, origin, _tokenizer_origin(folder))


def _tokenizer_origin(folder: Path) -> str:
    return f"tokenizer:{identity(_digests(folder, tokenizer_files(folder)))}"


def _hub_snapshot(repository: str, revision: str | None, trusts_code: bool) -> Path:
    """Download a repository's files and return their folder, whose name is the commit."""
    from huggingface_hub import snapshot_download

    wanted = [CONFIGURATION, *WEIGHTS, *VOCABULARIES, *TOKENIZER_SETTINGS]
    wanted += [MODULES, *SENTENCE_SETTINGS, f"*/{CONFIGURATION}"]  # modules may be in any folder
    wanted += [CODE] if trusts_code else []
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=wanted))
    except Exception as error:  # no network, no such repository, no permission: each has its own class
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise MissingData(
            f"{repository} is no folder, and the hub gave no such model ({cause}): check the name, or fetch it where "
            f"there is a network with `hf download {repository}`"
        ) from error
