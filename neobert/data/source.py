"""The interface of a source of text and labelled data."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

from neobert.data.blimp import FOLDER, MinimalPair
from neobert.data.catalog import TASK_SPLITS, require_known
from neobert.data.mteb_tasks import EmbeddingTask, PublishedTask, TaskTables
from neobert.data.pairs import Pair
from neobert.data.tokenizers import TRAINERS, TextTokenizer, kept_tokenizer
from neobert.errors import MissingData


class NoCorpus(MissingData):
    """The source has no file of a corpus, or of BLiMP, and expects none."""


class Source(ABC):
    """Base class of sources: corpora, tokenizers, tasks and pairs.

    The `*_origin` methods return a string that identifies the bytes of the data. They and the reading methods raise
    MissingData if the data are absent, and DamagedFile or ValueError if they are invalid.
    """

    is_local = True
    """Whether the data are on this machine. Runs only read local sources."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Short name for tables."""

    @property
    @abstractmethod
    def trains_tokenizers(self) -> bool:
        """Whether tokenizers are trained on this source, at any vocabulary size, rather than published."""

    @abstractmethod
    def corpus_origin(self, corpus: str) -> str: ...

    @abstractmethod
    def documents(self, corpus: str) -> Iterator[str]:
        """Yield the texts of a corpus in a fixed order, including empty ones."""

    @abstractmethod
    def corpus_size(self, corpus: str) -> tuple[float, float] | None:
        """Return the approximate numbers of tokens and documents of a corpus, or None if unknown."""

    @abstractmethod
    def tokenizer_origin(self, tokenizer: str, vocabulary_size: int) -> str: ...

    @abstractmethod
    def tokenizer(self, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
        """Return a tokenizer of at most `vocabulary_size` tokens. Trained tokenizers are stored below `cache`."""

    def _trained_tokenizer(
        self, tokenizer: str, vocabulary_size: int, cache: Path, texts: Callable[[], list[str]]
    ) -> TextTokenizer:
        """Load the tokenizer from `cache`, or train it on `texts`."""
        folder = cache / self.tokenizer_origin(tokenizer, vocabulary_size).replace(":", "-")
        return kept_tokenizer(folder, lambda: TRAINERS[tokenizer](texts(), vocabulary_size))

    def tasks(self) -> dict[str, str | None]:
        """Map each of the eight GLUE tasks to None if it can be fine-tuned on this source, else to the reason why
        not."""
        return dict.fromkeys(TASK_SPLITS)

    @abstractmethod
    def task_origin(self, task: str) -> str: ...

    @abstractmethod
    def task_examples(self, task: str, split: str) -> dict[str, list[str | int | float]]:
        """Return the columns of one split, named as in nyu-mll/glue."""

    def blimp_origin(self) -> str:
        raise NoCorpus(f"{self.label} has no BLiMP: pass --data DIR of a folder with its files in DIR/{FOLDER}")

    def minimal_pairs(self, per_paradigm: int) -> list[MinimalPair]:
        """Return the first pairs of every paradigm of BLiMP."""
        raise NoCorpus(f"{self.label} has no BLiMP")

    @abstractmethod
    def pair_sets(self) -> tuple[str, ...]:
        """Return the names of the available data sets of pairs; for the hub, of the published ones."""

    def _require_pair_set(self, name: str) -> str:
        return require_known(name, self.pair_sets(), "data set of pairs")

    @abstractmethod
    def pair_origin(self, name: str) -> str: ...

    @abstractmethod
    def pair_instruction(self, name: str) -> str | None:
        """Return the instruction put before the queries of a data set, or None."""

    @abstractmethod
    def pairs(self, name: str) -> Iterator[Pair]:
        """Yield the pairs of a data set in a fixed order."""

    def leaves_out(self, pair: Pair) -> bool:
        """Return whether a pair must be excluded from training."""
        return False

    @abstractmethod
    def embedding_tasks(self) -> tuple[EmbeddingTask, ...]:
        """Return the available embedding tasks; for the hub, those of mteb's benchmarks."""

    @abstractmethod
    def embedding_task_origin(self, name: str) -> str:
        """Return the origin of a task's data. Local data are checked first."""

    @abstractmethod
    def embedding_task_data(self, name: str) -> TaskTables | PublishedTask: ...
