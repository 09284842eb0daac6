"""The interface of a source of text and labelled data."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from neobert.data.blimp import FOLDER, MinimalPair
from neobert.data.catalog import CORPORA, TASK_SPLITS, require_known
from neobert.data.corpora import CHARACTERS_OF_A_TEXT, TEXTS_OF_A_FILE, CorpusFolder, NoCorpus
from neobert.data.manifest import ORIGIN_DIGITS
from neobert.data.mteb_tasks import EmbeddingTask, PublishedTask, TaskTables
from neobert.data.pairs import Pair
from neobert.data.tokenizers import TRAINERS, TextTokenizer, kept_tokenizer

CHARACTER_SHARE = 8
"""At most 1 in 8 tokens of a vocabulary trained on files is a single character."""


@dataclass(frozen=True)
class Source(ABC):
    """Base class of sources: corpora, tokenizers, tasks and pairs. `own_corpora` are those that a ladder adds.

    The `*_origin` methods return a string that identifies the bytes of the data. They and the reading methods raise
    MissingData if the data are absent, and DamagedFile or ValueError if they are invalid.
    """

    own_corpora: Mapping[str, CorpusFolder] = field(default_factory=dict, kw_only=True)
    _origins: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

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

    @property
    def tokenizer_texts(self) -> tuple[str, ...]:
        """What tokenizers are trained on, in words: other text of the source, and a ladder's own corpora."""
        return (self.label, *self.own_corpora)

    @property
    def corpora(self) -> tuple[str, ...]:
        """The names of all corpora that a recipe can read; the source may lack some."""
        return (*CORPORA, *self.own_corpora)

    def corpus_origin(self, corpus: str) -> str:
        own = self._own_corpus(corpus)
        return self._origin_once(f"corpus {corpus}", own.origin) if own else self._common_origin(corpus)

    def documents(self, corpus: str) -> Iterator[str]:
        """Yield the texts of a corpus in a fixed order, including empty ones."""
        own = self._own_corpus(corpus)
        return own.documents() if own else self._common_documents(corpus)

    def corpus_size(self, corpus: str) -> tuple[float, float]:
        """Return the approximate numbers of tokens and documents of a corpus."""
        own = self._own_corpus(corpus)
        return own.size() if own else self._common_size(corpus)

    def described_corpus(self, corpus: str) -> str | None:
        """Return a line about the files of a corpus; None if it is in no folder."""
        folder = self._own_corpus(corpus) or self._common_folder(corpus)
        return folder.described() if folder else None

    def _common_folder(self, corpus: str) -> CorpusFolder | None:
        return None

    def _own_corpus(self, corpus: str) -> CorpusFolder | None:
        return self.own_corpora.get(require_known(corpus, self.corpora, "corpus"))

    @abstractmethod
    def _common_origin(self, corpus: str) -> str: ...

    @abstractmethod
    def _common_documents(self, corpus: str) -> Iterator[str]: ...

    @abstractmethod
    def _common_size(self, corpus: str) -> tuple[float, float]: ...

    def _origin_once(self, what: str, find: Callable[[], str]) -> str:
        """Cache an origin: plans need it many times, and computing it may read thousands of files."""
        if what not in self._origins:
            self._origins[what] = find()
        return self._origins[what]

    def _origin_of_texts(self, corpora: Iterable[str]) -> str:
        """Return what identifies the texts of files that a tokenizer is trained on."""
        origins = " ".join(map(self.corpus_origin, corpora))
        texts = f"{origins} {TEXTS_OF_A_FILE} {CHARACTERS_OF_A_TEXT} {CHARACTER_SHARE}"
        return hashlib.sha256(texts.encode()).hexdigest()[:ORIGIN_DIGITS]

    @abstractmethod
    def tokenizer_origin(self, tokenizer: str, vocabulary_size: int) -> str: ...

    @abstractmethod
    def tokenizer(self, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
        """Return a tokenizer of at most `vocabulary_size` tokens. Trained tokenizers are stored below `cache`."""

    def _trained_tokenizer(
        self, tokenizer: str, vocabulary_size: int, cache: Path, texts: Callable[[], list[str]]
    ) -> TextTokenizer:
        """Load the tokenizer from `cache`, or train it on `texts`."""
        folder = self.trained_folder(tokenizer, vocabulary_size, cache)
        return kept_tokenizer(folder, lambda: TRAINERS[tokenizer](texts(), vocabulary_size))

    def trained_folder(self, tokenizer: str, vocabulary_size: int, cache: Path) -> Path:
        """Return the folder below `cache` of a tokenizer that is trained on this source."""
        return cache / self.tokenizer_origin(tokenizer, vocabulary_size).replace(":", "-")

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
