"""Where text comes from: the synthetic world, a folder, or the Hugging Face hub. Torch-free.

A recipe says "wikibook" or "web", "wordpiece" or "bpe", and names GLUE tasks; a source says which bytes these are and
gives each a content identity (an origin), which goes into the identity of every run that reads them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

from neobert.data.embedding_tables import PublishedTask, TaskTables
from neobert.data.pairs import Pair
from neobert.data.tokenizer_training import train_bpe, train_wordpiece
from neobert.data.tokenizers import TextTokenizer, kept_tokenizer
from neobert.embeddings.tasks import EmbeddingTask
from neobert.errors import MissingData, did_you_mean

CORPORA = ("wikibook", "web")
TOKENIZERS = ("wordpiece", "bpe")

_MNLI_SPLITS = ("train", "validation_matched", "validation_mismatched")
TASK_SPLITS: Mapping[str, tuple[str, ...]] = {
    "mnli": _MNLI_SPLITS,
    **dict.fromkeys(("qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb"), ("train", "validation")),
}
"""The splits of each GLUE task that a study needs, by nyu-mll/glue's names."""

SOURCES = ("synthetic", "hub")


class Source(Protocol):
    """Corpora, tokenizers and tasks of one origin."""

    @property
    def label(self) -> str:
        """A short name for tables."""

    @property
    def trains_tokenizers(self) -> bool:
        """Whether tokenizers are trained here, at any vocabulary size, or come as published."""

    def corpus_origin(self, corpus: str) -> str:
        """What identifies the bytes of a corpus."""

    def documents(self, corpus: str) -> Iterator[str]:
        """The texts of a corpus, in a fixed order."""

    def tokenizer_origin(self, tokenizer: str, vocabulary_size: int) -> str:
        """What identifies a tokenizer."""

    def tokenizer(self, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
        """A tokenizer of at most `vocabulary_size` tokens; what has to be trained or fetched is kept below `cache`."""

    def tasks(self) -> dict[str, str | None]:
        """For each of the eight GLUE tasks None where it can be fine-tuned here, else the reason why not."""

    def task_origin(self, task: str) -> str:
        """What identifies the examples of a task."""

    def task_examples(self, task: str, split: str) -> dict[str, list[str | int | float]]:
        """The columns of one split, with nyu-mll/glue's names."""

    def pair_sets(self) -> tuple[str, ...]:
        """The data sets of pairs that are here, or for the hub those that it publishes."""

    def pair_origin(self, name: str) -> str:
        """What identifies the pairs of a data set."""

    def pair_instruction(self, name: str) -> str | None:
        """What an encoder is told to do with the queries of a data set, where anything is."""

    def pairs(self, name: str) -> Iterator[Pair]:
        """The pairs of a data set, in a fixed order."""

    def leaves_out(self, pair: Pair) -> bool:
        """Whether training must not see a pair."""

    def embedding_tasks(self) -> tuple[EmbeddingTask, ...]:
        """The tasks of embeddings that are here, or for the hub the 56 of MTEB(eng, v1)."""

    def embedding_task_origin(self, name: str) -> str:
        """What identifies the data of a task; where they are here, they are checked first."""

    def embedding_task_data(self, name: str) -> TaskTables | PublishedTask:
        """The data of a task."""


def known(word: str, words: tuple[str, ...], what: str) -> str:
    """The word itself, checked.

    Raises:
        ValueError: it is none of `words`.
    """
    if word not in words:
        raise ValueError(f"there is no {what} {word!r}: {did_you_mean(word, words)}")
    return word


def known_split(task: str, split: str) -> None:
    """Check a task and its split.

    Raises:
        ValueError: no such task, or it has no such split.
    """
    known(split, TASK_SPLITS[known(task, tuple(TASK_SPLITS), "task")], f"split of {task}")


@dataclass(frozen=True)
class SyntheticSource:
    """The seeded micro-world of `neobert.data.synthetic`; its tokenizers are trained on a fixed part of both corpora,
    so that they do not change with the number of documents."""

    documents_per_corpus: int

    tokenizer_documents = 4000
    label = "synthetic"
    trains_tokenizers = True

    def corpus_origin(self, corpus: str) -> str:
        known(corpus, CORPORA, "corpus")
        return f"{self._world()}:documents={self.documents_per_corpus}"

    def documents(self, corpus: str) -> Iterator[str]:
        from neobert.data import synthetic

        return synthetic.corpus_documents(known(corpus, CORPORA, "corpus"), documents=self.documents_per_corpus)

    def tokenizer_origin(self, tokenizer: str, vocabulary_size: int) -> str:
        known(tokenizer, TOKENIZERS, "tokenizer")
        return f"{self._world()}:{tokenizer}:documents={self.tokenizer_documents}:vocabulary={vocabulary_size}"

    def tokenizer(self, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
        train = {"wordpiece": train_wordpiece, "bpe": train_bpe}[known(tokenizer, TOKENIZERS, "tokenizer")]
        folder = cache / self.tokenizer_origin(tokenizer, vocabulary_size).replace(":", "-")
        return kept_tokenizer(folder, lambda: train(self._tokenizer_texts(), vocabulary_size))

    def _tokenizer_texts(self) -> list[str]:
        from neobert.data import synthetic

        number = self.tokenizer_documents
        return list(chain.from_iterable(synthetic.corpus_documents(corpus, documents=number) for corpus in CORPORA))

    def tasks(self) -> dict[str, str | None]:
        return dict.fromkeys(TASK_SPLITS)

    def task_origin(self, task: str) -> str:
        known(task, tuple(TASK_SPLITS), "task")
        return self._world()

    def task_examples(self, task: str, split: str) -> dict[str, list[str | int | float]]:
        from neobert.data import synthetic

        known_split(task, split)
        return synthetic.task_examples(task, split)

    def pair_sets(self) -> tuple[str, ...]:
        from neobert.data import synthetic

        return synthetic.PAIR_SETS

    def pair_origin(self, name: str) -> str:
        known(name, self.pair_sets(), "data set of pairs")
        return self._world()

    def pair_instruction(self, name: str) -> str | None:
        from neobert.data import synthetic

        return synthetic.pair_instruction(known(name, self.pair_sets(), "data set of pairs"))

    def pairs(self, name: str) -> Iterator[Pair]:
        from neobert.data import synthetic

        return synthetic.pairs(known(name, self.pair_sets(), "data set of pairs"))

    def leaves_out(self, pair: Pair) -> bool:
        return False

    def embedding_tasks(self) -> tuple[EmbeddingTask, ...]:
        from neobert.data import synthetic

        return synthetic.EMBEDDING_TASKS

    def embedding_task_origin(self, name: str) -> str:
        known(name, tuple(task.name for task in self.embedding_tasks()), "task")
        return self._world()

    def embedding_task_data(self, name: str) -> TaskTables:
        from neobert.data import synthetic

        return synthetic.embedding_tables(known(name, tuple(task.name for task in self.embedding_tasks()), "task"))

    def _world(self) -> str:
        from neobert.data import synthetic

        return f"synthetic:v{synthetic.VERSION}"


def open_source(name_or_folder: str, *, synthetic_documents: int, unseen: Sequence[str] = ()) -> Source:
    """The source that `--data` names: "synthetic", "hub" or a folder, there without pairs that share a text with the
    files or folders `unseen`.

    Raises:
        MissingData: it is none of these words and no folder, or one of `unseen` holds no parquet files.
        ValueError: `unseen` is for a folder alone.
    """
    from neobert.data.directory import DirectorySource
    from neobert.data.hub import HubSource
    from neobert.data.unseen import UnseenTexts

    if unseen and name_or_folder in SOURCES:
        raise ValueError(f"--without-texts-of looks through the pairs of a folder: leave it out with {name_or_folder}")
    if name_or_folder == "synthetic":
        return SyntheticSource(synthetic_documents)
    if name_or_folder == "hub":
        return HubSource()
    folder = Path(name_or_folder)
    if not folder.is_dir():
        raise MissingData(
            f"--data {name_or_folder} is neither a folder nor a source: {did_you_mean(name_or_folder, SOURCES)}"
        )
    return DirectorySource(folder, UnseenTexts.at(map(Path, unseen)) if unseen else None)
