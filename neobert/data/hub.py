"""What lies on the Hugging Face hub: which repository, which files, which column. Torch-free, and asks nobody.

Runs do not read the hub: `ablations/prefetch.py` brings what they need into a folder that keeps the hub's identity, so
that a job never waits for a network. A revision is unknown until prefetch asked for it, never invented.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from neobert.data.corpora import CORPORA, TASK_SPLITS, TOKENIZERS, known, known_split
from neobert.data.mteb_repositories import MTEB_REPOSITORIES
from neobert.data.pair_repositories import DECLARED_SETS, DeclaredSet
from neobert.data.pairs import Pair
from neobert.data.repositories import Repository
from neobert.data.tokenizers import TOKENIZER_FILE, TextTokenizer
from neobert.embeddings.tasks import MTEB_ENGLISH_V1, OFFICIAL_TASKS, EmbeddingTask, member_names
from neobert.errors import MissingData

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


HUB = "hub:"


def hub_origin(revisions: Iterable[tuple[str, str]]) -> str:
    """The identity of files of the hub, from the (repository, revision) of each."""
    return HUB + "+".join(f"{name}@{revision}" for name, revision in sorted(set(revisions)))


def is_from_hub(origin: str) -> bool:
    """Whether an identity is that of files of the hub, or of a part of them."""
    return origin.startswith(HUB)


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
