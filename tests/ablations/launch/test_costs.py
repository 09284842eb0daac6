"""What a plan says it costs: against the paper's published hours, against finished runs, and as costs behave."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations import run
from ablations.launch.checks import misfits, refuse, require_data, validate
from ablations.launch.costs import (
    PUBLISHED,
    TRIAL_RECORD_BYTES,
    Cost,
    Machine,
    PlanCosts,
    TrialWork,
    checkpoint_bytes,
    corpus_bytes,
    finished_runs,
    measured_throughput,
    stage_memory,
    study_bytes,
    sum_costs,
    task_size,
    typical_batch_size,
)
from ablations.loading import papers
from ablations.names import chosen_variants
from ablations.plan import STAGES, PlanRow, VariantRow, with_search, with_tasks
from neobert.data.catalog import CHARACTERS_PER_TOKEN, TASK_SPLITS
from neobert.data.sources import DirectorySource, open_source
from neobert.errors import MissingData
from neobert.glue.tasks import TASKS, Task, task_named
from neobert.identity import plain
from neobert.kinds.glue import GlueStudy
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.build import build_masked_language_model
from neobert.recipe import EngineWord, Point
from neobert.runs.claims import acquire
from neobert.runs.layout import Layout
from neobert.runs.records import publish_sealed, sealed
from neobert.search.space import Range, Search, Space
from neobert.training import checkpoints
from neobert.training.schedule import FineTuningSchedule, milestones
from tests.ablations.plans import SYNTHETIC, rows_of
from tests.support.small_corpora import REAL_DATA, write_table
from tests.support.tiny_runs import tiny_run

HUB = open_source("hub", synthetic_documents=100)
PAPER_MACHINE = Machine(80, 8, "zero2", 32 * 1024, None, "H100")  # App. A: 8 H100, micro-batches of 32 × 1,024
ONE_GPU = Machine(None, 1, "single", 1 << 14, None, None)
PAPER_GPU_HOURS = 6000  # §3.3 and App. A, for both stages of NeoBERT
PAPER_TOKENS_PER_SECOND = 97_200  # 2.1T slots in these hours


def paper_rows(root: Path, *names: str, stages: Sequence[str] = STAGES) -> list[VariantRow]:
    return rows_of(root, *names, scale="paper", source=HUB, stages=stages)


def costs_of(root: Path, machine: Machine, *names: str, stages: Sequence[str] = STAGES) -> PlanCosts:
    return PlanCosts(Layout(root), paper_rows(root, *names, stages=stages), HUB, machine)


def publish_done(root: Path, run: PretrainingRun, **fields: object) -> None:
    """The record of a finished run, as far as a plan reads it."""
    stage = run.recipe.stages[-1]
    record = {"kind": "pretraining", "id": run.id, "config": {"recipe": plain(run.recipe)}}
    folder = root / "pretraining" / run.id
    folder.mkdir(parents=True)
    measured = {"tokens": stage.tokens, "flops": 1e18, "gpu_hours": 10.0, **fields}
    (folder / "done.json").write_bytes(sealed(record | measured))


# GPU-hours


def test_at_the_papers_throughput_neobert_takes_the_papers_hours(tmp_path: Path) -> None:
    machine = replace(PAPER_MACHINE, tokens_per_second_per_gpu=PAPER_TOKENS_PER_SECOND)
    hours = costs_of(tmp_path, machine, "M9", stages=["pretrain"]).total.gpu_hours
    assert hours == pytest.approx(PAPER_GPU_HOURS, rel=0.06)  # the paper rounds 2.2T slots down


def test_a_named_gpu_gives_the_papers_hours_at_the_papers_share_of_its_peak(tmp_path: Path) -> None:
    cost = costs_of(tmp_path, PAPER_MACHINE, "M9", stages=["pretrain"]).total
    assert 0.38 * (cost.gpu_hours or 0) == pytest.approx(0.16 * PAPER_GPU_HOURS, rel=0.05)
    assert cost.sources == ("stated: 38% of H100's 989 TFLOP/s bf16",)


def test_without_a_throughput_hours_are_unknown_and_not_zero(tmp_path: Path) -> None:
    cost = costs_of(tmp_path, replace(PAPER_MACHINE, gpu=None), "M9").total
    assert cost.gpu_hours is None and cost.summary()["gpu_hours_source"] is None


def test_a_plan_at_the_papers_scale_counts_published_data_on_an_assumed_h100(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["--variant", "M7", "--scale", "paper", "--dry-run", "--json", "--runs", str(tmp_path)]
    said = []
    for flags in ([], ["--gpu", "H200"], ["--data", "hub"], ["--compile", "off"]):
        assert run.main([*plan, *flags]) == 0
        (entry,) = json.loads(capsys.readouterr().out)
        said.append(entry)
    usual, named, published, eager = said
    assert usual == published and usual["disk_gb"] > 1000
    assert usual["gpu_hours_source"].startswith("assumed: 38% of H100's 989 TFLOP/s bf16; at least 8 ms")
    assert named["gpu_hours_source"].startswith("stated: 38% of H200's") and named["gpu_hours"] == usual["gpu_hours"]
    assert "at least 90 ms" in eager["gpu_hours_source"] and eager["gpu_hours"] > usual["gpu_hours"]


def test_an_unknown_gpu_gets_a_hint() -> None:
    with pytest.raises(ValueError, match=r"gpu 'H1000' is not known: did you mean 'H100'"):
        _ = replace(ONE_GPU, gpu="H1000").throughput


def test_a_finished_run_of_the_same_rows_says_how_long_another_takes(tmp_path: Path) -> None:
    """M5's hours are M4's, the masks differ and the work does not; what was stated does not matter then."""
    (m4,), (m5,) = paper_rows(tmp_path, "M4"), paper_rows(tmp_path, "M5")
    publish_done(tmp_path, m4.stages[0], gpu_hours=250.0)
    costs = costs_of(tmp_path, PAPER_MACHINE, "M5")
    cost = costs.of(m5.stages[0])
    assert cost.gpu_hours == pytest.approx(250)
    assert cost.sources == (f"measured by run {m4.stages[0].id}",)


def test_other_rows_of_the_same_shape_are_compared_by_their_work(tmp_path: Path) -> None:
    (m8,), (m9,), (m7,) = (paper_rows(tmp_path, name) for name in ("M8", "M9", "M7"))
    publish_done(tmp_path, m8.stages[0], flops=3.6e18, gpu_hours=10.0)
    found = finished_runs(Layout(tmp_path))
    throughput = measured_throughput(m9.stages[0], found)
    assert throughput is not None and throughput.flops_per_second == pytest.approx(1e14)
    assert measured_throughput(m7.stages[0], found) is None


def test_runs_on_cpus_and_torn_records_measure_nothing(tmp_path: Path) -> None:
    (m4,), (m5,) = paper_rows(tmp_path, "M4"), paper_rows(tmp_path, "M5")
    publish_done(tmp_path, m4.stages[0], gpu_hours=0.0)
    publish_done(tmp_path, m5.stages[0])
    (tmp_path / "pretraining" / m5.stages[0].id / "done.json").write_text("{")
    assert finished_runs(Layout(tmp_path)) == []


def test_done_units_cost_nothing_and_shared_ones_count_once(tmp_path: Path) -> None:
    separate = [costs_of(tmp_path, PAPER_MACHINE, name).total.gpu_hours or 0 for name in ("M9", "M10")]
    both = costs_of(tmp_path, PAPER_MACHINE, "M9", "M10")
    together_hours, rows_hours = both.total.gpu_hours or 0, [both.row(row).gpu_hours for row in both.rows]
    assert rows_hours == pytest.approx(separate)
    assert max(separate) <= together_hours < sum(separate) - 2400
    (m9,) = paper_rows(tmp_path, "M9")
    publish_done(tmp_path, m9.stages[0])
    rest = costs_of(tmp_path, PAPER_MACHINE, "M9")
    assert rest.of(m9.stages[0]) == Cost()
    assert rest.total.gpu_hours == pytest.approx(sum(rest.of(unit.run).gpu_hours or 0 for unit in m9.planned[1:]))


def test_recorded_trials_are_not_paid_again(tmp_path: Path) -> None:
    def hours() -> float:
        return costs_of(tmp_path, PAPER_MACHINE, "M2").of(study).gpu_hours or 0

    (row,) = paper_rows(tmp_path, "M2")
    study = next(unit.run for unit in row.planned if isinstance(unit.run, GlueStudy) and unit.run.task == "cola")
    before, point = hours(), study.points[0]
    record = Layout(tmp_path).trial("cola", study.trial_id(point))
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    same = [other for other in study.points if other.batch_size == point.batch_size]
    assert 0 < hours() < before and len(same) == 3


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_a_search_costs_its_trials_with_all_seeds_until_they_are_recorded(
    tmp_path: Path, seeds: tuple[int, ...]
) -> None:
    """At batch size 8, the lower median."""
    (row,) = paper_rows(tmp_path, "M2")
    row = with_tasks(row, ["cola"])
    (grid,) = GlueStudy.among(row.runs)
    space = Space(batch_size=(2, 8, 16, 32), learning_rate=(1e-5,), weight_decay=(0.01,))
    search = Search(sampler="random", trials=10, pruner="none", seeds=seeds, space=space)
    layout = Layout(tmp_path)
    searched = with_search(row, search, layout)
    (study,) = GlueStudy.among(searched.runs)
    point = Point(batch_size=8, learning_rate=1e-5, weight_decay=0.01)

    def hours(row: PlanRow, study: GlueStudy) -> float:
        return PlanCosts(layout, [row], HUB, PAPER_MACHINE).of(study).gpu_hours or 0

    one = grid.model_copy(update={"points": (point,)})
    of_one = replace(row, planned=tuple(replace(each, run=one) if each.run == grid else each for each in row.planned))
    assert hours(searched, study) == pytest.approx(10 * len(seeds) * hours(of_one, one)) and hours(of_one, one) > 0
    assert study_bytes(study, row.stages[0], HUB) > 9 * len(seeds) * TRIAL_RECORD_BYTES
    publish_sealed(study.request_file(layout, 0), {"point": plain(point)})
    part = study.search_trial(layout, point)
    scores = {"score": None, "curve": []}
    publish_sealed(part.record, {"kind": "search", "id": part.id, "state": "pruned", "scores": scores})
    assert hours(searched, study) == pytest.approx(9 * len(seeds) * hours(of_one, one))


def test_a_typical_batch_size_is_in_the_middle() -> None:
    space = Space(batch_size=(32, 2, 16, 8), learning_rate=(1e-5,), weight_decay=(0.01,))
    assert typical_batch_size(space) == 8
    sizes = Range(low=4, high=64, log=True)
    assert typical_batch_size(space.model_copy(update={"batch_size": sizes})) == 16


def test_a_trials_updates_are_those_of_its_course() -> None:
    (row,) = chosen_variants(papers(), ["M2"])
    protocol = row.recipe.finetuning
    for task, size in PUBLISHED.items():
        course, work = FineTuningSchedule.of(protocol, size.train, 16), TrialWork.of(TASKS[task], size, protocol, 16)
        assert work.updates == course.steps
        evaluations = sum(course.evaluates_after(step) for step in range(1, course.steps + 1))
        tokens = size.tokens(TASKS[task], protocol.max_tokens)
        assert work.evaluated_tokens == pytest.approx(evaluations * size.validation * tokens, rel=0.01)


NUMBERS = st.none() | st.floats(0, 9)


@given(st.lists(st.builds(Cost, NUMBERS, NUMBERS, st.just(()), NUMBERS)))
def test_what_is_unknown_makes_a_sum_unknown_but_not_a_most(costs: list[Cost]) -> None:
    total = sum_costs(costs)
    assert (total.gpu_hours is None) == any(cost.gpu_hours is None for cost in costs)
    assert (total.disk_gb is None) == any(cost.disk_gb is None for cost in costs)
    assert all(cost.memory_gb is None or cost.memory_gb <= (total.memory_gb or 0) for cost in costs)
    assert sum_costs([*costs, Cost()]) == total, "of which nothing is said, that costs nothing"


# Memory


def test_the_papers_own_settings_fit_into_the_papers_gpus(tmp_path: Path) -> None:
    assert misfits(paper_rows(tmp_path, "M9"), PAPER_MACHINE) == []


@pytest.mark.parametrize("gpu_memory_gb", [16, 24, 40, 48])
def test_a_refusal_names_the_largest_micro_batch_that_fits(tmp_path: Path, gpu_memory_gb: float) -> None:
    machine = replace(PAPER_MACHINE, gpu_memory_gb=gpu_memory_gb, micro_batch_tokens=1 << 17)
    rows = paper_rows(tmp_path, "M8")
    with pytest.raises(ValueError, match=r"M8's pretraining stage 1 needs .* GB on each GPU.* would fit$") as refusal:
        refuse(misfits(rows, machine))
    named = int(str(refusal.value).split("micro_batch_tokens ")[1].split()[0])
    assert misfits(rows, replace(machine, micro_batch_tokens=named)) == []
    assert misfits(rows, replace(machine, micro_batch_tokens=2 * named)) != []


def test_where_not_one_row_fits_the_refusal_says_what_would(tmp_path: Path) -> None:
    (problem,) = misfits(paper_rows(tmp_path, "M8"), Machine(3.0, 8, "ddp", 512, None, None))
    assert problem.sentence.endswith(
        "no micro-batch fits: take more GPUs with --engine zero2, or GPUs with more memory"
    )


@pytest.mark.parametrize("engine", ["single", "ddp", "zero1", "zero2"])
def test_a_micro_batch_is_never_larger_than_a_step(tmp_path: Path, engine: EngineWord) -> None:
    (run,) = paper_rows(tmp_path, "M8")[0].stages
    sizes = [
        stage_memory(run, replace(PAPER_MACHINE, engine=engine, micro_batch_tokens=1 << n)).total for n in range(9, 21)
    ]
    assert sizes == sorted(sizes) and sizes[-1] == sizes[-2]


# Disk


def test_a_finished_stage_keeps_what_was_reckoned(tmp_path: Path) -> None:
    """A course of checkpoints with Adam's state, saved and dropped as training does."""
    run = tiny_run(model=tiny_run().recipe.model.model_copy(update={"vocabulary_size": 8192}))
    weights = build_masked_language_model(run.recipe.model, run.context).state_dict()
    optimizer = {f"{moment}/{name}": tensor.clone() for moment in ("m", "v") for name, tensor in weights.items()}
    claim = acquire(tmp_path / "claims")
    for step in range(0, 25, 2):
        checkpoints.save(tmp_path / "c", step, weights, optimizer, {}, claim.check)
        checkpoints.prune(tmp_path / "c", milestones(24), step)
    kept = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert kept == pytest.approx(checkpoint_bytes(run), rel=0.05)


