"""Tasks of embeddings measured by mteb: scores that tell encoders apart, kept for its tools, lost by no kill."""

import json
import socket
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from neobert.data.download import Needs, download, items_of, select
from neobert.data.mteb_tasks import MTEB_REPOSITORIES, OFFICIAL_TASKS, EmbeddingTask
from neobert.data.sources import DirectorySource, SyntheticSource
from neobert.embeddings.encoders import TextCounts
from neobert.embeddings.evaluation import measure_task
from neobert.errors import DamagedFile, MissingData, RunFailed
from neobert.export.checkpoint import open_checkpoint
from neobert.files import sha256_of
from neobert.identity import NUMERICS
from neobert.processes import StopRequest
from tests.ablations.hub_stand_in import StandIn, StandInRepository, parquet_bytes
from tests.embeddings.embedding_worlds import (
    SENTENCES,
    KnowsTheWorld,
    RandomVectors,
    card_of,
    named,
    own_tables,
    seeded,
    write_own_tasks,
    write_published,
)
from tests.support.exported_runs import write_checkpoints
from tests.support.small_corpora import write_table
from tests.support.tiny_runs import tiny_run

if TYPE_CHECKING:
    from neobert.embeddings.mteb import TaskScore

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


def scores_of(encoder: RandomVectors, results: Path) -> dict[str, float]:
    return {name: measure_task(named(encoder), task, WORLD, results).score for name, task in TASKS.items()}


def test_the_synthetic_suite_tells_who_knows_the_world_from_random_vectors(tmp_path: Path) -> None:
    knowing, random = scores_of(KnowsTheWorld(), tmp_path / "known"), scores_of(RandomVectors(), tmp_path / "random")
    assert all(knowing[name] > random[name] + 0.3 for name in TASKS), (knowing, random)
    assert all(score > 0.7 for score in knowing.values()), knowing


def raising(error: BaseException, after: int = 0) -> Callable[..., None]:
    """What raises whenever it is called, but for some first times."""
    called = count()

    def call(*_: object, **__: object) -> None:
        if next(called) >= after:
            raise error

    return call


UNTOUCHABLE = RandomVectors(before=raising(AssertionError("encoded again")))


def test_what_was_measured_is_read_again_and_nothing_is_encoded(tmp_path: Path) -> None:
    first = measure_task(named(RandomVectors()), SIMILARITY, WORLD, tmp_path)
    assert first.counts.texts == 600 and first.metrics["cosine_spearman"] == first.score and first.seconds > 0
    assert measure_task(named(UNTOUCHABLE), SIMILARITY, WORLD, tmp_path) == first
    (path,) = tmp_path.rglob(f"{SIMILARITY.name}.json")
    content = json.loads(path.read_bytes())
    assert content.pop("numerics")
    path.write_text(json.dumps(content))
    assert measure_task(named(UNTOUCHABLE), SIMILARITY, WORLD, tmp_path) == first, "the first numerics had no number"


