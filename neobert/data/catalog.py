"""Catalogue of the corpora, tokenizers and GLUE tasks that recipes name, with their repositories on the hub.

A corpus that prefetch downloads is one entry of `CORPORA`: from the repositories of the entry to corpora/<name>/ of a
folder. Ladders add corpora in folders of their own (`neobert.data.corpora`). Prefetch looks up the commit of each
repository and writes it to the folder's manifest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neobert.errors import did_you_mean


@dataclass(frozen=True)
class Repository:
    """Files of a dataset or model repository of the Hugging Face hub.

    `files` is a pattern of their names, `otherwise` a fallback pattern. If no file matches, that is an error unless
    `is_optional`. `branch` may be a commit; `column` is the text column of a corpus.
    """

    name: str
    files: str
    column: str | None = None
    branch: str = "main"
    kind: str = "dataset"
    otherwise: str | None = None
    is_optional: bool = False


WIKIPEDIA = Repository("legacy-datasets/wikipedia", "data/20220301.en/train-*.parquet", "text")
"""Dump used by the released scripts/pretraining/preprocess.py, 6.5 M articles."""
BOOKCORPUS = Repository("bookcorpus/bookcorpus", "plain_text/train/*.parquet", "text", branch="refs/convert/parquet")
"""Second corpus of the released preprocess.py, 74 M rows of one sentence each; converted to parquet by the hub."""
REFINEDWEB = Repository("tiiuae/falcon-refinedweb", "data/train-*.parquet", "content")
"""Paper §3.2, released conf/dataset/refinedweb.yaml: 968 M documents."""
GLUE = Repository("nyu-mll/glue", "{task}/{split}-*.parquet")

CHARACTERS_PER_TOKEN = 4.5
"""Approximate characters per token of English text."""


@dataclass(frozen=True)
class CorpusEntry:
    """A corpus that a recipe can name: its repositories, and its approximate numbers of tokens and documents, for cost
    estimates."""

    repositories: tuple[Repository, ...]
    tokens: float
    documents: float


CORPORA: Mapping[str, CorpusEntry] = {
    # 13 GB (paper, Table 1)
    "wikibook": CorpusEntry((BOOKCORPUS, WIKIPEDIA), 13e9 / CHARACTERS_PER_TOKEN, 80_500_000),
    "web": CorpusEntry((REFINEDWEB,), 600e9, 968_000_000),
}

TOKENIZERS: Mapping[str, Repository] = {
    "wordpiece": Repository("google-bert/bert-base-uncased", "tokenizer.json", kind="model"),
    "bpe": Repository("meta-llama/Llama-2-7b-hf", "tokenizer.json", kind="model"),
}
"""Repository of each tokenizer. LLaMA-2's is gated: it needs a token whose owner accepted the licence."""

TASK_SPLITS: Mapping[str, tuple[str, ...]] = {
    "mnli": ("train", "validation_matched", "validation_mismatched"),
    **dict.fromkeys(("qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb"), ("train", "validation")),
}
"""Splits of each GLUE task that a study needs, named as in nyu-mll/glue."""

HUB = "hub:"


def hub_origin(revisions: Sequence[tuple[str, str]]) -> str:
    """Return the origin of hub files, given the (repository, revision) of each."""
    return HUB + "+".join(f"{name}@{revision}" for name, revision in sorted(set(revisions)))


def is_from_hub(origin: str) -> bool:
    """Return whether an origin is that of hub files, or of a part of them."""
    return origin.startswith(HUB)


def require_known(word: str, words: Sequence[str] | Mapping[str, object], what: str) -> str:
    """Return `word`; raise ValueError if it is not in `words`."""
    if word not in words:
        raise ValueError(f"there is no {what} {word!r}: {did_you_mean(word, list(words))}")
    return word


def require_split(task: str, split: str) -> None:
    """Raise ValueError if there is no such GLUE task or split."""
    require_known(split, TASK_SPLITS[require_known(task, TASK_SPLITS, "task")], f"split of {task}")