def test_the_synthetic_corpus_is_as_large_as_it_was() -> None:
    """Smoke scale's narrow corpus has 526,349 tokens in 16,000 documents."""
    source = open_source("synthetic", synthetic_documents=16_000)
    assert corpus_bytes(source, "wikibook") == pytest.approx(526_349 * 2 + 16_000 * 12, rel=0.15)


def test_a_folders_corpus_is_as_large_as_its_texts(tmp_path: Path) -> None:
    texts = [f"text number {number} of a file " + "that says more " * (number % 7) for number in range(3000)]
    for file in range(20):
        write_table(tmp_path / "corpora" / "web" / f"{file:02d}.parquet", {"text": texts[file::20]})
    tokens, documents = DirectorySource(tmp_path).corpus_size("web")
    assert documents == pytest.approx(3000, rel=0.02)
    assert tokens * CHARACTERS_PER_TOKEN == pytest.approx(sum(map(len, texts)), rel=0.2)


def test_refinedweb_takes_two_bytes_a_token_and_twenty_a_document(tmp_path: Path) -> None:
    assert corpus_bytes(HUB, "web") == pytest.approx(600e9 * 2 + 968e6 * 20, rel=1e-3)
    both = costs_of(tmp_path, PAPER_MACHINE, "M2", "M4", stages=["pretrain"])
    assert both.total.disk_gb == pytest.approx(1219 + 2 * 131.9e6 * 40 / 1e9, rel=0.01), "one corpus, two stages"


