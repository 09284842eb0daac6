"""The Hugging Face hub as source of text: which repository, which files, which column. Torch-free.

Files are read as parquet by name, because `datasets` runs no scripts any more; a revision is None until somebody
looked it up, never invented. `datasets` and `huggingface_hub` are imported here alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from neobert.data.corpora import CORPORA, TASK_SPLITS, TOKENIZERS, known, known_split
from neobert.data.tokenizers import TOKENIZER_FILE, TextTokenizer, load_tokenizer
from neobert.errors import MissingData

UNRESOLVED = "unresolved"


@dataclass(frozen=True)
class Repository:
    """A dataset or model repository: which of its branches, which of its files, which column holds the text."""

    name: str
    files: str
    column: str = ""
    branch: str = "main"
    kind: str = "dataset"


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


def hub_origin(revisions: Iterable[tuple[str, str]]) -> str:
    """The identity of files of the hub, from the (repository, revision) of each."""
    return "hub:" + "+".join(f"{name}@{revision}" for name, revision in sorted(set(revisions)))


@dataclass(frozen=True)
class HubSource:
    """The published corpora, tokenizers and tasks, streamed; `revisions` maps a repository's name to its commit."""

    revisions: Mapping[str, str] = field(default_factory=dict)

    label = "hub"
    trains_tokenizers = False

    def resolved(self, *repositories: Repository) -> "HubSource":
        """The same source with the commits of these repositories looked up; those already known are kept.

        Raises:
            MissingData: the hub does not answer, or a repository needs a token.
        """
        unknown = [repository for repository in repositories if repository.name not in self.revisions]
        revisions = {repository.name: _commit(repository) for repository in unknown}
        return replace(self, revisions={**self.revisions, **revisions})

    def corpus_origin(self, corpus: str) -> str:
        return self._origin(CORPUS_REPOSITORIES[known(corpus, CORPORA, "corpus")])

    def documents(self, corpus: str) -> Iterator[str]:
        """The texts of a corpus, streamed from its repositories one after the other.

        Raises:
            MissingData: a revision is not looked up, or the hub does not answer.
        """
        for repository in CORPUS_REPOSITORIES[known(corpus, CORPORA, "corpus")]:
            rows = self._rows(repository, repository.files, [repository.column])
            yield from (row[repository.column] or "" for row in rows)

    def tokenizer_origin(self, tokenizer: str, vocabulary_size: int) -> str:
        return self._origin([TOKENIZER_REPOSITORIES[known(tokenizer, TOKENIZERS, "tokenizer")]])

    def tokenizer(self, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
        repository = TOKENIZER_REPOSITORIES[known(tokenizer, TOKENIZERS, "tokenizer")]
        revision = self._revision(repository)
        loaded = load_tokenizer(_downloaded(repository, revision, cache))
        loaded.require_rows(vocabulary_size)
        return loaded

    def tasks(self) -> dict[str, str | None]:
        return dict.fromkeys(TASK_SPLITS)

    def task_origin(self, task: str) -> str:
        known(task, tuple(TASK_SPLITS), "task")
        return self._origin([GLUE])

    def task_examples(self, task: str, split: str) -> dict[str, list[str | int | float]]:
        known_split(task, split)
        rows = list(self._rows(GLUE, GLUE.files.format(task=task, split=split), None))
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _origin(self, repositories: Iterable[Repository]) -> str:
        names = [repository.name for repository in repositories]
        return hub_origin((name, self.revisions.get(name, UNRESOLVED)) for name in names)

    def _revision(self, repository: Repository) -> str:
        if repository.name not in self.revisions:
            raise MissingData(
                f"the revision of {repository.name} is not looked up yet: prefetch it and pass the folder with --data"
            )
        return self.revisions[repository.name]

    def _rows(self, repository: Repository, files: str, columns: list[str] | None) -> Iterator[dict[str, Any]]:
        from datasets import load_dataset

        address = f"hf://datasets/{repository.name}@{self._revision(repository)}/{files}"
        with _hub_errors(repository):
            stream = load_dataset("parquet", data_files=address, split="train", streaming=True, columns=columns)
            yield from stream


def _commit(repository: Repository) -> str:
    from huggingface_hub import HfApi

    with _hub_errors(repository):
        commit = HfApi().repo_info(repository.name, revision=repository.branch, repo_type=repository.kind).sha
    assert commit is not None
    return commit


def _downloaded(repository: Repository, revision: str, cache: Path) -> Path:
    """The folder below `cache` with a file of a model repository."""
    from huggingface_hub import hf_hub_download

    folder = cache / f"{repository.name.replace('/', '--')}-{revision}"
    if not (folder / repository.files).is_file():
        with _hub_errors(repository):
            hf_hub_download(repository.name, repository.files, revision=revision, local_dir=folder)
    return folder


@contextmanager
def _hub_errors(repository: Repository) -> Iterator[None]:
    """Whatever keeps the hub from answering, as one sentence."""
    from huggingface_hub.errors import HTTPError

    try:
        yield
    except (OSError, HTTPError) as error:
        reason = str(error).partition("\n")[0]
        raise MissingData(
            f"{repository.name} cannot be read from the hub ({type(error).__name__}: {reason}): go online, log in if "
            f"it is gated, or pass a prefetched folder with --data"
        ) from error
