"""The models beside NeoBERT in the paper's Table 4 and Figure 4, so that `--model` measures them again. Torch-free."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from neobert.console import output, table


@dataclass(frozen=True)
class PaperModel:
    """A model as Table 4 prints it, `model` of a `size`, and where the hub has it.

    The paper names no repositories: these are where the models' authors published them, and of BERT's the uncased ones,
    whose tokenizer the ladder has too. `revision` is None as long as nobody looked it up: whoever measures a model
    takes the newest commit, which stands in its records.
    """

    word: str
    model: str
    size: Literal["Base", "Large"]
    repository: str
    revision: str | None = None


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

LISTED = "list"
"""The word for `--model` that prints them."""


def folder_or_repository(word: str) -> str:
    """What `--model` means: a folder as it is, a model of the paper by its repository, else the word itself."""
    known = {model.word: model.repository for model in (*TABLE4_BASELINES, *FIGURE4_MODELS)}
    return word if Path(word).is_dir() else known.get(word, word)


def print_paper_models() -> None:
    """The words, and what they stand for."""
    cells = [(model.word, model.size, model.repository, model.revision) for model in TABLE4_BASELINES]
    title = "Models of Table 4 and, with --zero-shot, Figure 4; --model also takes folders and names of the hub"
    output().print(table(title, ("--model", "size", "repository", "revision"), cells))
