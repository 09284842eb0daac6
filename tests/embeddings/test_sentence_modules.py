"""A folder of sentence-transformers gives the vectors that the library gives, or is refused in one sentence."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ablations.recipe_runs import EmbeddingChoice, EncoderWeights, embedding_runs
from neobert.data.mteb_tasks import OFFICIAL_TASKS
from neobert.embeddings.encoders import TextCounts
from neobert.embeddings.evaluation import measure_task
from neobert.embeddings.sentence_modules import SentenceModules, read_sentence_modules
from neobert.executors.encoders import load_named_encoder
from neobert.executors.external import resolve_model, write_model_file
from neobert.kinds.mteb import EmbeddingEvaluation
from neobert.runs.kinds import read_records
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from sweeps import mteb_suite
from tests.embeddings.embedding_worlds import named
from tests.embeddings.tiny_suite import SMOKE, SOURCE_HERE, write_evaluation
from tests.support import external_models as world
from tests.support.tiny_runs import work

STS = "SyntheticSentenceSimilarity"
CPU = torch.device("cpu")
TEXTS = ["the cat sleeps", "", "a dog and a cat " * 20, "x", "the cat sleeps", "Ünïcode – 猫"]
POOLINGS = ("cls", "mean", "max", "mean_sqrt_len_tokens")
PROMPTS = {"query": "the bird ", "document": "a dog ", "STS12": "x ", "Classification": "stone "}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world.save(world.seeded(world.bert), tmp_path_factory.mktemp("plain") / "bert", token_types=True)


def saved_by_the_library(plain: Path, folder: Path, *, pooling: Any, normalize: bool, **options: Any) -> Path:
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    max_tokens = options.pop("max_tokens", None)
    modules = [Transformer(str(plain), max_seq_length=max_tokens), Pooling(16, pooling)]
    modules += [Normalize()] if normalize else []
    library.SentenceTransformer(modules=modules, device="cpu", **options).save_pretrained(str(folder))
    return folder


def older(plain: Path, folder: Path, changes: dict[str, Any] | None = None) -> Path:
    """Files as the library wrote them before its sixth version; `changes` are by file."""
    shutil.copytree(plain, folder)
    places = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for place, (kind, path) in enumerate(places.items())
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode_cls_token": True},
        "sentence_bert_config.json": {"max_seq_length": 12, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": PROMPTS, "similarity_fn_name": "dot"},
    }
    for name, content in (files | (changes or {})).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


def compare(folder: Path) -> SentenceModules:
    """Vectors with and without a prompt; what the modules say."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    other = library.SentenceTransformer(str(folder), device="cpu")
    by = world.text_encoder(resolve_model(Layout(folder.parent / "runs"), str(folder)), folder.parent / "runs")
    np.testing.assert_allclose(by.encode(TEXTS), other.encode(TEXTS, prompt=""), atol=1e-5, rtol=0)
    prompted = other.encode_query(TEXTS, prompt="a bird and ")
    np.testing.assert_allclose(by.encode(TEXTS, instruction="a bird and "), prompted, atol=1e-5, rtol=0)
    modules = read_sentence_modules(folder, "model")
    assert modules is not None
    return modules


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_those_of_the_library(plain: Path, tmp_path: Path, pooling: str, normalize: bool) -> None:
    folder = saved_by_the_library(plain, tmp_path / "model", pooling=pooling, normalize=normalize, max_tokens=12)
    modules = compare(folder)
    assert (modules.pooling, modules.normalize, modules.prompts.get("query", "")) == (pooling, normalize, "")


def test_files_of_older_versions_are_read_as_the_library_reads_them(plain: Path, tmp_path: Path) -> None:
    modules = compare(older(plain, tmp_path / "model"))
    assert modules == SentenceModules(
        pooling="cls", normalize=True, max_tokens=12, prompts=PROMPTS, default_prompt=None
    )