# Before the queue


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (replace(ONE_GPU, micro_batch_tokens=32), "set micro_batch_tokens to 64 or more"),
        (Machine(None, 16, "ddp", 64, None, None), "has 8 rows per step for 16 processes: take 8 or fewer"),
        (Machine(None, 2, "ddp", 512, None, None), "set micro_batch_tokens to 256 or less"),
        (Machine(2.0, 1, "single", 512, None, None), "needs 2.5 GB on each GPU"),
    ],
)
def test_a_bad_split_is_found_before_the_queue(tmp_path: Path, machine: Machine, said: str) -> None:
    (problem,) = validate(rows_of(tmp_path, "M2"), Layout(tmp_path), machine)
    assert said in problem.sentence and not problem.missing
    if problem.wasteful:
        assert refuse([problem]) == [problem.sentence]
    else:
        with pytest.raises(ValueError, match="M2's pretraining stage 1"):
            refuse([problem])


def test_data_that_nobody_brought_is_missing(tmp_path: Path) -> None:
    said = r"corpus web .*prefetch\.py --variant M2 --scale paper --stages pretraining --data"
    with pytest.raises(MissingData, match=said):
        require_data(paper_rows(tmp_path, "M2", stages=["pretrain"]), HUB)
    require_data(rows_of(tmp_path, "M2"), SYNTHETIC)


