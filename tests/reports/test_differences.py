"""From records to the table of differences: what is paired, in which family, and every number once more by scipy."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ablations import loading
from neobert.glue.tasks import TASKS
from neobert.runs.layout import Layout
from reports.differences import ADD_ONE, LADDER, LEAVE_ONE_OUT, MARGINS, ComparedStep
from tests.reports.made_up_study import MadeUpStudy, by_place, change_record, facts_of
from tests.reports.measurements import answer, ask, embed
from tests.support.made_up_topics import TOPICS_LADDER, topics

pytestmark = pytest.mark.usefixtures("papers_ladder")


def steps_of(study: MadeUpStudy) -> Mapping[tuple[str, str, str], ComparedStep]:
    return by_place(study.read())


def learn(study: MadeUpStudy, levels: dict[str, float], seeds: int, noise: float = 0.3) -> None:
    """Runs whose held-out losses have noise of their own: 6 − level / 20 nats, `noise` in levels."""
    random = np.random.default_rng(sum(map(ord, "".join(levels))))
    study.common_context, study.measured = 64, ("web", "wikibook")
    for seed in range(seeds):
        for name, level in levels.items():
            study.levels[name] = level + float(random.normal(0, noise))
            study.pretrain(name, seed)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> MadeUpStudy:
    """Three variants with five seeds, fine-tuned on all tasks. Nobody changes it."""
    study = MadeUpStudy(tmp_path_factory.mktemp("tuned") / "runs", measured=("web", "wikibook"))
    study.write(["M0", "M1", "M2"], seeds=range(5))
    return study


def test_every_number_of_the_table_is_that_of_scipy_on_the_records(tuned: MadeUpStudy) -> None:
    """Records are read as JSON, and nothing of the reports is used: differences by seed, t interval, paired t test,
    Holm over the steps of a measure, and two one-sided tests."""
    best: dict[tuple[str, str, int], dict[str, list[float]]] = {}
    runs = {run.id: name for name in ("M0", "M1", "M2") for seed in range(5) for run in tuned.runs(name, seed)}
    for path in tuned.root.glob("glue/*/*.json"):
        record = json.loads(path.read_text())
        config = record["config"]
        key = (runs[record["inputs"]["pretraining"]], config["task"], record["seed"])
        point = f"{config['batch_size']} {config['learning_rate']} {config['weight_decay']}"
        best.setdefault(key, {}).setdefault(point, []).append(100 * record["scores"]["score"])

    def score(name: str, task: str, seed: int) -> float:
        points = best[name, task, 0].keys()
        chosen = max(points, key=lambda point: np.mean([best[name, task, each][point] for each in range(5)]))
        (value,) = best[name, task, seed][chosen]
        return value

    rows = facts_of(tuned.tables()["differences"])
    for measure in ("GLUE average", *(task.title for task in TASKS.values())):
        tasks = [task for task in TASKS if measure in ("GLUE average", TASKS[task].title)]
        own = [row for row in rows if row["measure"] == measure and row["mean"]]
        assert [(row["variant"], row["parent"]) for row in own] == [("M1", "M0"), ("M2", "M1")]
        p_values = []
        for row in own:
            arms = [
                [np.mean([score(row[arm], task, seed) for task in tasks]) for seed in range(5)]
                for arm in ("variant", "parent")
            ]
            differences = np.subtract(*arms)
            low, high = stats.t.interval(0.95, 4, differences.mean(), stats.sem(differences))
            printed = [float(row[name]) for name in ("n", "mean", "low", "high", "p_t")]
            tested = stats.ttest_rel(*arms)
            assert printed == pytest.approx([5, differences.mean(), low, high, tested.pvalue], abs=2e-6)
            assert float(row["margin"]) == MARGINS["GLUE average" if measure == "GLUE average" else "a task"]
            p_values.append(tested.pvalue)
        least, most = sorted(p_values)
        adjusted = {least: min(1, 2 * least), most: min(1, max(2 * least, most))}
        assert [float(row["p_holm"]) for row in own] == pytest.approx([adjusted[p] for p in p_values], abs=2e-6)


def test_losses_on_other_texts_are_not_compared(study: MadeUpStudy) -> None:
    learn(study, {"M0": 52.0, "M1": 57.0}, seeds=2)
    (run,) = study.runs("M1", 1)

    def other(record: dict[str, list[dict[str, str]]]) -> None:
        for score in record["scores"]["heldout"]:  # type: ignore[call-overload]
            score["texts"] = "ffffffffffff"

    change_record(Layout(study.root).pretraining(run.id) / "done.json", other)
    step = steps_of(study)[LADDER, "M1 − M0", "held-out loss on wikibook"]
    assert not step.difference.by_seed and step.reason == "losses on different held-out texts of wikibook"


def test_a_step_is_in_the_loss_on_the_corpus_that_its_variant_was_trained_on(study: MadeUpStudy) -> None:
    """M1's is wikibook, M2's is web; M3 has other tokens and is compared in bits per byte. All are one family."""
    learn(study, {"M0": 52.0, "M1": 52.0, "M2": 57.0, "M3": 57.0}, seeds=6)
    found = steps_of(study)
    names = {"M1 − M0": "wikibook", "M2 − M1": "web", "M3 − M2": "web, 64 tokens"}
    losses = {name: found[LADDER, name, f"held-out loss on {text}"] for name, text in names.items()}
    assert [step.measure.unit for step in losses.values()] == [
        "nats per token",
        "nats per token",
        "bits per byte",
    ]
    assert [step.measure.margin for step in losses.values()] == [0.05, 0.05, 0.016]
    assert losses["M2 − M1"].word == "better" and losses["M2 − M1"].difference.mean == pytest.approx(-0.25, abs=0.05)
    for step in losses.values():
        assert step.judged is not None and step.judged.p is not None and step.judged.p >= step.difference.p
    least = losses["M2 − M1"]
    assert least.judged is not None and least.judged.p == pytest.approx(3 * least.difference.p)


def test_leave_one_out_and_add_one_are_rows_and_families_of_their_own(study: MadeUpStudy) -> None:
    study.levels |= {"M9-rmsnorm": 55.0, "M0+rmsnorm": 50.0}
    for seed in (0, 1):
        for name in ("M0", "M1", "M9", "M9-rmsnorm", "M0+rmsnorm"):
            study.pretrain(name, seed)
    found = steps_of(study)
    assert found[LEAVE_ONE_OUT, "M9 − M9-rmsnorm", "held-out loss on web"].difference.n == 2
    assert found[ADD_ONE, "M0+rmsnorm − M0", "held-out loss on wikibook"].difference.n == 2
    page = study.tables()["differences"].markdown
    assert (
        "Leave-one-out: each difference is what a variant owes" in page and "Below 3 seeds there is no interval" in page
    )


def test_what_is_not_compared_says_why_and_is_in_no_family(study: MadeUpStudy) -> None:
    study.write(["M0", "M2"])
    study.pretrain("M1")
    found = steps_of(study)
    step = found[LADDER, "M1 − M0", "GLUE average"]
    assert step.word == "not compared: M1: pre-trained, but no GLUE record of its own grid" and step.judged is None
    assert found[LADDER, "M2 − M1", "held-out loss on web"].word == "not compared: M1 was not measured on web"
    row = next(row for row in facts_of(study.tables()["differences"]) if row["word"] == step.word)
    assert (row["n"], row["mean"], row["records"]) == ("", "", "")


def test_a_larger_grid_on_the_same_weights_is_not_compared(study: MadeUpStudy) -> None:
    study.write(["M9", "M10"])
    found = steps_of(study)
    assert "a choice among more points alone scores higher" in found[LADDER, "M10 − M9", "GLUE average"].word
    assert not [step for step in found.values() if step.name == "M10 − M9" and step.measure.name == "held-out loss"]


def test_pairs_share_seeds_and_the_others_are_named(study: MadeUpStudy) -> None:
    study.write(["M0"], seeds=(0, 1, 2))
    study.write(["M1"], seeds=(1, 2, 3))
    step = by_place(study.read())[LADDER, "M1 − M0", "held-out loss on wikibook"]
    assert list(step.difference.by_seed) == [1, 2] and len(step.ids) == 4
    page = study.tables()["differences"].markdown
    assert "M1 − M0: seed 3 of M1 has no partner and is left out." in page


def test_fine_tuning_seeds_of_one_pre_training_are_no_further_seeds(study: MadeUpStudy) -> None:
    """Three fine-tuning seeds on one pre-training tell nothing about other pre-trainings: n is 1."""
    for name in ("M0", "M1"):
        study.pretrain(name)
        for of_task in study.studies(name):
            for seed in (0, 1, 2):
                study.search(name, of_task.model_copy(update={"seed": seed}))
    step = steps_of(study)[LADDER, "M1 − M0", "GLUE average"]
    assert step.difference.n == 1 and step.difference.interval is None
    assert any("are averaged and count as one seed" in note for note in step.notes)


def test_runs_and_scores_on_other_data_are_not_paired(study: MadeUpStudy) -> None:
    study.write(["M0", "M1"])
    for path in study.root.glob("glue/cola/*.json"):
        if "M1" in json.loads(path.read_text())["labels"]["variants"]:
            change_record(path, lambda record: record["inputs"].update(task="other"))
    found = steps_of(study)
    said = "not compared: M1 and M0 rest on other data or numerics of CoLA: task "
    assert found[LADDER, "M1 − M0", "GLUE average"].word.startswith(said)
    assert found[LADDER, "M1 − M0", "CoLA"].word.startswith(said)
    assert found[LADDER, "M1 − M0", "RTE"].judged and found[LADDER, "M1 − M0", "held-out loss on wikibook"].judged


def test_minimal_pairs_are_compared_on_the_same_items(study: MadeUpStudy) -> None:
    for name, right in (("M0", 0.5), ("M1", 0.7)):
        for seed in range(5):
            study.pretrain(name, seed)
            ask(study, name, seed, "blimp", answer(np.full(20, right + seed % 3 / 100)))
    step = steps_of(study)[LADDER, "M1 − M0", "BLiMP"]
    assert step.difference.mean == pytest.approx(20) and step.difference.n == 5 and len(step.ids) == 10
    study.pretrain("M2")
    ask(study, "M2", 0, "blimp", answer(np.ones(20)), items="ffffffffffff")
    assert steps_of(study)[LADDER, "M2 − M1", "BLiMP"].word == "not compared: other items on each side"


def test_embeddings_are_compared_in_the_mean_of_the_tasks_that_both_have(study: MadeUpStudy) -> None:
    for name, tasks in (("M0", "ab"), ("M1", "bc")):
        for seed in (0, 1, 2):
            study.pretrain(name, seed)
            for task in tasks:
                score = 0.5 + (name == "M1") / 10 + "abc".index(task) / 10 + seed / 100
                embed(study, name, task, "sts", score, seed=seed)
    found = steps_of(study)
    (step,) = (step for step in found.values() if "average, contrastive" in step.measured)
    assert step.text == "mean of 1 shared tasks" and step.difference.n == 3
    assert step.difference.mean == pytest.approx(10) and step.measure.margin == MARGINS["an MTEB average"]


def test_arms_are_compared_in_a_task_that_their_ladder_declares(study: MadeUpStudy, tmp_path: Path) -> None:
    """With the ids of the trials of both, as in GLUE's tasks."""
    topics(tmp_path / "topics")
    (tmp_path / "mine.py").write_text(TOPICS_LADDER)
    own = study.on(loading.load(str(tmp_path / "mine.py")))
    own.write(["M0", "M1"], seeds=range(3))
    step = steps_of(own)[LADDER, "M1 − M0", "topics"]
    cells = [row.cells["topics"] for row in own.read().last_rows.values() if row.name in ("M0", "M1")]
    assert set(step.ids) == {trial for cell in cells for trial in cell.ids.values()} and len(step.ids) == 6
    means = [cell.score.mean for cell in cells if cell.score]
    assert step.difference.mean == pytest.approx(means[1] - means[0]) and step.measure.margin == MARGINS["a task"]
    assert own.tables()["table3"].header == ("Source", "Model", "topics", "Loss (wikibook)")