def test_a_separator_in_a_prompt_is_read_as_the_library_reads_it(plain: Path, tmp_path: Path) -> None:
    """Exports of contrastive runs have one between an instruction and its text."""
    prompt = "find the bird[SEP]"
    folder = saved_by_the_library(
        plain, tmp_path / "model", pooling="mean", normalize=False, max_tokens=12, prompts={"query": prompt}
    )
    from sentence_transformers import SentenceTransformer

    other = SentenceTransformer(str(folder), device="cpu")
    by = world.text_encoder(resolve_model(Layout(tmp_path / "runs"), str(folder)), tmp_path / "runs")
    found = by.encode(TEXTS, instruction=prompt)
    np.testing.assert_allclose(found, other.encode(TEXTS, prompt_name="query"), atol=1e-5, rtol=0)


def test_prompts_are_those_that_mteb_chooses(plain: Path, tmp_path: Path) -> None:
    """By its own rules for models of sentence-transformers, in every category."""
    wrapper = pytest.importorskip("mteb.models.sentence_transformer_wrapper", reason="mteb is not installed")
    import mteb
    from mteb.types import PromptType

    modules = read_sentence_modules(older(plain, tmp_path / "model"), "model")
    assert modules is not None
    tasks = {
        "Banking77Classification": "classification",
        "STS12": "sts",
        "STS13": "sts",
        "SciFact": "retrieval",
        "SciDocsRR": "reranking",
        "TwentyNewsgroupsClustering": "clustering",
    }
    for name, category in tasks.items():
        metadata = mteb.get_task(name).metadata
        asked = {role: PromptType(role) for role in ("query", "document")}
        roles = asked if category in ("retrieval", "reranking") else {"query": None}
        chosen = {role: wrapper._resolve_prompt(PROMPTS, metadata, kind) for role, kind in roles.items()}
        expected = {role: told for role, told in chosen.items() if told}
        assert OFFICIAL_TASKS[name].category == category and modules.task_prompts(OFFICIAL_TASKS[name]) == expected
    told = modules.model_copy(update={"default_prompt": "query"})
    assert told.task_prompts(OFFICIAL_TASKS["STS13"]) == {"query": "the bird "}
    assert modules.task_prompts(OFFICIAL_TASKS["STS13"]) == {}


def test_a_task_of_several_gets_the_prompts_that_mteb_looks_up_for_its_members() -> None:
    """As an export of a contrastive run names them; mteb never looks up the name of the whole."""
    task = OFFICIAL_TASKS["CQADupstackRetrieval"]
    by_member = {f"{member}-query": "a bird and " for member in task.members}
    modules = SentenceModules(pooling="mean", normalize=False, max_tokens=None, prompts=by_member, default_prompt=None)
    assert modules.task_prompts(task) == {"query": "a bird and "}
    whole = modules.model_copy(update={"prompts": {f"{task.name}-query": "a cat ", "document": "the "}})
    assert whole.task_prompts(task) == {"document": "the "}
    unlike = modules.model_copy(update={"prompts": by_member | {f"{task.members[-1]}-query": "a dog "}})
    with pytest.raises(ValueError, match="different prompts for the members of CQADupstackRetrieval"):
        unlike.task_prompts(task)


def module(path: str, kind: str) -> dict[str, Any]:
    return {"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{kind}"}