def test_a_parent_without_a_checkpoint_is_missing(tmp_path: Path) -> None:
    first = rows_of(tmp_path, "M9")[0].stages[0]
    publish_done(tmp_path, first)
    (problem,) = validate(rows_of(tmp_path, "M9"), Layout(tmp_path), ONE_GPU)
    assert problem.missing and first.id in problem.sentence


def test_a_model_of_another_size_than_planned_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neobert.model.layers import FEEDFORWARDS

    monkeypatch.setitem(FEEDFORWARDS, "swiglu", FEEDFORWARDS["gelu"])
    (problem,) = validate(rows_of(tmp_path, "M2"), Layout(tmp_path), ONE_GPU)
    assert "but the plan counts" in problem.sentence


# Sizes of the GLUE tasks

STATED = {
    "mnli": (74_619_646, 392_702, 9_815 + 9_832),
    "qnli": (25_612_443, 104_743, 5_463),
    "qqp": (50_900_820, 363_846, 40_430),
    "rte": (847_320, 2_490, 277),
    "sst2": (4_681_603, 67_349, 872),
    "mrpc": (943_843, 3_668, 408),
    "cola": (484_869, 8_551, 1_043),
    "stsb": (754_791, 5_749, 1_500),
}
"""dataset_info on nyu-mll/glue's card: bytes and examples of the train split, examples of all validation splits."""


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_as_large_as_its_card_says(task: str) -> None:
    """Bytes of an example in Arrow: its texts, an offset of 4 bytes for each, its number in 4, its label in 8, or in 4
    where it is a float."""
    size, train_bytes = PUBLISHED[task], STATED[task][0]
    assert (size.train, size.validation) == STATED[task][1:]
    others = 4 * len(task_named(task).columns) + 4 + (4 if task == "stsb" else 8)
    assert size.characters == pytest.approx(train_bytes / size.train - others, abs=0.05)


