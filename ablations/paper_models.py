"""The other models in the paper's Tables 3 and 4: where they are published."""

import csv
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from neobert.data.catalog import Repository
from neobert.data.download import MODELS
from neobert.errors import did_you_mean

FILE = Path(__file__).with_suffix(".csv")
ALL_MODELS = "all"


@cache
def paper_models() -> dict[str, tuple[Repository, ...]]:
    """Return the files of each model of paper_models.csv that prefetch downloads, by name: safetensors, or the pickle
    if there are none; the tokenizer; code only if it is named.

    The paper does not name repositories: these are the ones in which the authors published the models; for BERT the
    uncased ones, whose tokenizer the ladder also uses. It does not name commits either: `prefetch.py --models` looks
    them up and writes them into the manifest of its folder.
    """
    with FILE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    models = {}
    for row in rows:
        model = partial(Repository, row["repository"], kind="model")
        tokenizer = partial(Repository, row["tokenizer"] or row["repository"], kind="model")
        parts = [
            model("config.json"),
            model("model*.safetensors", otherwise="pytorch_model.bin"),
            tokenizer("tokenizer*"),
            model("model.safetensors.index.json", is_optional=True),
            tokenizer("special_tokens_map.json", is_optional=True),
            tokenizer("added_tokens.json", is_optional=True),
        ]
        if row["beside"]:
            branch = row["beside_commit"] or "main"
            parts.append(Repository(row["beside"], row["beside_files"], branch=branch, kind="model"))
        models[row["name"]] = tuple(parts)
    return models


def folder_or_repository(name: str, data: str) -> str:
    """Resolve the value of `--model`.

    Folders and unknown names are returned unchanged. A model of the paper becomes its prefetched folder below `data`,
    if there is one, else its repository.
    """
    if Path(name).is_dir() or name not in paper_models():
        return name
    downloaded = Path(data) / MODELS / name
    return str(downloaded) if downloaded.is_dir() else paper_models()[name][0].name


def chosen_models(names: Sequence[str]) -> dict[str, tuple[Repository, ...]]:
    """Return the parts to download for the named models; `all` means every model. Raises ValueError for other names."""
    known = [*paper_models(), ALL_MODELS]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no model {name!r}: {did_you_mean(name, known)}")
    return {name: parts for name, parts in paper_models().items() if name in names or ALL_MODELS in names}
