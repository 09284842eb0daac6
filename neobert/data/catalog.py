"""What the words of a recipe stand for: corpora, tokenizers and GLUE tasks, and where the hub has them.

A new corpus is one entry of `CORPORA`. A folder holds it in corpora/<name>/; prefetch brings what repositories are
named. A repository's commit is looked up by prefetch and written into the folder's manifest, never invented.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neobert.errors import did_you_mean


@dataclass(frozen=True)
class Repository:
    """Files of a dataset or model repository of the Hugging Face hub.

    `files` is a pattern of their names; where none fits, those of `otherwise` are taken, and no file at all is an error
    unless it `is_optional`. `branch` may be a commit; `column` holds the texts of a corpus.
    """

    name: str
    files: str
    column: str | None = None
    branch: str = "main"
    kind: str = "dataset"
    otherwise: str | None = None
    is_optional: bool = False


WIKIPEDIA = Repository("legacy-datasets/wikipedia", "data/20220301.en/train-*.parquet", "text")
"""The dump of the released scripts/pretraining/preprocess.py, 6.5 M articles."""
BOOKCORPUS = Repository("bookcorpus/bookcorpus", "plain_text/train/*.parquet", "text", branch="refs/convert/parquet")
"""The second half of the released preprocess.py, 74 M rows of a sentence each; converted to parquet by the hub."""
REFINEDWEB = Repository("tiiuae/falcon-refinedweb", "data/train-*.parquet", "content")
"""Paper §3.2, released conf/dataset/refinedweb.yaml: 968 M documents."""
GLUE = Repository("nyu-mll/glue", "{task}/{split}-*.parquet")

CHARACTERS_PER_TOKEN = 4.5
"""Of English text, about."""


@dataclass(frozen=True)
class CorpusEntry:
    """A corpus that a recipe can name: the repositories that publish it, none where only folders hold it, and about how
    many tokens and documents these have, for estimates of costs."""

    repositories: tuple[Repository, ...] = ()
    tokens: float | None = None
    documents: float | None = None


CORPORA: Mapping[str, CorpusEntry] = {
    # 13 GB (paper, Table 1)
    "wikibook": CorpusEntry((BOOKCORPUS, WIKIPEDIA), 13e9 / CHARACTERS_PER_TOKEN, 80_500_000),
    "web": CorpusEntry((REFINEDWEB,), 600e9, 968_000_000),
}

TOKENIZERS: Mapping[str, Repository] = {
    "wordpiece": Repository("google-bert/bert-base-uncased", "tokenizer.json", kind="model"),
    "bpe": Repository("meta-llama/Llama-2-7b-hf", "tokenizer.json", kind="model"),
}
"""LLaMA-2's repository is gated: it needs a token whose owner accepted the licence."""

TASK_SPLITS: Mapping[str, tuple[str, ...]] = {
    "mnli": ("train", "validation_matched", "validation_mismatched"),
    **dict.fromkeys(("qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb"), ("train", "validation")),
}
"""The splits of each GLUE task that a study needs, by nyu-mll/glue's names."""

HUB = "hub:"


def hub_origin(revisions: Sequence[tuple[str, str]]) -> str:
    """The identity of files of the hub, from the (repository, revision) of each."""
    return HUB + "+".join(f"{name}@{revision}" for name, revision in sorted(set(revisions)))


def is_from_hub(origin: str) -> bool:
    """Whether an identity is that of files of the hub, or of a part of them."""
    return origin.startswith(HUB)


def require_known(word: str, words: Sequence[str] | Mapping[str, object], what: str) -> str:
    """The word itself; ValueError where it is none of `words`."""
    if word not in words:
        raise ValueError(f"there is no {what} {word!r}: {did_you_mean(word, list(words))}")
    return word


def require_corpus(corpus: str) -> str:
    """The corpus itself, if it is one of `CORPORA`; else ValueError."""
    return require_known(corpus, CORPORA, "corpus")


def require_split(task: str, split: str) -> None:
    """Check a GLUE task and its split; ValueError where there is no such task or split."""
    require_known(split, TASK_SPLITS[require_known(task, TASK_SPLITS, "task")], f"split of {task}")
