"""Names hold: what was computed once is found again under the same id, and every committed record under its own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ablations.ladders import SCALES
from ablations.loading import papers
from ablations.plan import plan
from ablations.recipe_runs import EmbeddingChoice
from ablations.scales import Scale
from ablations.scaling import synthetic_documents
from ablations.variant import Variant
from neobert.data.catalog import CORPORA, TASK_SPLITS
from neobert.data.sources import Source, open_source
from neobert.external import external_id
from neobert.identity import NUMERICS, identity
from neobert.kinds.glue import GlueStudy
from neobert.runs.collected import RunFiles
from neobert.runs.kinds import Run
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from tests.embeddings.embedding_worlds import card_of, write_published
from tests.support.golden_files import ANEW, GoldenFiles

REPOSITORY = Path(__file__).resolve().parents[2]
REPORTS = REPOSITORY / "reports"
IDENTITIES = "identities.json"


def small_folder(folder: Path) -> Path:
    """A folder with everything that `--data` reads. A plan reads no table of it, so that its files hold fixed bytes,
    and names do not change with the version of whatever writes parquet."""
    names = [f"corpora/{corpus}/part.parquet" for corpus in CORPORA]
    names += [f"glue/{task}/{split}.parquet" for task, splits in TASK_SPLITS.items() for split in splits]
    names += [f"pairs/{name}.parquet" for name in ("questions", "titles")]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"the bytes of {name}\n", encoding="utf-8")
    (folder / "pairs" / "instructions.json").write_text('{"questions": "Find the answer."}', encoding="utf-8")
    write_published(folder, "STS12", {}, card_of(default__test="test.parquet"))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("data"))


def digest_of(ids: list[str]) -> str:
    """Many names as one: how many there are, and what changes with any of them."""
    return f"{len(ids)}: {identity(ids)}"


def ids_of(variant: Variant, scale: Scale, source: Source, layout: Layout) -> dict[str, Any]:
    """Everything that a variant's plan names."""

    def planned(*stages: str, zero_shot: bool = False) -> list[Run]:
        choice = EmbeddingChoice(zero_shot=zero_shot)
        return plan(papers(), [variant], (0,), scale, source, layout, ("pretraining", *stages), choice=choice)[0].runs

    ids: dict[str, Any] = {}
    for run in planned("glue", "contrastive", "mteb"):
        ids |= NAMED[run.kind](run)
    return ids | {"mteb zero-shot": evaluation_ids(planned("mteb", zero_shot=True)[-1])}


def evaluation_ids(evaluation: Any) -> str:
    return f"{evaluation.id}, tasks {digest_of([run.id for run in evaluation.runs()])}"


NAMED: Mapping[str, Callable[[Any], dict[str, str]]] = {
    "pretraining": lambda run: {f"stage {run.stage + 1}": run.id, "data": run.data_id},
    "glue": lambda run: {f"stage {run.stage + 1} {run.task}": f"{run.id}, trials {digest_of([*run.trial_ids])}"},
    "contrastive": lambda run: {
        "contrastive": f"{run.id}, pairs {digest_of([run.pairs_id(pairs) for pairs in run.sets])}"
    },
    "mteb": lambda run: {"mteb": evaluation_ids(run)},
}
"""By kind of work, what a run names."""


def told(ids: Mapping[str, str]) -> str:
    """Names in one line: those of pre-training as they are, and a digest of the others."""
    own = [f"{name} {ids[name]}" for name in ids if name in ("data", "stage 1", "stage 2")]
    others = sorted(f"{name} {text}" for name, text in ids.items() if name not in ("data", "stage 1", "stage 2"))
    return ", ".join([*own, digest_of(others)])


def test_every_variant_keeps_its_names_at_every_scale_on_every_source(
    folder: Path, tmp_path: Path, golden: GoldenFiles
) -> None:
    made: dict[str, dict[str, Any]] = {name: {} for name in papers().variants}
    for scale in (each for each in SCALES if each != "as-written"):  # whose recipes are the paper's
        for word in ("synthetic", "hub", str(folder)):
            source = open_source(word, synthetic_documents=synthetic_documents(papers(), scale))
            where = f"{scale}, {'a folder' if word == str(folder) else word}"
            for name, variant in papers().variants.items():
                made[name][where] = told(ids_of(variant, scale, source, Layout(tmp_path)))
    golden.compare_entries(IDENTITIES, made)


def test_every_variant_is_recorded(golden: GoldenFiles) -> None:
    missing = sorted(papers().variants.keys() - golden.names(IDENTITIES))
    assert golden.write or not missing, f"{', '.join(missing)}: not in golden/{IDENTITIES}; {ANEW}"


def test_an_external_model_is_named_by_its_files_or_its_commit() -> None:
    assert external_id({"config.json": "a" * 64, "model.safetensors": "b" * 64}) == "model-1dbb2f6ecb7f"
    assert external_id({"repository": "google-bert/bert-base-uncased", "revision": "c" * 40}) == "model-44bec015bc5d"


@pytest.mark.parametrize(("records", "runs", "trials"), [("pipeline_check", 125, 248)])
def test_every_committed_record_has_the_name_that_its_recipe_gives(
    records: str, runs: int, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the versions of the mechanisms that it was made with: runs by their recipes, trials by their studies."""
    files = RunFiles(REPORTS / records)
    names: list[str] = []
    planned: set[str] = set()
    for place in (path.parent for path in files.root.rglob("run.json")):
        content = read_run_file(place)
        for mechanism, version in content.numerics.items():
            monkeypatch.setitem(NUMERICS, mechanism, version)
        names.append(place.name)
        assert content.run.id == content.id == place.name, place
        if isinstance(content.run, GlueStudy):
            planned |= {content.run.trial_id(point) for point in content.run.points}
    recorded = {path.stem for path in files.root.glob("glue/*/*.json")}
    assert (len(names), len(recorded)) == (runs, trials) and recorded <= planned
