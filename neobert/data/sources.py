"""Where text comes from: the synthetic world, a folder, or the Hugging Face hub. Torch-free.

A recipe says "wikibook" or "web", "wordpiece" or "bpe", and names GLUE tasks; a source says which bytes these are and
gives each a content identity (an origin), which goes into the identity of every run that reads them.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import NoReturn, Protocol

from neobert.data.manifest import MANIFEST, Manifest, Repository, has_size, hub_origin, read_manifest, require_brought
from neobert.data.mteb_tasks import (
    MTEB_ENGLISH_V1,
    MTEB_REPOSITORIES,
    OFFICIAL_TASKS,
    EmbeddingTask,
    FolderTasks,
    PublishedTask,
    TaskTables,
    member_names,
)
from neobert.data.pairs import DECLARED_SETS, DeclaredSet, Pair, UnseenTexts, own_instructions, own_pairs
from neobert.data.reading import require_columns, text_size, texts_of
from neobert.data.tokenizers import (
    FOLDERS,
    TOKENIZER_FILE,
    TextTokenizer,
    kept_tokenizer,
    load_tokenizer,
    train_bpe,
    train_wordpiece,
    with_frequent_characters,
)
from neobert.errors import MissingData, did_you_mean
from neobert.files import sha256_of

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
    from neobert.data.pairs import UnseenTexts

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


UNRESOLVED = "unresolved"


WIKIPEDIA = Repository("legacy-datasets/wikipedia", "data/20220301.en/train-*.parquet", "text")
"""The dump of the released scripts/pretraining/preprocess.py, 6.5 M articles."""
BOOKCORPUS = Repository("bookcorpus/bookcorpus", "plain_text/train/*.parquet", "text", branch="refs/convert/parquet")
"""The released preprocess.py's second half, 74 M rows of a sentence each; parquet exists on the hub's own branch."""
REFINEDWEB = Repository("tiiuae/falcon-refinedweb", "data/train-*.parquet", "content")
"""Paper §3.2, released conf/dataset/refinedweb.yaml: 968 M documents."""
GLUE = Repository("nyu-mll/glue", "{task}/{split}-*.parquet")

CORPUS_REPOSITORIES: Mapping[str, tuple[Repository, ...]] = {
    "wikibook": (BOOKCORPUS, WIKIPEDIA),
    "web": (REFINEDWEB,),
}
TOKENIZER_REPOSITORIES: Mapping[str, Repository] = {
    "wordpiece": Repository("google-bert/bert-base-uncased", TOKENIZER_FILE, kind="model"),
    "bpe": Repository("meta-llama/Llama-2-7b-hf", TOKENIZER_FILE, kind="model"),
}
"""LLaMA-2's repository is gated: it needs a token whose owner accepted the licence."""


