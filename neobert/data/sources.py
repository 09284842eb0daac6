"""Sources of text and labelled data: the synthetic world, a folder, or the repositories of the hub.

A recipe names corpora ("wikibook", "web"), tokenizers ("wordpiece", "bpe") and GLUE tasks (`neobert.data.catalog`). A
source maps these names to data and identifies each by an origin, which enters the id of every run that reads the data.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, islice
from pathlib import Path

from neobert.data import synthetic
from neobert.data.catalog import (
    CORPORA,
    GLUE,
    TASK_SPLITS,
    TOKENIZERS,
    Repository,
    hub_origin,
    require_known,
    require_split,
)
from neobert.data.corpora import CHARACTERS_OF_A_TEXT, TEXT_COLUMN, TEXTS_OF_A_FILE, CorpusFolder, NoCorpus
from neobert.data.manifest import (
    ORIGIN_DIGITS,
    Manifest,
    files_origin,
    read_manifest,
    require_complete,
    require_unchanged,
)
from neobert.data.mteb_tasks import MTEB_REPOSITORIES, OFFICIAL_TASKS, EmbeddingTask, PublishedTask, Table, member_names
from neobert.data.pairs import DECLARED_SETS, INSTRUCTIONS_FILE, Pair, own_pairs, read_words
from neobert.data.reading import data_files, split_name, table_file
from neobert.data.task_files import BLIMP_FOLDER, MinimalPair, SplitFiles, paradigm_files, read_pairs
from neobert.data.tokenizers import (
    TOKENIZER_FILE,
    TOKENIZER_FOLDERS,
    TRAINERS,
    TextTokenizer,
    kept_tokenizer,
    load_tokenizer,
    with_frequent_characters,
)
from neobert.errors import MissingData, did_you_mean
from neobert.files import sha256_once

SOURCES = ("synthetic", "hub")
UNRESOLVED = "unresolved"

COLUMNS_FILE = "columns.json"
"""File below corpora/ with {corpus: column}, for corpora whose text column is not named "text"."""

_SIZED_TEXTS = 64

CHARACTER_SHARE = 8
"""At most 1 in 8 tokens of a vocabulary trained on files is a single character."""


@dataclass(frozen=True)
class Source(ABC):
    """Base class of sources: corpora, tokenizers, tasks and pairs. `own_corpora` are those that a ladder adds.

    The `*_origin` methods return a string that identifies the bytes of the data. They and the reading methods raise
    MissingData if the data are absent, and DamagedFile or ValueError if they are invalid. A source without data on this
    machine has no reading methods of its own.
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

    def _own_corpus(self, corpus: str) -> CorpusFolder | None:
        return self.own_corpora.get(require_known(corpus, self.corpora, "corpus"))

    @abstractmethod
    def _common_origin(self, corpus: str) -> str: ...

    def _common_documents(self, corpus: str) -> Iterator[str]:
        raise _not_downloaded(corpus)

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

    def tokenizer(self, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
        """Return a tokenizer of at most `vocabulary_size` tokens. Trained tokenizers are stored below `cache`."""
        raise _not_downloaded(tokenizer)

    def _trained_tokenizer(
        self, tokenizer: str, vocabulary_size: int, cache: Path, texts: Callable[[], list[str]]
    ) -> TextTokenizer:
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

    def task_examples(self, task: str, split: str) -> dict[str, list[str | int | float]]:
        """Return the columns of one split, named as in nyu-mll/glue."""
        raise _not_downloaded(task)

    def blimp_origin(self) -> str:
        raise NoCorpus(f"{self.label} has no BLiMP: pass --data DIR of a folder with its files in DIR/{BLIMP_FOLDER}")

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

    def pairs(self, name: str) -> Iterator[Pair]:
        """Yield the pairs of a data set in a fixed order."""
        raise _not_downloaded(name)

    @abstractmethod
    def embedding_tasks(self) -> tuple[EmbeddingTask, ...]:
        """Return the available embedding tasks; for the hub, those of mteb's benchmarks."""

    @abstractmethod
    def embedding_task_origin(self, name: str) -> str:
        """Return the origin of a task's data. Local data are checked first."""

    def embedding_task_data(self, name: str) -> Mapping[str, Table] | PublishedTask:
        """Return a task's tables, or the folders from which mteb loads them."""
        raise _not_downloaded(name)


def open_source(
    name_or_folder: str,
    *,
    synthetic_documents: int,
    corpora: Mapping[str, tuple[str, str]] | None = None,
) -> Source:
    """Return the source named by `--data`: "synthetic", "hub" or a folder. `corpora` are added to it: (folder, text
    column) by name.

    Raises:
        MissingData: the name is neither a source nor a folder.
    """
    own = {
        name: CorpusFolder(name, Path(folder), Path(folder), column)
        for name, (folder, column) in (corpora or {}).items()
    }
    if name_or_folder == "synthetic":
        return SyntheticSource(synthetic_documents, own_corpora=own)
    if name_or_folder == "hub":
        return HubSource(own_corpora=own)
    folder = Path(name_or_folder)
    if not folder.is_dir():
        raise MissingData(
            f"--data {name_or_folder} is neither a folder nor a source: {did_you_mean(folder.name, SOURCES)}"
        )
    return DirectorySource(folder, own_corpora=own)


@dataclass(frozen=True)
class SyntheticSource(Source):
    """The seeded micro-world of `neobert.data.synthetic`.

    Tokenizers are trained on a fixed part of both corpora, so they do not depend on the number of documents, and on a
    ladder's own corpora.
    """

    documents_per_corpus: int

    tokenizer_documents = 4000
    label = "synthetic"
    trains_tokenizers = True

    def _common_origin(self, corpus: str) -> str:
        return f"{self._world}:documents={self.documents_per_corpus}"

    def _common_documents(self, corpus: str) -> Iterator[str]:
        return synthetic.corpus_documents(corpus, documents=self.documents_per_corpus)

    def _common_size(self, corpus: str) -> tuple[float, float]:
        sample = list(islice(self.documents(corpus), _SIZED_TEXTS))
        words = sum(len(text.split()) for text in sample) / len(sample)  # nearly every word is one token
        return words * self.documents_per_corpus, self.documents_per_corpus

    def tokenizer_origin(self, tokenizer: str, vocabulary_size: int) -> str:
        require_known(tokenizer, TOKENIZERS, "tokenizer")
        own = f":texts={self._origin_of_texts(self.own_corpora)}" if self.own_corpora else ""
        return f"{self._world}:{tokenizer}:documents={self.tokenizer_documents}{own}:vocabulary={vocabulary_size}"

    def tokenizer(self, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
        def texts() -> list[str]:
            number = self.tokenizer_documents
            corpora = (synthetic.corpus_documents(corpus, documents=number) for corpus in synthetic.CORPORA)
            own = list(chain.from_iterable(each.beginnings() for each in self.own_corpora.values()))
            return [*chain.from_iterable(corpora), *with_frequent_characters(own, vocabulary_size // CHARACTER_SHARE)]

        return self._trained_tokenizer(tokenizer, vocabulary_size, cache, texts)

    def task_origin(self, task: str) -> str:
        require_known(task, TASK_SPLITS, "task")
        return self._world

    def task_examples(self, task: str, split: str) -> dict[str, list[str | int | float]]:
        require_split(task, split)
        return synthetic.task_examples(task, split)

    def pair_sets(self) -> tuple[str, ...]:
        return synthetic.PAIR_SETS

    def pair_origin(self, name: str) -> str:
        self._require_pair_set(name)
        return self._world

    def pair_instruction(self, name: str) -> str | None:
        return synthetic.pair_instruction(self._require_pair_set(name))

    def pairs(self, name: str) -> Iterator[Pair]:
        return synthetic.pairs(self._require_pair_set(name))

    def embedding_tasks(self) -> tuple[EmbeddingTask, ...]:
        return synthetic.EMBEDDING_TASKS

    def embedding_task_origin(self, name: str) -> str:
        require_known(name, [task.name for task in synthetic.EMBEDDING_TASKS], "task")
        return self._world

    def embedding_task_data(self, name: str) -> Mapping[str, Table]:
        return synthetic.embedding_tables(name)

    @property
    def _world(self) -> str:
        return f"synthetic:v{synthetic.VERSION}"


@dataclass(frozen=True)
class HubSource(Source):
    """The hub's corpora, tokenizers and tasks by name and commit, for planning only; nothing can be read.

    Jobs do not use the network: `ablations/prefetch.py` downloads the files into a folder, where they have the same
    origin as here. `revisions` maps repositories to their commits, if known.
    """

    revisions: Mapping[str, str] = field(default_factory=dict)

    label = "hub"
    is_local = False
    trains_tokenizers = False

    def _common_origin(self, corpus: str) -> str:
        return self._origin(*CORPORA[corpus].repositories)

    def _common_size(self, corpus: str) -> tuple[float, float]:
        return CORPORA[corpus].tokens, CORPORA[corpus].documents

    def tokenizer_origin(self, tokenizer: str, vocabulary_size: int) -> str:
        return self._origin(TOKENIZERS[require_known(tokenizer, TOKENIZERS, "tokenizer")])

    def task_origin(self, task: str) -> str:
        require_known(task, TASK_SPLITS, "task")
        return self._origin(GLUE)

    def pair_sets(self) -> tuple[str, ...]:
        return tuple(DECLARED_SETS)

    def pair_origin(self, name: str) -> str:
        return self._origin(*DECLARED_SETS[self._require_pair_set(name)].repositories)

    def pair_instruction(self, name: str) -> str | None:
        return DECLARED_SETS[self._require_pair_set(name)].instruction

    def embedding_tasks(self) -> tuple[EmbeddingTask, ...]:
        return tuple(OFFICIAL_TASKS.values())

    def embedding_task_origin(self, name: str) -> str:
        task = OFFICIAL_TASKS[require_known(name, OFFICIAL_TASKS, "task")]
        return hub_origin([MTEB_REPOSITORIES[member] for member in member_names(task)])

    def _origin(self, *repositories: Repository) -> str:
        return hub_origin([(each.name, self.revisions.get(each.name, UNRESOLVED)) for each in repositories])


@lru_cache(maxsize=4)
def _loaded(file: Path, sha256: str) -> TextTokenizer:
    """Load a tokenizer once per process, and again if its file was replaced: plans ask for it many times."""
    del sha256
    return load_tokenizer(file.parent)


def _not_downloaded(name: str) -> MissingData:
    return MissingData(
        f"{name} is not here, and runs do not read the hub: download it with `python ablations/prefetch.py --variant "
        "all --data-dir DIR` (tasks of MTEB: --stages mteb) where there is a network, and pass --data DIR"
    )


@dataclass(frozen=True)
class DirectorySource(Source):
    """Corpora, tasks, pairs and tokenizers below `folder`.

    corpora/<name>/ is a `CorpusFolder`; glue/<task>/<split> and pairs/<name> are one file each; tokenizers/<name>/
    contains a tokenizer.json, and blimp/data/ the files of BLiMP. Prefetch writes the same layout, but for BLiMP, and
    mteb/<task>/, with a manifest.json that has the commit of each file, so that prefetched data have the hub's origin.
    """

    folder: Path

    @property
    def trains_tokenizers(self) -> bool:
        """Whether tokenizers are trained on the folder's corpora: it has none, and prefetch will not add any."""
        return not (self.folder / "tokenizers").is_dir() and not self.manifest.below("tokenizers")

    @property
    def label(self) -> str:
        return self.folder.resolve().name

    @cached_property
    def manifest(self) -> Manifest:
        """The files that prefetch has downloaded or will download; empty if it never wrote to this folder."""
        return read_manifest(self.folder)

    def _common_origin(self, corpus: str) -> str:
        return self._origin_once(f"corpus {corpus}", self.corpus_folder(corpus).origin)

    def _common_documents(self, corpus: str) -> Iterator[str]:
        return self.corpus_folder(corpus).documents()

    def _common_size(self, corpus: str) -> tuple[float, float]:
        return self.corpus_folder(corpus).size()

    @cached_property
    def _own_columns(self) -> dict[str, str]:
        return read_words(self.folder / "corpora" / COLUMNS_FILE, "{corpus: column}")

    def corpus_folder(self, corpus: str) -> CorpusFolder:
        """Return a corpus of the folder, whose files may be missing."""
        folder, column = self.folder / "corpora" / corpus, self._own_columns.get(corpus, TEXT_COLUMN)
        return CorpusFolder(corpus, folder, self.folder, column, self.manifest)

    def tokenizer_origin(self, tokenizer: str, vocabulary_size: int) -> str:
        if not self.trains_tokenizers:
            file = self.tokenizer_folder(tokenizer) / TOKENIZER_FILE
            origin = self._origin([file])
            is_changed = self._published_tokenizer(file, vocabulary_size).is_changed
            return f"{origin} without special tokens in text" if is_changed else origin
        require_known(tokenizer, TOKENIZERS, "tokenizer")
        texts = self._origin_of_texts((*self._corpora(), *self.own_corpora))
        return f"trained:{texts}:{tokenizer}:vocabulary={vocabulary_size}"

    def tokenizer(self, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
        def texts() -> list[str]:
            read = [*map(self.corpus_folder, self._corpora()), *self.own_corpora.values()]
            beginnings = list(chain.from_iterable(each.beginnings() for each in read))
            return with_frequent_characters(beginnings, vocabulary_size // CHARACTER_SHARE)

        if self.trains_tokenizers:
            return self._trained_tokenizer(tokenizer, vocabulary_size, cache, texts)
        return self._published_tokenizer(self.tokenizer_folder(tokenizer) / TOKENIZER_FILE, vocabulary_size)

    def _published_tokenizer(self, file: Path, vocabulary_size: int) -> TextTokenizer:
        loaded = _loaded(file, sha256_once(file))
        loaded.require_rows(vocabulary_size, str(file))
        return loaded

    def _corpora(self) -> list[str]:
        """Return the corpora of the folder; raise MissingData if there are none, and the ladder has none."""
        found = [corpus for corpus in CORPORA if data_files(self.folder / "corpora" / corpus)]
        for corpus in found or ([] if self.own_corpora else list(CORPORA)[:1]):
            self.corpus_folder(corpus).files()
        return found

    def tokenizer_folder(self, tokenizer: str) -> Path:
        """Return the folder of a tokenizer; raise MissingData if it contains none."""
        folder = self.folder / "tokenizers" / TOKENIZER_FOLDERS[require_known(tokenizer, TOKENIZERS, "tokenizer")]
        if not (folder / TOKENIZER_FILE).is_file():
            raise MissingData(f"there is no tokenizer {tokenizer} in {self.folder}: put {TOKENIZER_FILE} into {folder}")
        return folder

    def _task_files(self, task: str) -> SplitFiles:
        return SplitFiles(task, self.folder, f"glue/{task}", TASK_SPLITS[require_known(task, TASK_SPLITS, "task")])

    def tasks(self) -> dict[str, str | None]:
        return {task: self._task_files(task).why_missing() for task in TASK_SPLITS}

    def task_origin(self, task: str) -> str:
        return self._origin(self._task_files(task).present())

    def task_examples(self, task: str, split: str) -> dict[str, list[str | int | float]]:
        require_split(task, split)
        return self._task_files(task).read(split, ("label",))

    def blimp_origin(self) -> str:
        return self._origin_once("BLiMP", lambda: self._origin(self._blimp_files()))

    def minimal_pairs(self, per_paradigm: int) -> list[MinimalPair]:
        return [pair for path in self._blimp_files() for pair in read_pairs(path, per_paradigm)]

    def _blimp_files(self) -> list[Path]:
        folder = self.folder / BLIMP_FOLDER
        if not folder.is_dir():
            raise NoCorpus(f"there is no BLiMP in {self.folder}: copy github.com/alexwarstadt/blimp to {folder.parent}")
        return paradigm_files(folder)

    def pair_sets(self) -> tuple[str, ...]:
        folder = self.folder / "pairs"
        present = [path for path in sorted(folder.glob("[!.]*")) if path.name != INSTRUCTIONS_FILE]
        own = {split_name(path)[0] for path in present if split_name(path)[1]}
        for name in own:
            table_file(folder, name)  # raises before one is left out
        return tuple(sorted(own | {name for name in DECLARED_SETS if self._published_pairs(name)}))

    def pair_origin(self, name: str) -> str:
        return self._origin(self._pair_files(name))

    def pair_instruction(self, name: str) -> str | None:
        instructions = read_words(self.folder / "pairs" / INSTRUCTIONS_FILE, "{name: instruction}")
        return instructions.get(name, DECLARED_SETS[name].instruction if name in DECLARED_SETS else None)

    def pairs(self, name: str) -> Iterator[Pair]:
        files = self._pair_files(name)
        return own_pairs(files[0]) if files[0].parent.name == "pairs" else DECLARED_SETS[name].read(files)

    def _pair_files(self, name: str) -> list[Path]:
        """Return the files of a data set of pairs: the user's own file, or the prefetched ones."""
        own = table_file(self.folder / "pairs", name)
        if own.is_file():
            return [own]
        require_complete(f"data set of pairs {name}", self.folder, self.manifest.below(f"pairs/{name}"))
        files = self._published_pairs(name)
        if not files:
            hint = did_you_mean(name, [*self.pair_sets(), *DECLARED_SETS])
            raise MissingData(f"there is no data set of pairs {name} in {self.folder / 'pairs'} ({hint})")
        return files

    def _published_pairs(self, name: str) -> list[Path]:
        found = data_files(self.folder / "pairs" / name) if name in DECLARED_SETS else []
        return [path for path in found if split_name(path)[1] == ".parquet"]

    @cached_property
    def _embedding_tasks(self) -> dict[str, EmbeddingTask]:
        """mteb's tasks that prefetch downloaded."""
        return {
            name: task
            for name, task in OFFICIAL_TASKS.items()
            if all(self.manifest.below(f"mteb/{member}") for member in member_names(task))
        }

    def embedding_tasks(self) -> tuple[EmbeddingTask, ...]:
        return tuple(self._embedding_tasks.values())

    def embedding_task_origin(self, name: str) -> str:
        def origin() -> str:
            folders = [folder.relative_to(self.folder).as_posix() for folder in self._task_folders(name).values()]
            entries = {file: entry for folder in folders for file, entry in self.manifest.below(folder).items()}
            require_complete(f"task {name}", self.folder, entries)
            require_unchanged(self.folder, entries)
            return hub_origin([(entry.repository, entry.revision) for entry in entries.values()])

        return self._origin_once(f"embedding task {name}", origin)

    def embedding_task_data(self, name: str) -> PublishedTask:
        return PublishedTask(self._task_folders(name))

    def _task_folders(self, name: str) -> dict[str, Path]:
        if name not in self._embedding_tasks:
            raise MissingData(f"there is no task {name} in {self.folder / 'mteb'}: prefetch it")
        return {member: self.folder / "mteb" / member for member in member_names(self._embedding_tasks[name])}

    def _origin(self, files: Sequence[Path]) -> str:
        return files_origin(self.folder, self.manifest, files)