FIRST = [module("", "Transformer"), module("1_Pooling", "Pooling")]


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("modules.json", [*FIRST, module("2_Dense", "Dense")], "Transformer → Pooling → Dense"),
        ("modules.json", [module("", "Transformer")], r"by Transformer: only"),
        ("modules.json", [*FIRST, {"path": "2_Own", "type": "own.Module"}], "→ own.Module"),
        ("modules.json", [module("0_BERT", "Transformer"), FIRST[1]], "has its encoder in the folder 0_BERT"),
        ("modules.json", [module("../other", "Transformer"), FIRST[1]], "describes no module"),
        ("modules.json", ["Transformer"], "describes no module"),
        ("modules.json", {}, "has no JSON array"),
        (
            "modules.json",
            [FIRST[0], module("pooling", "Pooling")],
            "pooling/config.json of tiny pools by nothing",
        ),
        ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, "pools by lasttoken"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "max"]}, "pools by cls and max"),
        (
            "1_Pooling/config.json",
            {"pooling_mode": "mean", "include_prompt": False},
            "include_prompt of Pooling to False",
        ),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case of Transformer to True"),
        ("sentence_bert_config.json", {"model_args": {"dtype": "float16"}}, "model_args of Transformer"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 4}}}, "processing_kwargs of Trans"),
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "fixed"}}, "query_expansion of Transformer"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type of .* to 'SparseEncoder'"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "euclidean"}, "similarity_fn_name"),
        ("modules.json", FIRST, r"similarity_fn_name .* to 'dot'"),  # of vectors that are not normalised
    ],
)
def test_what_is_not_read_is_refused(plain: Path, tmp_path: Path, file: str, content: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_sentence_modules(older(plain, tmp_path / "model", {file: content}), "tiny")


class ByTheLibrary:
    """sentence-transformers itself where mteb measures an encoder of this package."""

    def __init__(self, folder: Path) -> None:
        library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
        self.model = library.SentenceTransformer(str(folder), device="cpu")
        self.counts = TextCounts()
        self.width, self.context, self.parameters, self.pooling, self.normalized = 16, 12, 1, "cls", True

    def encode(self, texts: Sequence[str], *, instruction: str | None = None) -> np.ndarray:
        return self.model.encode(list(texts), prompt=instruction or "")


def test_a_zero_shot_record_is_that_of_the_published_model(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the folder says decides, is said when it is planned, and stands in the record."""
    pytest.importorskip("mteb", reason="mteb is not installed")
    told = {"config_sentence_transformers.json": {"prompts": {"STS": "stone "}}}
    folder, root = older(plain, tmp_path / "tiny", told), tmp_path / "runs"
    capsys.readouterr()
    assert mteb_suite.main(["--model", str(folder), "--zero-shot", "--runs", str(root), "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "as its modules.json says: pooling cls, vectors of length 1, at most 12 tokens, prompts STS" in said
    model, choice = resolve_model(Layout(root), str(folder)), EmbeddingChoice(tasks=[STS], zero_shot=True)
    write_model_file(Layout(root), model)
    (evaluation,), _ = embedding_runs(EncoderWeights.of_model(model), SMOKE, [0], SOURCE_HERE, ("mteb",), choice)
    assert isinstance(evaluation, EmbeddingEvaluation)
    write_evaluation(root, evaluation)
    assert work(root, evaluation.reference) == 0
    (record,), problems = read_records(root)
    assert not problems and (record["pooling"], record["normalized"], record["context"]) == ("cls", True, 12)
    assert record["prompts"] == {"query": "stone "} and record["inputs"]["pretraining"] == model.id
    (task,) = (task for task in SOURCE_HERE.embedding_tasks() if task.name == STS)
    by = ByTheLibrary(folder)
    measured = measure_task(named(by), task, SOURCE_HERE, tmp_path / "results", {"query": "stone "})
    assert record["scores"]["score"] == pytest.approx(measured.score, abs=1e-4)
    opened = load_named_encoder(
        Layout(root), read_run_file(Layout(root).embedding_evaluation(evaluation.id)), CPU
    ).encoder
    expected = by.encode(TEXTS, instruction="stone ")
    np.testing.assert_allclose(opened.encode(TEXTS, instruction="stone "), expected, atol=1e-5, rtol=0)


def test_contrastive_fine_tuning_says_that_it_leaves_the_modules_aside(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = older(plain, tmp_path / "tiny")
    assert mteb_suite.main(["--model", str(folder), "--runs", str(tmp_path / "runs"), "--dry-run"]) == 0
    assert "starts contrastive fine-tuning without its modules.json" in capsys.readouterr().err