@dataclass(frozen=True)
class HubSource:
    """The published corpora, tokenizers and tasks by name: enough to plan with. Their bytes come from a prefetched
    folder. `revisions` maps a repository's name to its commit, where it is known."""

    revisions: Mapping[str, str] = field(default_factory=dict)

    label = "hub"
    trains_tokenizers = False

    def corpus_origin(self, corpus: str) -> str:
        return self._origin(CORPUS_REPOSITORIES[known(corpus, CORPORA, "corpus")])

    def documents(self, corpus: str) -> Iterator[str]:
        """None.

        Raises:
            MissingData: always; it says what brings the corpus.
        """
        _refuse(f"corpus {corpus}", CORPUS_REPOSITORIES[known(corpus, CORPORA, "corpus")])

    def tokenizer_origin(self, tokenizer: str, vocabulary_size: int) -> str:
        return self._origin([TOKENIZER_REPOSITORIES[known(tokenizer, TOKENIZERS, "tokenizer")]])

    def tokenizer(self, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
        """None.

        Raises:
            MissingData: always; it says what brings the tokenizer.
        """
        _refuse(f"tokenizer {tokenizer}", [TOKENIZER_REPOSITORIES[known(tokenizer, TOKENIZERS, "tokenizer")]])

    def tasks(self) -> dict[str, str | None]:
        return dict.fromkeys(TASK_SPLITS)

    def task_origin(self, task: str) -> str:
        known(task, tuple(TASK_SPLITS), "task")
        return self._origin([GLUE])

    def task_examples(self, task: str, split: str) -> dict[str, list[str | int | float]]:
        """None.

        Raises:
            MissingData: always; it says what brings the task.
        """
        known_split(task, split)
        _refuse(f"GLUE task {task}", [GLUE])

    def pair_sets(self) -> tuple[str, ...]:
        return tuple(DECLARED_SETS)

    def pair_origin(self, name: str) -> str:
        return self._origin(_declared(name).repositories[:1])

    def pair_instruction(self, name: str) -> str | None:
        return _declared(name).instruction

    def pairs(self, name: str) -> Iterator[Pair]:
        """None.

        Raises:
            MissingData: always; it says what brings the data set.
        """
        _refuse(f"data set of pairs {name}", _declared(name).repositories[:1])

    def leaves_out(self, pair: Pair) -> bool:
        return False

    def embedding_tasks(self) -> tuple[EmbeddingTask, ...]:
        return MTEB_ENGLISH_V1

    def embedding_task_origin(self, name: str) -> str:
        return hub_origin(_mteb_repositories(name))

    def embedding_task_data(self, name: str) -> NoReturn:
        """None.

        Raises:
            MissingData: always; it says what brings the task.
        """
        repositories = [Repository(repository, "*") for repository, _ in _mteb_repositories(name)]
        _refuse(f"task {name}", repositories, " --stages mteb")

    def _origin(self, repositories: Iterable[Repository]) -> str:
        names = [repository.name for repository in repositories]
        return hub_origin((name, self.revisions.get(name, UNRESOLVED)) for name in names)


def _declared(name: str) -> DeclaredSet:
    return DECLARED_SETS[known(name, tuple(DECLARED_SETS), "data set of pairs")]


def _mteb_repositories(name: str) -> list[tuple[str, str]]:
    """(repository, commit) of each of mteb's own tasks that a task is made of."""
    task = OFFICIAL_TASKS[known(name, tuple(OFFICIAL_TASKS), "task")]
    return [MTEB_REPOSITORIES[member] for member in member_names(task)]


def _refuse(item: str, repositories: Iterable[Repository], stages: str = "") -> NoReturn:
    names = " and ".join(repository.name for repository in repositories)
    raise MissingData(
        f"{item} is not here: runs do not read the hub ({names}), so bring it with `python ablations/prefetch.py "
        f"--variant all{stages} --data-dir DIR` where there is a network and pass --data DIR"
    )


TEXTS_OF_A_FILE = 2000
CHARACTERS_OF_A_TEXT = 2000
"""A trainer sees the beginnings of the first texts of every file, so that no file outweighs the others by far."""

CHARACTER_SHARE = 8
"""At most one in so many tokens of a vocabulary stands for a single character."""


class Folder(Protocol):
    """What training a tokenizer asks of a folder."""

    def corpus_files(self, corpus: str) -> list[Path]:
        """The files of a corpus; MissingData where there is none."""

    def corpus_origin(self, corpus: str) -> str:
        """What identifies the bytes of a corpus."""

    def text_column(self, path: Path) -> str:
        """The column of a file that holds its texts."""


def trained_origin(folder: Folder, tokenizer: str, vocabulary_size: int) -> str:
    """What identifies a tokenizer that is trained here: the texts, and how many of them a trainer sees."""
    origins = " ".join(folder.corpus_origin(corpus) for corpus in _corpora(folder))
    texts = hashlib.sha256(f"{origins} {TEXTS_OF_A_FILE} {CHARACTERS_OF_A_TEXT} {CHARACTER_SHARE}".encode())
    return f"trained:{texts.hexdigest()[:12]}:{tokenizer}:vocabulary={vocabulary_size}"


def trained_tokenizer(folder: Folder, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
    """The tokenizer, from `cache` or trained now on all corpora of the folder.

    Raises:
        MissingData: the folder has no corpus.
        ValueError: the vocabulary is too small.
    """
    train = {"wordpiece": train_wordpiece, "bpe": train_bpe}[tokenizer]

    def trained() -> TextTokenizer:
        texts = with_frequent_characters(list(_texts(folder)), vocabulary_size // CHARACTER_SHARE)
        return train(texts, vocabulary_size)

    return kept_tokenizer(cache / trained_origin(folder, tokenizer, vocabulary_size).replace(":", "-"), trained)


def _corpora(folder: Folder) -> list[str]:
    """The corpora that are there.

    Raises:
        MissingData: there is none.
    """
    found = [corpus for corpus in CORPORA if _has(folder, corpus)]
    if not found:
        folder.corpus_files(CORPORA[0])
    return found


def _has(folder: Folder, corpus: str) -> bool:
    try:
        return bool(folder.corpus_files(corpus))
    except MissingData:
        return False


def _texts(folder: Folder) -> Iterator[str]:
    for corpus in _corpora(folder):
        for path in folder.corpus_files(corpus):
            first = islice(texts_of({path: folder.text_column(path)}), TEXTS_OF_A_FILE)
            yield from (text[:CHARACTERS_OF_A_TEXT] for text in first)


TEXT_COLUMN = "text"
ORIGIN_DIGITS = 12

_FOOTERS_READ = 8


@cache
def _content(path: Path, size: int, modified_ns: int) -> str:
    """A file's SHA-256, read once as long as size and time stay."""
    del size, modified_ns
    return sha256_of(path)


def content_sha256(path: Path) -> str:
    """A file's SHA-256, remembered within the process."""
    status = path.stat()
    return _content(path.resolve(), status.st_size, status.st_mtime_ns)


@dataclass(frozen=True)
class DirectorySource:
    """Corpora, tasks and tokenizers below `folder`; pairs that share a text with `unseen` are left out."""

    folder: Path
    unseen: UnseenTexts | None = None

    @property
    def trains_tokenizers(self) -> bool:
        """Tokenizers are trained on the corpora of a folder that has none and is to get none."""
        return not (self.folder / "tokenizers").is_dir() and not self.manifest.below("tokenizers")

    @property
    def label(self) -> str:
        return self.folder.resolve().name

    @cached_property
    def manifest(self) -> Manifest:
        """What prefetch brought or is to bring; empty where it never wrote here."""
        return read_manifest(self.folder)

    @cached_property
    def _corpus_origins(self) -> dict[str, str]:
        """Origins found so far: a plan asks for each many times, and a corpus may be thousands of files."""
        return {}

    def corpus_origin(self, corpus: str) -> str:
        if corpus not in self._corpus_origins:
            self._corpus_origins[corpus] = self._origin(self.corpus_files(corpus))
        return self._corpus_origins[corpus]

    def documents(self, corpus: str) -> Iterator[str]:
        """The texts of a corpus file after file, empty ones included.

        Raises:
            MissingData: the folder has no such corpus, or not all of it.
            ValueError: a file has no column "text" (a prefetched one: the hub's column).
        """
        columns = {path: self.text_column(path) for path in self.corpus_files(corpus)}
        for path, column in columns.items():
            require_columns(path, (column,))
        return texts_of(columns)

    def text_size(self, corpus: str) -> tuple[float, float]:
        """About how many bytes of text before compression, and documents, a corpus has: some files' footers are read
        and stand for the others by their sizes."""
        files = self.corpus_files(corpus)
        sample = files[:: -(-len(files) // _FOOTERS_READ)]
        sizes = [text_size(path, self.text_column(path)) for path in sample]
        share = sum(path.stat().st_size for path in files) / sum(path.stat().st_size for path in sample)
        return share * sum(size for size, _ in sizes), share * sum(documents for _, documents in sizes)

    def text_column(self, path: Path) -> str:
        """The column of a corpus file that holds its texts."""
        entry = self.manifest.files.get(path.relative_to(self.folder).as_posix())
        return (entry.column if entry else None) or TEXT_COLUMN

    def corpus_files(self, corpus: str) -> list[Path]:
        """The files of a corpus in the order in which they are read.

        Raises:
            MissingData: there is none, or prefetch has not brought all of them.
        """
        folder = self.folder / "corpora" / known(corpus, CORPORA, "corpus")
        files = sorted(folder.glob("*.parquet"))
        wanted = self.manifest.below(f"corpora/{corpus}")
        missing = [name for name in wanted if not (self.folder / name).is_file()]
        if missing:
            raise MissingData(
                f"corpus {corpus} lacks {len(missing)} of the {len(wanted)} files that {self.folder / MANIFEST} lists "
                f"(first: {missing[0]}): run ablations/prefetch.py again"
            )
        if not files:
            raise MissingData(
                f"there is no corpus {corpus} in {self.folder}: put parquet files with a column {TEXT_COLUMN!r} into "
                f"{folder}"
            )
        return files

    def tokenizer_origin(self, tokenizer: str, vocabulary_size: int) -> str:
        if self.trains_tokenizers:
            return trained_origin(self, known(tokenizer, TOKENIZERS, "tokenizer"), vocabulary_size)
        return self._origin([self.tokenizer_folder(tokenizer) / TOKENIZER_FILE])

    def tokenizer(self, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
        if self.trains_tokenizers:
            return trained_tokenizer(self, tokenizer, vocabulary_size, cache)
        loaded = load_tokenizer(self.tokenizer_folder(tokenizer))
        loaded.require_rows(vocabulary_size)
        return loaded

    def tokenizer_folder(self, tokenizer: str) -> Path:
        """The folder of a tokenizer.

        Raises:
            MissingData: it holds none.
        """
        folder = self.folder / "tokenizers" / FOLDERS[known(tokenizer, TOKENIZERS, "tokenizer")]
        if not (folder / TOKENIZER_FILE).is_file():
            raise MissingData(f"there is no tokenizer {tokenizer} in {self.folder}: put {TOKENIZER_FILE} into {folder}")
        return folder

    def tasks(self) -> dict[str, str | None]:
        return {task: self._why_not(task) for task in TASK_SPLITS}

    def _why_not(self, task: str) -> str | None:
        missing = [split for split in TASK_SPLITS[task] if not self.split_path(task, split).is_file()]
        if not missing:
            return None
        return f"{task} has no {', '.join(missing)} split in glue/{task}"  # part of ids, so no word of where it lies

    def task_origin(self, task: str) -> str:
        known(task, tuple(TASK_SPLITS), "task")
        paths = [self.split_path(task, split) for split in TASK_SPLITS[task]]
        present = [path for path in paths if path.is_file()]
        if not present:
            raise MissingData(f"{self._why_not(task)} of {self.folder}: put its parquet files there")
        return self._origin(present)

    def task_examples(self, task: str, split: str) -> dict[str, list[str | int | float]]:
        """The columns of one split.

        Raises:
            MissingData: the split is not there.
            ValueError: no such task or split, or a column is missing.
        """
        from pyarrow import parquet

        known_split(task, split)
        path = self.split_path(task, split)
        if not path.is_file():
            present = sorted(file.stem for file in path.parent.glob("*.parquet"))
            hint = did_you_mean(split, present) if present else "the folder has no parquet file"
            raise MissingData(f"{task} has no {split} split, {path} is missing ({hint})")
        require_columns(path, ("label",))
        columns: dict[str, list[str | int | float]] = parquet.read_table(path).to_pydict()
        if not columns["label"]:
            raise ValueError(f"{path} has no rows: put the examples of {task} there")
        return columns

    def split_path(self, task: str, split: str) -> Path:
        """Where a split of a task lies."""
        return self.folder / "glue" / task / f"{split}.parquet"

    def pair_sets(self) -> tuple[str, ...]:
        own = {path.stem for path in (self.folder / "pairs").glob("*.parquet")}
        return tuple(sorted(own | {name for name in DECLARED_SETS if self._published_pairs(name)}))

    def pair_origin(self, name: str) -> str:
        origin = self._origin(self.pair_files(name))
        return origin if self.unseen is None else f"{origin} without {self.unseen.origin}"

    def pair_instruction(self, name: str) -> str | None:
        instructions = own_instructions(self.folder / "pairs")
        return instructions.get(name, DECLARED_SETS[name].instruction if name in DECLARED_SETS else None)

    def pairs(self, name: str) -> Iterator[Pair]:
        """The pairs of a data set.

        Raises:
            MissingData: it is not here.
            DamagedFile, ValueError: a file is not what it should be.
        """
        files = self.pair_files(name)
        return own_pairs(files[0]) if files[0].parent.name == "pairs" else DECLARED_SETS[name].read(files)

    def leaves_out(self, pair: Pair) -> bool:
        return self.unseen is not None and self.unseen.shares(pair)

    def pair_files(self, name: str) -> list[Path]:
        """The files of a data set of pairs: a person's own one, or those that prefetch brought.

        Raises:
            MissingData: there is none.
        """
        own = self.folder / "pairs" / f"{name}.parquet"
        files = [own] if own.is_file() else self._published_pairs(name)
        if not files:
            hint = did_you_mean(name, [*self.pair_sets(), *DECLARED_SETS])
            raise MissingData(f"there is no data set of pairs {name} in {self.folder / 'pairs'} ({hint})")
        return files

    def _published_pairs(self, name: str) -> list[Path]:
        return sorted((self.folder / "pairs" / name).rglob("*.parquet")) if name in DECLARED_SETS else []

    @cached_property
    def _embedding(self) -> FolderTasks:
        return FolderTasks(self.folder, self.manifest, self._origin)

    def embedding_tasks(self) -> tuple[EmbeddingTask, ...]:
        return tuple(found.task for found in self._embedding.tasks.values())

    def embedding_task_origin(self, name: str) -> str:
        return self._embedding.origin(name)

    def embedding_task_data(self, name: str) -> TaskTables | PublishedTask:
        return self._embedding.data(name)

    def _origin(self, files: Sequence[Path]) -> str:
        """The hub's identity where the manifest knows every file, else a hash of names and contents.

        Part of what the hub publishes is not the whole: then the identity names the part.
        """
        names = sorted(path.relative_to(self.folder).as_posix() for path in files)
        prefetched = self.manifest.files
        if not all(self._is_prefetched(name) for name in names):
            return f"directory:{_digest(f'{name} {content_sha256(self.folder / name)}' for name in names)}"
        require_brought(self.folder, {name: prefetched[name] for name in names})
        origin = hub_origin((prefetched[name].repository, prefetched[name].revision) for name in names)
        published = self.manifest.published.get(PurePosixPath(names[0]).parent.as_posix(), len(names))
        if len(names) == published:
            return origin
        part = _digest(f"{prefetched[name].repository} {prefetched[name].file}" for name in names)
        return f"{origin}#{len(names)}of{published}:{part}"

    def _is_prefetched(self, name: str) -> bool:
        """Whether prefetch brought a file; one that it was to bring may be somebody's own with the same name."""
        entry = self.manifest.files.get(name)
        return entry is not None and (entry.sha256 is not None or has_size(self.folder / name, entry))


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:ORIGIN_DIGITS]
