"""The other models in the paper's tables: where they are published, and what `--model` needs to run them."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from neobert.console import output, table
from neobert.data.catalog import Repository
from neobert.data.download import MODELS
from neobert.data.manifest import read_manifest
from neobert.errors import did_you_mean

FILE = Path(__file__).with_suffix(".csv")
ALL_MODELS = "all"
LISTED = "list"
"""The value of `--model` that prints the models of the paper."""

NOTES = (
    "prefetch: run ablations/prefetch.py --models NAME first: it downloads what the repository lacks (tokenizer, code)",
    "safetensors: published as a pickle: save it as model.safetensors first; its tokenizer needs sentencepiece",
    "--trust-remote-code: its classes are Python files, which run with all your permissions",
)


@dataclass(frozen=True)
class PaperModel:
    """Another model in the paper's Tables 3 and 4 (and, zero-shot, in Figure 4), which `--model` can run.

    `model` and `size` are as printed in the paper's `tables`. The paper does not name repositories: these are the ones
    in which the authors published the models; for BERT the uncased ones, whose tokenizer the ladder also uses. It does
    not name commits either: `prefetch.py --models` looks them up and writes them into the manifest of its folder.
    `needs` is what `--model` needs besides the name. `parts` are the files that prefetch downloads: safetensors, or
    the pickle if there are none; the tokenizer; code only if it is named.
    """

    name: str
    model: str
    size: str
    tables: tuple[str, ...]
    repository: str
    needs: str
    parts: tuple[Repository, ...]


@cache
def paper_models() -> dict[str, PaperModel]:
    """Return the rows of paper_models.csv by name, in the order of the paper's tables."""
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
        models[row["name"]] = PaperModel(
            name=row["name"],
            model=row["model"],
            size=row["size"],
            tables=tuple(row["tables"].split()),
            repository=row["repository"],
            needs=row["needs"],
            parts=tuple(parts),
        )
    return models


def folder_or_repository(name: str, data: str) -> str:
    """Resolve the value of `--model`.

    Folders and unknown names are returned unchanged. A model of the paper becomes its prefetched folder below `data`,
    if there is one, else its repository.
    """
    if Path(name).is_dir() or name not in paper_models():
        return name
    downloaded = Path(data) / MODELS / name
    return str(downloaded) if downloaded.is_dir() else paper_models()[name].repository


def chosen_models(names: Sequence[str]) -> dict[str, tuple[Repository, ...]]:
    """Return the parts to download for the named models; `all` means every model. Raises ValueError for other names."""
    known = [*paper_models(), ALL_MODELS]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no model {name!r}: {did_you_mean(name, known)}")
    return {name: model.parts for name, model in paper_models().items() if name in names or ALL_MODELS in names}


def print_paper_models(data: str, *, as_json: bool) -> None:
    """Print the models of the paper and what each needs, with commits from the manifest of the folder `data`."""
    manifest = read_manifest(Path(data))
    cells = [
        (
            model.name,
            ", ".join(model.tables),
            model.repository,
            manifest.revision_of(model.repository, "main"),
            model.needs or "nothing",
        )
        for model in paper_models().values()
    ]
    columns = ("--model", "tables", "repository", "revision", "needs")
    if as_json:
        print(json.dumps([dict(zip(("model", *columns[1:]), row, strict=True)) for row in cells], indent=1))
        return
    title = "Models of Tables 3 and 4 and, with --zero-shot, Figure 4; --model also takes folders and names of the hub"
    output().print(table(title, columns, cells))
    output().print("\n".join(NOTES), markup=False)