@pytest.mark.parametrize(("task", "tokens"), [("mnli", 170 / 4.5 + 3), ("sst2", 53.5 / 4.5 + 2)])
def test_an_example_has_tokens_for_its_text_and_its_specials_up_to_the_protocols_most(task: str, tokens: float) -> None:
    assert PUBLISHED[task].tokens(task_named(task), 512) == pytest.approx(tokens)
    assert PUBLISHED[task].tokens(task_named(task), 7) == 7


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs ../shared/data")
@pytest.mark.parametrize("task", TASKS)
def test_real_tasks_have_that_size(task: str) -> None:
    """Copies differ in spaces at ends of lines and around punctuation, so characters by up to 3 %."""
    source = open_source(str(REAL_DATA), synthetic_documents=1)
    if source.tasks()[task]:
        pytest.skip(str(source.tasks()[task]))
    splits = {split: source.task_examples(task, split) for split in TASK_SPLITS[task]}
    train = splits.pop("train")
    rows = zip(*(train[column] for column in task_named(task).columns), strict=True)
    characters = statistics.fmean(sum(len(str(text).encode()) for text in row) for row in rows)
    assert len(train["label"]) == PUBLISHED[task].train
    assert sum(len(split["label"]) for split in splits.values()) == PUBLISHED[task].validation
    assert characters == pytest.approx(PUBLISHED[task].characters, rel=0.03)


@pytest.mark.parametrize("words", [None, ["a", 7], "a b"])
def test_an_own_task_whose_words_are_none_is_refused_where_its_costs_are_counted(tmp_path: Path, words: object) -> None:
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"words": words, "label": ["O", "X"]}) + "\n")
    task = Task(
        name="tags",
        kind="token_classification",
        columns=("words",),
        metrics=("accuracy",),
        classes=("O", "X"),
        folder=str(tmp_path),
    )
    with pytest.raises(ValueError, match=r"tags train, row 0: 'words' is .*, not a list of words"):
        task_size(SYNTHETIC, task)