@pytest.mark.parametrize("other", ["weights", "prompts", "data", "mteb", "numerics"])
def test_scores_of_other_weights_prompts_data_mteb_or_numerics_are_not_reused(
    tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_task(named(RandomVectors()), SIMILARITY, WORLD, tmp_path)
    if other == "data":
        monkeypatch.setattr(SyntheticSource, "_world", "synthetic:other")
    if other == "mteb":
        for path in tmp_path.rglob(f"{SIMILARITY.name}.json"):
            path.write_text(path.read_text().replace('"mteb_version": "', '"mteb_version": "1'))
    if other == "numerics":
        monkeypatch.setitem(NUMERICS, "model", NUMERICS["model"] + 1)
    revision = "another" if other == "weights" else "0123456789ab"
    prompts = {"query": "find"} if other == "prompts" else {}
    with pytest.raises(AssertionError, match="encoded again"):
        measure_task(named(UNTOUCHABLE, revision), SIMILARITY, WORLD, tmp_path, prompts)


@pytest.mark.filterwarnings("ignore")
def test_mtebs_own_tools_read_the_results(tmp_path: Path, mteb: ModuleType) -> None:
    source = published_similarity(tmp_path / "data")
    measured = measure_task(named(RandomVectors()), OFFICIAL_TASKS["STS12"], source, tmp_path / "results")
    told = measure_task(
        named(RandomVectors()), OFFICIAL_TASKS["STS12"], source, tmp_path / "results", {"query": "find"}
    )
    cache = mteb.ResultCache(tmp_path / "results")
    found = cache.load_task_result("STS12", "neobert/tested", "0123456789ab", raise_if_not_found=True)
    assert found.get_score() == measured.score and found.task.metadata.name == "STS12"
    loaded = cache.load_results(tasks=["STS12"], include_remote=False, load_experiments="match_name")
    scores = sorted(result.task_results[0].get_score() for result in loaded.model_results)
    assert scores == sorted([measured.score, told.score]) and measured.score != told.score
    assert "STS12" in str(loaded.to_dataframe())


def published_similarity(folder: Path, **changes: Any) -> DirectorySource:
    """A folder with a small STS12, as prefetch leaves it."""
    table = own_tables()["STS/Similar"]["test"] | changes
    write_published(folder, "STS12", {"data/test.parquet": table}, card_of(default__test="data/test.parquet"))
    return DirectorySource(folder)


@pytest.mark.parametrize("share", [0.0, 0.7])
def test_a_torn_result_is_measured_again(tmp_path: Path, share: float) -> None:
    first = measure_task(named(RandomVectors()), SIMILARITY, WORLD, tmp_path)
    (path,) = tmp_path.rglob(f"{SIMILARITY.name}.json")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    again = measure_task(named(RandomVectors()), SIMILARITY, WORLD, tmp_path)
    assert (again.score, again.metrics, again.counts) == (first.score, first.metrics, first.counts)
    assert json.loads(path.read_bytes())["task_name"] == SIMILARITY.name


def test_no_score_that_is_no_number_is_kept(tmp_path: Path) -> None:
    """Of an encoder that has collapsed."""
    encoder = RandomVectors(lambda text: np.full(96, 1, np.float32))
    with pytest.raises(RunFailed, match="has the score nan, which is outside"):
        measure_task(named(encoder), SIMILARITY, WORLD, tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_metrics_that_do_not_apply_are_left_out(tmp_path: Path) -> None:
    write_own_tasks(tmp_path)
    table = own_tables()["Classification/Cats"]["train"]
    for part in ("train", "test"):
        changed = {**table, "label": [number % 3 for number in range(12)]}
        write_table(tmp_path / "mteb/Classification/Cats" / f"{part}.parquet", changed)
    measured = measured_in(tmp_path, "Cats")
    assert "ap" not in measured.metrics and np.isfinite(list(measured.metrics.values())).all()
    (path,) = (tmp_path / "results").rglob("Cats.json")
    assert "NaN" not in path.read_text()


def measured_in(folder: Path, name: str, encoder: RandomVectors | None = None) -> "TaskScore":
    source = DirectorySource(folder)
    task = next(task for task in source.embedding_tasks() if task.name == name)
    return measure_task(named(encoder or RandomVectors()), task, source, folder / "results")


def test_own_tasks_of_every_category_give_the_scores_that_they_have_by_hand(tmp_path: Path) -> None:
    """Against numpy and scipy: an encoder whose vectors are drawn, so that nothing comes out right by accident."""
    write_own_tasks(tmp_path)
    measured = {task.name: measured_in(tmp_path, task.name) for task in DirectorySource(tmp_path).embedding_tasks()}
    vector = RandomVectors().vector

    def cosine(first: str, second: str) -> float:
        one, two = vector(first), vector(second)
        return float(one @ two / np.linalg.norm(one) / np.linalg.norm(two))

    table = own_tables()["STS/Similar"]["test"]
    pairs = list(zip(table["sentence1"], table["sentence2"], strict=True))
    assert measured["Similar"].score == pytest.approx(
        spearmanr([cosine(*pair) for pair in pairs], table["score"])[0], abs=1e-6
    )

    def gain(query: str, right: str, *wrong: str) -> float:
        return 1 / np.log2(2 + sum(cosine(query, other) > cosine(query, right) for other in wrong))

    found = np.mean([gain("q", "the q", "", "t the r"), gain("r", "t the r", "the q", "")])
    assert measured["Found"].score == pytest.approx(found, abs=1e-5)

    def precision(query: str, right: str, *wrong: str) -> float:
        return 1 / (1 + sum(cosine(query, other) > cosine(query, right) for other in wrong))

    ranked = np.mean([precision("q", "the q", "a", "b"), precision("r", "the r", "c")])
    assert measured["Answers"].score == pytest.approx(ranked, abs=1e-5)
    assert measured["Found"].counts == TextCounts(texts=5, empty=1)
    assert measured["Cats"].score == 1.0, "the texts to test on are those to learn from"
    assert measured["Short"].score in (-1.0, 0.0, 1.0), "two machine summaries rank either way, on average"


@pytest.mark.parametrize("labels", [(-1, 5), ("no", "yes"), (False, True)])
def test_two_labels_have_the_same_score_whatever_they_are_called(tmp_path: Path, labels: tuple[object, object]) -> None:
    scores = []
    for called in ((0, 1), labels):
        folder = tmp_path / str(called)
        for part in ("train", "test"):
            column = [called[number % 2] for number in range(12)]
            write_table(folder / f"mteb/Classification/Cats/{part}.parquet", {"text": SENTENCES, "label": column})
        source = DirectorySource(folder)
        found = measure_task(named(RandomVectors()), source.embedding_tasks()[0], source, folder / "results")
        scores.append((found.score, found.metrics["f1"], found.metrics["ap"]))
    assert scores[0] == scores[1]


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
    table = own_tables()["STS/Similar"]["test"]
    files = {
        "README.md": card_of(default__test="data/test.parquet").encode(),
        "data/test.parquet": parquet_bytes(table),
    }
    hub.repositories[f"datasets/{name}"] = StandInRepository(files, commit)
    (item,) = items_of(Needs(embedding_tasks=("STS12",)))
    assert not download(tmp_path, select(tmp_path, [item]), workers=1)
    write_table(tmp_path / "mteb/STS/Similar/test.parquet", table)
    monkeypatch.setattr(socket, "socket", raising(AssertionError("a socket was opened")))
    published, own = measured_in(tmp_path, "STS12"), measured_in(tmp_path, "Similar")
    assert published.score == own.score and published.revision == commit


def write_v2_tasks(folder: Path) -> None:
    """Tasks of MTEB(eng, v2) alone, one of each class and form of data that v1 does not have."""
    texts = [f"text {number} of the subject {number % 3}" for number in range(2100)]
    labels = {
        "ArXivHierarchicalClusteringS2S": [f"{number % 3}.{number % 6}" for number in range(2100)],
        "MedrxivClusteringS2S.v2": [str(number % 3) for number in range(2100)],
    }
    for task, of_texts in labels.items():
        tables = {"test.parquet": {"sentences": [texts], "labels": [of_texts]}}
        write_published(folder, task, tables, card_of(default__test="test.parquet"))
    found = own_tables()["Retrieval/Found"]
    found["corpus"]["title"] = [""] * 3
    parts = {"corpus": "corpus", "queries": "queries_test", "default": "qrels_test"}
    card = card_of(corpus__corpus="corpus.parquet", queries__queries="queries.parquet", default__test="default.parquet")
    tables = {f"{name}.parquet": found[table] for name, table in parts.items()}
    write_published(folder, "FEVERHardNegatives", tables, card)
    similar = {"sentence1": list("abcdef"), "sentence2": list("ghijkl"), "score": range(1, 7), "lang": ["en"] * 6}
    summaries = own_tables()["Summarization/Short"]["test"]
    for task, table in (("STS22.v2", similar), ("SummEvalSummarization.v2", summaries)):
        write_published(folder, task, {"test.parquet": table}, card_of(default__test="test.parquet"))


def test_tasks_of_v2_alone_are_measured_alike_whatever_a_process_measured_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mteb.abstasks import AbsTaskClustering

    monkeypatch.setattr(AbsTaskClustering, "max_documents_per_cluster", 64)
    write_v2_tasks(tmp_path)
    source = DirectorySource(tmp_path)

    def scores(encoder: RandomVectors, place: str) -> dict[str, float]:
        tasks = source.embedding_tasks()
        return {task.name: measure_task(named(encoder), task, source, tmp_path / place).score for task in tasks}

    knowing = scores(RandomVectors(lambda text: seeded(text.rpartition(" ")[2])), "knowing")  # a text is its last word
    assert knowing["MedrxivClusteringS2S.v2"] == 1.0 > knowing["ArXivHierarchicalClusteringS2S"] > 0.7
    assert knowing["FEVERHardNegatives"] == 1.0 and len(knowing) == 5
    random = scores(RandomVectors(), "random")
    assert random["MedrxivClusteringS2S.v2"] < 0.2 and scores(RandomVectors(), "again") == random


def test_tables_of_another_folder_of_the_same_name_are_not_taken_for_its_own(tmp_path: Path) -> None:
    for name, step in (("one", 1), ("two", -1)):
        published_similarity(tmp_path / name, score=own_tables()["STS/Similar"]["test"]["score"][::step])
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


def write_forums(folder: Path, task: EmbeddingTask) -> None:
    """Twelve forums of different questions."""
    card = card_of(
        default__test="qrels/test.parquet", corpus__corpus="corpus.parquet", queries__queries="queries.parquet"
    )
    for forum in task.members:
        texts = [f"{forum} answer {number}" for number in range(5)]
        tables = {
            "corpus.parquet": {"_id": [f"d{number}" for number in range(5)], "title": [""] * 5, "text": texts},
            "queries.parquet": {"_id": ["q0", "q1"], "text": [f"{forum} first", f"{forum} second"]},
            "qrels/test.parquet": {"query-id": ["q0", "q1"], "corpus-id": ["d0", "d1"], "score": [1, 1]},
        }
        write_published(folder, forum, tables, card)


def test_twelve_forums_are_one_task_that_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    task = OFFICIAL_TASKS["CQADupstackRetrieval"]
    write_forums(tmp_path, task)
    with pytest.raises(KeyboardInterrupt):
        measured_in(tmp_path, task.name, RandomVectors(before=raising(KeyboardInterrupt(), after=7)))
    kept = {path.stem for path in (tmp_path / "results").rglob("*Retrieval.json")}
    assert kept == set(task.members[:3]), "two calls a forum"
    whole = measured_in(tmp_path, task.name, RandomVectors(before=raising(KeyboardInterrupt(), after=2 * 9)))
    forums = [json.loads(path.read_text()) for path in (tmp_path / "results").rglob("CQADupstack*Retrieval.json")]
    scores = {found["task_name"]: found["scores"]["test"][0]["main_score"] for found in forums}
    assert scores.keys() == {*task.members, task.name}
    assert whole.score == pytest.approx(np.mean([scores[forum] for forum in task.members]), abs=1e-6)
    assert whole.counts.texts == 12 * 7 and len(set(scores.values())) > 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mteb_finds_no_fault_with_the_encoder(mteb: ModuleType, tmp_path: Path) -> None:
    from mteb.results import TaskResult

    from neobert.embeddings.mteb import MtebModel

    checkpoint = open_checkpoint(write_checkpoints(tmp_path / "runs", tiny_run(), 0), 0)
    by = checkpoint.embedder
    found = mteb.mock_run(MtebModel(named(by, checkpoint.run.id), {"query": "find"}, StopRequest()))
    ran = {name: result for name, result in found.items() if result is not None}
    failed = {name: result for name, result in ran.items() if not isinstance(result, TaskResult)}
    assert not failed and len(ran) >= 20
