"""Tasks of embeddings measured by mteb: scores that tell encoders apart, and that its tools read."""

import socket
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from neobert.data.download import Needs, download, items_of, select
from neobert.data.mteb_tasks import MTEB_REPOSITORIES, OFFICIAL_TASKS
from neobert.data.sources import DirectorySource, SyntheticSource
from neobert.errors import DamagedFile, MissingData, RunFailed
from neobert.export.checkpoint import open_checkpoint
from neobert.files import sha256_of
from neobert.processes import StopRequest
from tests.ablations.hub_stand_in import StandIn, StandInRepository, parquet_bytes
from tests.embeddings.embedding_worlds import (
    SENTENCES,
    SIMILAR,
    KnowsTheWorld,
    RandomVectors,
    card_of,
    named,
    seeded,
    write_published,
)
from tests.support.exported_runs import write_checkpoints
from tests.support.tiny_runs import tiny_run

if TYPE_CHECKING:
    from neobert.embeddings.mteb import TaskScore

pytestmark = pytest.mark.filterwarnings("ignore")
WORLD = SyntheticSource(10)
TASKS = {task.name: task for task in WORLD.embedding_tasks()}
SIMILARITY = TASKS["SyntheticSentenceSimilarity"]


@pytest.fixture(scope="module", autouse=True)
def mteb(tmp_path_factory) -> Iterator[ModuleType]:
    """The package, imported with its own warnings left aside, and its cache in a folder of the tests."""
    pytest.importorskip("mteb", reason="mteb is not installed")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("MTEB_CACHE", str(tmp_path_factory.mktemp("mteb")))
        import mteb

        yield mteb


def measure_task(*arguments: Any) -> "TaskScore":
    """The function of the same name, imported after mteb."""
    from neobert.embeddings.mteb import measure_task

    return measure_task(*arguments)


def test_an_encoder_that_knows_the_synthetic_world_scores_far_above_chance(tmp_path: Path) -> None:
    """Chance is 0.5 in the tasks of two classes, and near 0 in the others."""
    scores = {name: measure_task(named(KnowsTheWorld()), task, WORLD, tmp_path).score for name, task in TASKS.items()}
    assert len(scores) == 7 and all(score > 0.7 for score in scores.values()), scores


def raising(error: BaseException) -> Callable[..., None]:
    """What raises whenever it is called."""

    def call(*_: object, **__: object) -> None:
        raise error

    return call


def test_the_score_is_spearmans_and_mtebs_own_cache_reads_it(tmp_path: Path, mteb: ModuleType) -> None:
    source, vector = published_similarity(tmp_path / "data"), RandomVectors().vector
    measured = measure_task(named(RandomVectors()), OFFICIAL_TASKS["STS12"], source, tmp_path / "results")
    one, two = (np.stack([vector(text) for text in SIMILAR[column]]) for column in ("sentence1", "sentence2"))
    cosines = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    assert measured.score == pytest.approx(spearmanr(cosines, SIMILAR["score"])[0], abs=1e-6)
    cache = mteb.ResultCache(tmp_path / "results")
    found = cache.load_task_result("STS12", "neobert/tested", "0123456789ab", raise_if_not_found=True)
    assert found.get_score() == measured.score == measured.metrics["cosine_spearman"] and measured.counts.texts == 12


def published_similarity(folder: Path, **changes: Any) -> DirectorySource:
    """A folder with a small STS12, as prefetch leaves it."""
    table = SIMILAR | changes
    write_published(folder, "STS12", {"data/test.parquet": table}, card_of(default__test="data/test.parquet"))
    return DirectorySource(folder)


