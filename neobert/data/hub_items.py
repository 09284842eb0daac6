"""What a plan needs from the hub, as items: corpora, tokenizers, tasks, data sets of pairs, models. Torch-free.

An item names its repositories and the place of each of their files in the DIRECTORY layout.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Literal

from neobert.data.corpora import CORPORA, TASK_SPLITS, TOKENIZERS, known
from neobert.data.hub import CORPUS_REPOSITORIES, GLUE, TOKENIZER_REPOSITORIES
from neobert.data.mteb_repositories import MTEB_REPOSITORIES
from neobert.data.pair_repositories import DECLARED_SETS
from neobert.data.repositories import Repository
from neobert.data.tokenizers import FOLDERS

MODELS = "models"
"""The folder of models from elsewhere."""


@dataclass(frozen=True)
class ModelParts:
    """The repositories of a model from elsewhere and of its tokenizer, and files of others that are to lie beside."""

    repository: str
    tokenizer: str
    beside: tuple[Repository, ...] = ()

    def parts(self) -> Iterator["Part"]:
        """What is read of a model: safetensors or, where there are none, the pickle; code only where it is named."""
        own = Repository(self.repository, "config.json", kind="model")
        yield Part(own)
        yield Part(replace(own, files="model*.safetensors"), otherwise="pytorch_model.bin")
        yield Part(Repository(self.tokenizer, "tokenizer*", kind="model"))
        yield Part(replace(own, files="model.safetensors.index.json"), is_optional=True)
        for name in ("special_tokens_map.json", "added_tokens.json"):
            yield Part(Repository(self.tokenizer, name, kind="model"), is_optional=True)
        yield from map(Part, self.beside)


@dataclass(frozen=True)
class Needs:
    """What the units of a plan read, by the recipes' words; a tokenizer with the rows that an embedding has for it, a
    model from elsewhere with what is read of it."""

    corpora: tuple[str, ...] = ()
    tokenizers: Mapping[str, int] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    embedding_tasks: tuple[str, ...] = ()
    pair_sets: tuple[str, ...] = ()
    models: Mapping[str, ModelParts] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """Files of one repository. `file` is the name that a single file gets; None keeps the hub's names. Where there are
    none, the files of the pattern `otherwise` are taken; a part that `is_optional` may be empty."""

    repository: Repository
    file: str | None = None
    with_repository: bool = False
    otherwise: str | None = None
    is_optional: bool = False

    def place(self, name: str) -> str:
        """Where a file of the repository goes, below the item's folder."""
        if self.file is not None:
            return self.file
        if self.with_repository:
            return f"{self.repository.name.replace('/', '--')}--{PurePosixPath(name).name}"
        return name


@dataclass(frozen=True)
class Item:
    """A thing to bring: the recipes' word for it, its folder, and where its files come from.

    `embedding_rows` is what a tokenizer's vocabulary must fit into.
    """

    kind: Literal["corpus", "tokenizer", "GLUE task", "MTEB task", "data set of pairs", "model"]
    word: str
    folder: str
    parts: tuple[Part, ...]
    embedding_rows: int | None = None

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.kind} {self.word}"

    @property
    def repositories(self) -> str:
        """The repositories it comes from, for people."""
        return " and ".join(dict.fromkeys(part.repository.name for part in self.parts))


def items_of(needs: Needs) -> Iterator[Item]:
    """The items behind a plan's needs, small ones first, so that a missing token is told before the terabytes."""
    for word, rows in needs.tokenizers.items():
        repository = TOKENIZER_REPOSITORIES[known(word, TOKENIZERS, "tokenizer")]
        yield Item("tokenizer", word, f"tokenizers/{FOLDERS[word]}", (Part(repository),), rows)
    for word in needs.tasks:
        yield Item("GLUE task", word, f"glue/{word}", tuple(_splits(known(word, tuple(TASK_SPLITS), "task"))))
    for word in needs.embedding_tasks:
        name, commit = MTEB_REPOSITORIES[known(word, tuple(MTEB_REPOSITORIES), "MTEB task")]
        yield Item("MTEB task", word, f"mteb/{word}", (Part(Repository(name, "*", branch=commit)),))
    for word in needs.pair_sets:
        declared = DECLARED_SETS[known(word, tuple(DECLARED_SETS), "data set of pairs")]
        yield Item("data set of pairs", word, f"pairs/{word}", tuple(map(Part, declared.repositories)))
    for word, model in needs.models.items():
        yield Item("model", word, f"{MODELS}/{word}", tuple(model.parts()))
    for word in needs.corpora:
        repositories = CORPUS_REPOSITORIES[known(word, CORPORA, "corpus")]
        parts = tuple(Part(repository, with_repository=True) for repository in repositories)
        yield Item("corpus", word, f"corpora/{word}", parts)


def _splits(task: str) -> Iterator[Part]:
    for split in TASK_SPLITS[task]:
        yield Part(replace(GLUE, files=GLUE.files.format(task=task, split=split)), f"{split}.parquet")
