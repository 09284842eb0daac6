"""Which tasks of embeddings there are, where their data come from, and one sentence for whatever is wrong with them."""

import re
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from neobert.data import synthetic
from neobert.data.mteb_tasks import (
    BENCHMARKS,
    CATEGORIES,
    CATEGORY_FACTS,
    ENGLISH_SUITE,
    ENGLISH_SUITE_V2,
    MTEB_REPOSITORIES,
    OFFICIAL_TASKS,
    EmbeddingTask,
    PublishedTask,
    Table,
    Wording,
    chosen_tasks,
    member_names,
    members_of,
    suites_of,
    task_prompts,
)
from neobert.data.sources import DirectorySource, HubSource, SyntheticSource
from neobert.data.synthetic.world import part
from neobert.errors import MissingData
from neobert.kinds.mteb import TASKS_IN_SUITE
from tests.embeddings.embedding_worlds import SIMILAR, card_of, content_words, write_published

WORLD = SyntheticSource(10)
MTEB_ENGLISH_V1 = BENCHMARKS[ENGLISH_SUITE]


@pytest.fixture(scope="module")
def said_by_mteb(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[Any]]]:
    """What the mteb that is installed says of each task of its benchmarks."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("MTEB_CACHE", str(tmp_path_factory.mktemp("mteb")))
        mteb = pytest.importorskip("mteb")
        from mteb.abstasks.abstask import get_abstask_prompt

        def said(task: Any) -> list[Any]:
            metadata = task.metadata
            parts = [one.metadata for one in metadata.tasks] if task.is_aggregate else [metadata]
            members = [part.name for part in parts] if task.is_aggregate else []
            places = {part.name: (part.dataset["path"], part.dataset["revision"]) for part in parts}
            prompt = parts[0].prompt
            told = (prompt["query"] if isinstance(prompt, dict) else prompt) or get_abstask_prompt(parts[0].name)
            return [metadata.type, metadata.main_score, list(task.eval_splits), members, told, places]

        return {
            suite: {task.metadata.name: said(task) for task in mteb.get_benchmark(suite).tasks} for suite in BENCHMARKS
        }


def test_the_56_tasks_are_those_of_the_table() -> None:
    assert Counter(task.category for task in MTEB_ENGLISH_V1) == TASKS_IN_SUITE
    assert len(MTEB_ENGLISH_V1) == 56 and {task.suite for task in MTEB_ENGLISH_V1} == {ENGLISH_SUITE}
    members = {name for task in MTEB_ENGLISH_V1 for name in member_names(task)}
    assert members == set(members_of(None)) == set(members_of([ENGLISH_SUITE]))
    assert members | set(members_of([ENGLISH_SUITE_V2])) == set(MTEB_REPOSITORIES)


@pytest.mark.parametrize("suite", BENCHMARKS)
def test_benchmarks_are_what_mteb_says(suite: str, said_by_mteb: dict[str, dict[str, list[Any]]]) -> None:
    own = {
        task.name: [task.category, task.metric, [task.split], list(task.members), told(task, "mteb")]
        for task in BENCHMARKS[suite]
    }
    categories = {facts.task_type: category for category, facts in CATEGORY_FACTS.items()}
    theirs = {name: [categories[kind], *said] for name, (kind, *said, _) in said_by_mteb[suite].items()}
    assert own == theirs
    assert len(OFFICIAL_TASKS["CQADupstackRetrieval"].members) == 12 and OFFICIAL_TASKS["MSMARCO"].split == "dev"
    places = {name: place for *_, parts in said_by_mteb[suite].values() for name, place in parts.items()}
    assert places == {name: MTEB_REPOSITORIES[name] for name in members_of([suite])}


def test_tasks_of_both_benchmarks_are_one_task_of_v1() -> None:
    v1, v2 = BENCHMARKS.values()
    shared = set(v1) & set(v2)
    assert (len(v2), len(shared), {task.suite for task in shared}) == (41, 25, {ENGLISH_SUITE})
    assert {task.suite for task in set(v2) - shared} == {ENGLISH_SUITE_V2}
    assert suites_of("STS12", ENGLISH_SUITE) == (ENGLISH_SUITE, ENGLISH_SUITE_V2)
    assert suites_of("STS16", ENGLISH_SUITE) == (ENGLISH_SUITE,)
    assert suites_of("STS22.v2", ENGLISH_SUITE_V2) == (ENGLISH_SUITE_V2,)
    assert suites_of("SyntheticSentenceSimilarity", "synthetic") == ("synthetic",)


def test_tasks_are_chosen_by_name_in_the_suites_order() -> None:
    assert chosen_tasks(MTEB_ENGLISH_V1, None) == chosen_tasks(MTEB_ENGLISH_V1, ["all"]) == MTEB_ENGLISH_V1
    chosen = chosen_tasks(MTEB_ENGLISH_V1, ["STS13", "ArguAna", "STS12"])
    assert [task.name for task in chosen] == ["ArguAna", "STS12", "STS13"]


TO_BRING = "download it with `python ablations/prefetch.py … --stages mteb --benchmark 'MTEB(eng, v2)'`"
HERE = "task STS12 of MTEB(eng, v1) is not in this data: here are Synthetic"


@pytest.mark.parametrize(
    ("available", "choice", "error", "said"),
    [
        (MTEB_ENGLISH_V1, (["STS112"],), ValueError, "there is no task 'STS112': did you mean 'STS12'"),
        (MTEB_ENGLISH_V1, (["Banking77"],), ValueError, "did you mean 'Banking77Classification'"),
        (WORLD.embedding_tasks(), (None, [ENGLISH_SUITE_V2]), MissingData, TO_BRING),
        (WORLD.embedding_tasks(), (["STS12"],), MissingData, HERE),
    ],
)
def test_a_choice_that_cannot_be_met_is_one_sentence(available, choice, error, said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        chosen_tasks(available, *choice)


def told(task: EmbeddingTask, wording: Wording) -> str:
    """What queries, or all texts where there are no queries, stand behind."""
    return task_prompts(task, "queries", wording)["query"]


def test_an_encoder_is_told_what_it_was_told_in_fine_tuning() -> None:
    task = OFFICIAL_TASKS["ClimateFEVER"]
    paper = "Given a claim about climate change, retrieve documents that support or refute the claim."
    assert task_prompts(task, "nothing") == {}
    assert task_prompts(task, "queries") == {"query": paper}
    assert task_prompts(task, "queries_and_documents") == {"query": paper, "document": paper}
    assert task_prompts(task, "queries", "mteb") == {"query": paper[:-1]}
    code = {"query": f"{paper} Claim:", "document": f"{paper} Document:"}
    assert task_prompts(task, "queries_and_documents", "code") == code
    assert task_prompts(task, "nothing", "code") == {}


def test_the_papers_tables_are_taken_as_printed() -> None:
    """Where rows of Tables 8 and 9 stand for several tasks, and where they differ from mteb and from the code."""
    by_wording = {
        wording: {task.name: told(task, wording) for task in MTEB_ENGLISH_V1} for wording in get_args(Wording)
    }
    paper, mteb, code = by_wording["paper"], by_wording["mteb"], by_wording["code"]
    archives = "Identify the main and secondary category of {} papers based on their titles{}."
    for archive in ("Arxiv", "Biorxiv", "Medrxiv"):
        assert paper[f"{archive}ClusteringS2S"] == archives.format(archive, "")
        assert paper[f"{archive}ClusteringP2P"] == archives.format(archive, " and abstracts")
    sts = {paper[task.name] for task in MTEB_ENGLISH_V1 if task.category == "sts" and task.name != "BIOSSES"}
    assert sts == {"Retrieve semantically similar text."}
    assert paper["BIOSSES"] == "Retrieve semantically similar text from the biomedical field."
    assert paper["Banking77Classification"] == "Given a online banking query, find the corresponding intents."
    assert paper["SciDocsRR"] == "Given a title of a scientific paper, retrieve the relevant papers."
    assert all(text.endswith(".") for text in paper.values())
    other = Counter(
        task.category for task in MTEB_ENGLISH_V1 if paper[task.name].rstrip(" .") != mteb[task.name].rstrip(" .")
    )
    assert (other["classification"], other["clustering"], other.total()) == (11, 10, 27)
    assert [name for name in paper if not code[name].startswith(paper[name].rstrip(" ."))] == [
        *("BiorxivClusteringP2P", "BiorxivClusteringS2S", "MedrxivClusteringP2P", "MedrxivClusteringS2S"),
        "SciDocsRR",
    ]


def test_tasks_of_v2_alone_have_mtebs_instructions_and_its_forums_those_of_the_whole() -> None:
    wordings: tuple[Wording, ...] = get_args(Wording)
    for task in set(BENCHMARKS[ENGLISH_SUITE_V2]) - set(MTEB_ENGLISH_V1):
        told_in = {wording: task_prompts(task, "queries_and_documents", wording) for wording in wordings}
        if task.name.startswith("CQADupstack"):
            whole = OFFICIAL_TASKS["CQADupstackRetrieval"]
            assert told_in == {name: task_prompts(whole, "queries_and_documents", name) for name in wordings}
        else:
            assert told_in["paper"] == told_in["mteb"] == told_in["code"] != {}, task.name


def test_other_tasks_have_one_instruction_in_every_wording() -> None:
    for task in WORLD.embedding_tasks():
        assert {told(task, wording) for wording in get_args(Wording)} == {task.instruction}


def test_the_synthetic_world_has_a_task_of_each_category_that_is_none_of_the_56() -> None:
    assert {task.category for task in WORLD.embedding_tasks()} == set(CATEGORIES)
    assert not {task.name for task in WORLD.embedding_tasks()} & OFFICIAL_TASKS.keys()
    assert ENGLISH_SUITE not in {task.suite for task in WORLD.embedding_tasks()}


def words_of(tables: Mapping[str, Table], *only: str) -> set[str]:
    texts = [
        text
        for name, table in tables.items()
        for column, values in table.items()
        if (not only or name in only) and isinstance(values[0], str | list) and not column.endswith("id")
        for value in values
        for text in ([value] if isinstance(value, str) else value)
        if isinstance(text, str)
    ]
    return {word for text in texts for word in text.split()}


def test_synthetic_tasks_share_no_content_word_with_the_pairs_to_train_on() -> None:
    trained = {
        word
        for name in synthetic.PAIR_SETS
        for pair in synthetic.pairs(name)
        for text in pair[:2]
        for word in text.split()
    }
    taught = content_words(part("train"))
    assert trained & taught
    for task in WORLD.embedding_tasks():
        words = words_of(WORLD.embedding_task_data(task.name), *(["test"] if task.category == "classification" else []))
        assert not words & taught and words & content_words(part("validation")), task.name


def test_the_hub_has_mtebs_tasks_at_its_commits_and_says_what_brings_them() -> None:
    assert HubSource().embedding_tasks() == tuple(OFFICIAL_TASKS.values())
    name, commit = MTEB_REPOSITORIES["STS12"]
    assert HubSource().embedding_task_origin("STS12") == f"hub:{name}@{commit}"
    assert HubSource().embedding_task_origin("CQADupstackRetrieval").count("@") == 12
    with pytest.raises(MissingData, match=r"STS12 is not here.*prefetch\.py --variant all .*--stages mteb"):
        HubSource().embedding_task_data("STS12")


def test_what_prefetch_brought_has_the_hubs_identity_and_must_be_whole(tmp_path: Path) -> None:
    assert DirectorySource(tmp_path).embedding_tasks() == ()
    write_published(tmp_path, "STS12", {"data/test.parquet": SIMILAR}, card_of(default__test="data/test.parquet"))
    source = DirectorySource(tmp_path)
    assert source.embedding_tasks() == (OFFICIAL_TASKS["STS12"],)
    assert source.embedding_task_origin("STS12") == HubSource().embedding_task_origin("STS12")
    assert source.embedding_task_data("STS12") == PublishedTask({"STS12": tmp_path / "mteb" / "STS12"})
    (tmp_path / "mteb/STS12/data/test.parquet").unlink()
    with pytest.raises(MissingData, match=r"task STS12 lacks 1 of the 2 files .*first: mteb/STS12/data/test\.parquet"):
        DirectorySource(tmp_path).embedding_task_origin("STS12")


def test_a_task_of_several_repositories_is_there_when_all_are(tmp_path: Path) -> None:
    *most, last = OFFICIAL_TASKS["CQADupstackRetrieval"].members
    for member in most:
        write_published(tmp_path, member, {}, "")
    forums = tuple(OFFICIAL_TASKS[f"CQADupstack{forum}Retrieval"] for forum in ("Gaming", "Unix"))
    assert DirectorySource(tmp_path).embedding_tasks() == forums, "those are tasks of v2 by themselves"
    write_published(tmp_path, last, {}, "")
    found = DirectorySource(tmp_path).embedding_tasks()
    assert found == (OFFICIAL_TASKS["CQADupstackRetrieval"], *forums)
    assert chosen_tasks(found, None) == found[:1]