def test_no_score_that_is_no_number_is_kept(tmp_path: Path) -> None:
    """Of an encoder that has collapsed."""
    encoder = RandomVectors(lambda text: np.full(96, 1, np.float32))
    with pytest.raises(RunFailed, match="has the score nan, which is outside"):
        measure_task(named(encoder), SIMILARITY, WORLD, tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_metrics_that_do_not_apply_are_left_out(tmp_path: Path) -> None:
    table = {"text": SENTENCES, "label": [number % 3 for number in range(12)]}
    files = {"train.parquet": table, "test.parquet": table}
    write_published(tmp_path, "Banking77Classification", files, "")
    measured = measured_in(tmp_path, "Banking77Classification")
    assert "ap" not in measured.metrics and np.isfinite(list(measured.metrics.values())).all()
    assert measured.score == 1.0, "the texts to test on are those to learn from"


def measured_in(folder: Path, name: str, encoder: RandomVectors | None = None) -> "TaskScore":
    source = DirectorySource(folder)
    task = next(task for task in source.embedding_tasks() if task.name == name)
    return measure_task(named(encoder or RandomVectors()), task, source, folder / "results")


def test_queries_and_documents_get_their_own_instructions(tmp_path: Path) -> None:
    told = {"query": "find", "document": "be found"}
    retrieving, alike = RandomVectors(), RandomVectors()
    measure_task(named(retrieving), TASKS["SyntheticParaphraseRetrieval"], WORLD, tmp_path, told)
    measure_task(named(alike), SIMILARITY, WORLD, tmp_path, told)
    assert retrieving.instructions == {"find", "be found"} and alike.instructions == {"find"}


def test_mteb_itself_reads_what_prefetch_brought_without_a_network(
    tmp_path: Path, hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, commit = MTEB_REPOSITORIES["STS12"]
    files = {
        "README.md": card_of(default__test="data/test.parquet").encode(),
        "data/test.parquet": parquet_bytes(SIMILAR),
    }
    hub.repositories[f"datasets/{name}"] = StandInRepository(files, commit)
    (item,) = items_of(Needs(embedding_tasks=("STS12",)))
    assert not download(tmp_path, select(tmp_path, [item]), workers=1)
    monkeypatch.setattr(socket, "socket", raising(AssertionError("a socket was opened")))
    assert measured_in(tmp_path, "STS12").revision == commit


def write_retrieval(folder: Path, task: str, documents: list[str], queries: list[str]) -> None:
    """A task of retrieval in which query i looks for document i."""
    card = card_of(corpus__corpus="corpus.parquet", queries__queries="queries.parquet", default__test="test.parquet")
    asked, found = ([f"{kind}{number}" for number in range(len(queries))] for kind in "qd")
    tables = {
        "corpus.parquet": {
            "_id": [f"d{number}" for number in range(len(documents))],
            "title": [""] * len(documents),
            "text": documents,
        },
        "queries.parquet": {"_id": asked, "text": queries},
        "test.parquet": {"query-id": asked, "corpus-id": found, "score": [1] * len(queries)},
    }
    write_published(folder, task, tables, card)


def test_a_task_that_draws_samples_is_measured_alike_whatever_a_process_measured_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of MTEB(eng, v2); a text is its last word."""
    from mteb.abstasks import AbsTaskClustering

    monkeypatch.setattr(AbsTaskClustering, "max_documents_per_cluster", 64)
    name, numbers = "ArXivHierarchicalClusteringS2S", range(2100)
    texts = [f"text {number} of the subject {number % 3}" for number in numbers]
    table = {"sentences": [texts], "labels": [[f"{number % 3}.{number % 6}" for number in numbers]]}
    write_published(tmp_path, name, {"test.parquet": table}, card_of(default__test="test.parquet"))
    one, again = (measured_in(tmp_path, name, RandomVectors(lambda text: seeded(text.split()[-1]))) for _ in range(2))
    assert again.score == one.score > 0.7


def test_tables_of_another_folder_of_the_same_name_are_not_taken_for_its_own(tmp_path: Path) -> None:
    for name, step in (("one", 1), ("two", -1)):
        published_similarity(tmp_path / name, score=SIMILAR["score"][::step])
    one, two = (measured_in(tmp_path / name, "STS12") for name in ("one", "two"))
    assert one.score == -two.score != 0


def test_a_published_repository_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    published_similarity(tmp_path)
    path = tmp_path / "mteb/STS12/data/test.parquet"
    whole = sha256_of(path)
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(MissingData, match=r"test\.parquet does not match its checksum"):
        measured_in(tmp_path, "STS12")
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace(whole, sha256_of(path)))  # as if the hub's own were so
    with pytest.raises(DamagedFile, match=r"STS12 in .*: prefetch it again") as damaged:
        measured_in(tmp_path, "STS12")
    assert "\n" not in str(damaged.value)


def test_what_an_encoder_refuses_is_told_with_the_task(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="task SyntheticSentenceSimilarity: text 0 is no text"):
        measure_task(named(RandomVectors(before=raising(ValueError("text 0 is no text")))), SIMILARITY, WORLD, tmp_path)


def test_twelve_forums_are_one_task_with_their_mean(tmp_path: Path) -> None:
    task, gains = OFFICIAL_TASKS["CQADupstackRetrieval"], []
    for forum in task.members:
        documents, queries = [f"{forum} answer {number}" for number in range(5)], [f"{forum} first", f"{forum} second"]
        write_retrieval(tmp_path, forum, documents, queries)
        asked, told = (np.stack([seeded(text) for text in texts]) for texts in (queries, documents))
        cosines = asked @ (told / np.linalg.norm(told, axis=1, keepdims=True)).T
        gains += [1 / np.log2(2 + (row > row[number]).sum()) for number, row in enumerate(cosines)]
    whole = measured_in(tmp_path, task.name)
    assert whole.score == pytest.approx(np.mean(gains), abs=1e-5) and whole.counts.texts == 12 * 7


@pytest.mark.slow
def test_mteb_finds_no_fault_with_the_encoder(mteb: ModuleType, tmp_path: Path) -> None:
    from mteb.results import TaskResult

    from neobert.embeddings.mteb import MtebModel

    checkpoint = open_checkpoint(write_checkpoints(tmp_path / "runs", tiny_run(), 0), 0)
    by = checkpoint.embedder
    found = mteb.mock_run(MtebModel(named(by, checkpoint.run.id), {"query": "find"}, StopRequest()))
    ran = {name: result for name, result in found.items() if result is not None}
    failed = {name: result for name, result in ran.items() if not isinstance(result, TaskResult)}
    assert not failed and len(ran) >= 20
