"""The models beside NeoBERT in the paper's Tables 3 and 4 and Figure 4, so that `--model` measures them again.
Torch-free."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from neobert.console import output, table
from neobert.data.hub_download import MODELS, ModelParts
from neobert.data.manifest import Repository, read_manifest
from neobert.errors import did_you_mean

Size = Literal["Base", "Large"]

BERT = "google-bert/bert-base-uncased"
GTE_CODE = Repository("Alibaba-NLP/new-impl", "*.py", branch="40ced75c3017eb27626c9d4ea981bde21a2662f4", kind="model")
"""The classes that GTE's config.json names, at a commit that does not move."""

PICKLED = "--allow-pickle"
BROUGHT = "prefetch"
OWN_CODE = "prefetch, --trust-remote-code"
NOTES = (
    "prefetch: ablations/prefetch.py --models NAME first, which brings what the repository lacks (tokenizer, code)",
    "--allow-pickle: published as a pickle, of which tensors alone are read; its tokenizer needs sentencepiece",
    "--trust-remote-code: its classes are Python files, which run with all your rights",
)


@dataclass(frozen=True)
class PaperModel:
    """A model as the paper's tables print it, `model` of a `size`, and where the hub has it.

    The paper names no repositories: these are where the models' authors published them, and of BERT's the uncased ones,
    whose tokenizer the ladder has too. Nor does it name commits: `prefetch.py --models` looks them up and writes them
    into the manifest of its folder. `needs` says what `--model` takes beside the word; `beside` is what the repository
    itself lacks.
    """

    word: str
    model: str
    size: Size
    repository: str
    needs: str = ""
    tokenizer: str | None = None
    beside: tuple[Repository, ...] = ()

    @property
    def parts(self) -> ModelParts:
        """What prefetch brings."""
        return ModelParts(self.repository, self.tokenizer or self.repository, self.beside)


def _deberta(word: str, size: Size, repository: str) -> PaperModel:
    pieces = Repository(repository, "spm.model", kind="model")
    return PaperModel(word, "DeBERTaV3", size, repository, needs=PICKLED, beside=(pieces,))


def _gte(word: str, size: Size, repository: str) -> PaperModel:
    return PaperModel(word, "GTE-en-8192", size, repository, needs=OWN_CODE, beside=(GTE_CODE,))


_BERT_BASE = PaperModel("BERT-base", "BERT", "Base", BERT)
_ROBERTA_BASE = PaperModel("RoBERTa-base", "RoBERTa", "Base", "FacebookAI/roberta-base")
_NOMICBERT = PaperModel(
    "NomicBERT-2048", "NomicBERT-2048", "Base", "nomic-ai/nomic-bert-2048", needs=BROUGHT, tokenizer=BERT
)
_MODERNBERT_BASE = PaperModel("ModernBERT-base", "ModernBERT", "Base", "answerdotai/ModernBERT-base")
_BERT_LARGE = PaperModel("BERT-large", "BERT", "Large", "google-bert/bert-large-uncased")
_ROBERTA_LARGE = PaperModel("RoBERTa-large", "RoBERTa", "Large", "FacebookAI/roberta-large")
_DEBERTA_BASE = _deberta("DeBERTaV3-base", "Base", "microsoft/deberta-v3-base")
_DEBERTA_LARGE = _deberta("DeBERTaV3-large", "Large", "microsoft/deberta-v3-large")
_GTE_BASE = _gte("GTE-en-8192-base", "Base", "Alibaba-NLP/gte-en-mlm-base")
_GTE_LARGE = _gte("GTE-en-8192-large", "Large", "Alibaba-NLP/gte-en-mlm-large")
_MODERNBERT_LARGE = PaperModel("ModernBERT-large", "ModernBERT", "Large", "answerdotai/ModernBERT-large")

TABLE3_BASELINES: tuple[PaperModel, ...] = (
    *(_BERT_BASE, _ROBERTA_BASE, _GTE_BASE, _NOMICBERT, _MODERNBERT_BASE),
    *(_BERT_LARGE, _ROBERTA_LARGE, _DEBERTA_LARGE, _GTE_LARGE, _MODERNBERT_LARGE),
)
"""The ten baselines of Table 3."""

TABLE4_BASELINES: tuple[PaperModel, ...] = (
    *(_BERT_BASE, _ROBERTA_BASE, _DEBERTA_BASE, _NOMICBERT, _MODERNBERT_BASE),
    *(_BERT_LARGE, _ROBERTA_LARGE, _DEBERTA_LARGE, _MODERNBERT_LARGE),
)
"""The nine of Table 4, and of Figure 4, which prints no numbers; of its models the text names BERT-base, BERT-large and
RoBERTa-large."""

PAPER_MODELS: Mapping[str, PaperModel] = {model.word: model for model in (*TABLE4_BASELINES, *TABLE3_BASELINES)}

EVERY = "all"
LISTED = "list"
"""The word for `--model` that prints them."""


def folder_or_repository(word: str, data: str) -> str:
    """What `--model` means: a folder as it is; a model of the paper by where prefetch laid it below the folder `data`,
    else by its repository; else the word itself."""
    if Path(word).is_dir() or word not in PAPER_MODELS:
        return word
    brought = Path(data) / MODELS / word
    return str(brought) if brought.is_dir() else PAPER_MODELS[word].repository


def chosen_models(words: Sequence[str]) -> dict[str, ModelParts]:
    """What to bring of models by their words, `all` stands for every one.

    Raises:
        ValueError: a word is none of the list.
    """
    unknown = [word for word in words if word not in (*PAPER_MODELS, EVERY)]
    if unknown:
        raise ValueError(f"there is no model {unknown[0]!r}: {did_you_mean(unknown[0], [*PAPER_MODELS, EVERY])}")
    return {word: model.parts for word, model in PAPER_MODELS.items() if word in words or EVERY in words}


def print_paper_models(data: str) -> None:
    """The words, what they stand for and what they need; the commits are those of the manifest of the folder `data`."""
    manifest = read_manifest(Path(data))
    cells = [
        (
            word,
            _tables(model),
            model.repository,
            manifest.revision_of(model.repository, "main"),
            model.needs or "nothing",
        )
        for word, model in PAPER_MODELS.items()
    ]
    title = "Models of Tables 3 and 4 and, with --zero-shot, Figure 4; --model also takes folders and names of the hub"
    output().print(table(title, ("--model", "tables", "repository", "revision", "needs"), cells))
    output().print("\n".join(NOTES), markup=False)


def _tables(model: PaperModel) -> str:
    tables = {"3": TABLE3_BASELINES, "4": TABLE4_BASELINES}
    return ", ".join(number for number, models in tables.items() if model in models)
