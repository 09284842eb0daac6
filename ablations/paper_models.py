"""The models beside NeoBERT in the paper's Table 4 and Figure 4, so that `--model` measures them again. Torch-free."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from neobert.console import output, table
from neobert.data.hub_items import MODELS
from neobert.data.manifest import read_manifest
from neobert.errors import did_you_mean


@dataclass(frozen=True)
class PaperModel:
    """A model as Table 4 prints it, `model` of a `size`, and where the hub has it.

    The paper names no repositories: these are where the models' authors published them, and of BERT's the uncased ones,
    whose tokenizer the ladder has too. Nor does it name commits: `prefetch.py --models` looks them up and writes them
    into the manifest of its folder.
    """

    word: str
    model: str
    size: Literal["Base", "Large"]
    repository: str


TABLE4_BASELINES: tuple[PaperModel, ...] = (
    PaperModel("BERT-base", "BERT", "Base", "google-bert/bert-base-uncased"),
    PaperModel("RoBERTa-base", "RoBERTa", "Base", "FacebookAI/roberta-base"),
    PaperModel("DeBERTaV3-base", "DeBERTaV3", "Base", "microsoft/deberta-v3-base"),
    PaperModel("NomicBERT-2048", "NomicBERT-2048", "Base", "nomic-ai/nomic-bert-2048"),
    PaperModel("ModernBERT-base", "ModernBERT", "Base", "answerdotai/ModernBERT-base"),
    PaperModel("BERT-large", "BERT", "Large", "google-bert/bert-large-uncased"),
    PaperModel("RoBERTa-large", "RoBERTa", "Large", "FacebookAI/roberta-large"),
    PaperModel("DeBERTaV3-large", "DeBERTaV3", "Large", "microsoft/deberta-v3-large"),
    PaperModel("ModernBERT-large", "ModernBERT", "Large", "answerdotai/ModernBERT-large"),
)
"""The nine baselines of Table 4."""

FIGURE4_MODELS: tuple[PaperModel, ...] = TABLE4_BASELINES
"""Those of Figure 4, which prints no numbers; of its models the text names BERT-base, BERT-large and RoBERTa-large."""

EVERY = "all"
LISTED = "list"
"""The word for `--model` that prints them."""


REPOSITORIES = {model.word: model.repository for model in (*TABLE4_BASELINES, *FIGURE4_MODELS)}


def folder_or_repository(word: str, data: str) -> str:
    """What `--model` means: a folder as it is; a model of the paper by where prefetch laid it below the folder `data`,
    else by its repository; else the word itself."""
    if Path(word).is_dir() or word not in REPOSITORIES:
        return word
    brought = Path(data) / MODELS / word
    return str(brought) if brought.is_dir() else REPOSITORIES[word]


def chosen_models(words: Sequence[str]) -> dict[str, str]:
    """The repositories of models by their words, `all` stands for every one.

    Raises:
        ValueError: a word is none of the list.
    """
    unknown = [word for word in words if word not in (*REPOSITORIES, EVERY)]
    if unknown:
        raise ValueError(f"there is no model {unknown[0]!r}: {did_you_mean(unknown[0], [*REPOSITORIES, EVERY])}")
    return {word: name for word, name in REPOSITORIES.items() if word in words or EVERY in words}


def print_paper_models(data: str) -> None:
    """The words, and what they stand for; the commits are those of the manifest of the folder `data`."""
    manifest = read_manifest(Path(data))
    cells = [
        (model.word, model.size, model.repository, manifest.revision_of(model.repository, "main"))
        for model in TABLE4_BASELINES
    ]
    title = "Models of Table 4 and, with --zero-shot, Figure 4; --model also takes folders and names of the hub"
    output().print(table(title, ("--model", "size", "repository", "revision"), cells))
