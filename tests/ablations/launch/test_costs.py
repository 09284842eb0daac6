"""What a plan says it costs: against the paper's published hours, and as costs behave."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ablations import run
from ablations.launch.checks import require_data, require_memory, require_startable
from ablations.launch.costs import PUBLISHED, Cost, Machine, PlanCosts, checkpoint_bytes, corpus_bytes
from ablations.plan import STAGES, VariantRow
from neobert.data.sources import open_source
from neobert.errors import MissingData
from neobert.glue.tasks import task_named
from neobert.kinds.glue import GlueStudy
from neobert.model.build import build_masked_language_model
from neobert.runs.claims import acquire
from neobert.runs.layout import Layout
from neobert.training import checkpoints
from neobert.training.schedule import milestones
from tests.ablations.plans import SYNTHETIC, rows_of
from tests.ablations.status_worlds import finish_pretraining, record_trial
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


# GPU-hours


def test_at_the_papers_throughput_neobert_takes_the_papers_hours(tmp_path: Path) -> None:
    machine = replace(PAPER_MACHINE, tokens_per_second_per_gpu=PAPER_TOKENS_PER_SECOND)
    hours = costs_of(tmp_path, machine, "M9", stages=["pretrain"]).total.gpu_hours
    assert hours == pytest.approx(PAPER_GPU_HOURS, rel=0.06)  # the paper rounds 2.2T slots down


def test_a_named_gpu_gives_the_papers_hours_at_the_papers_share_of_its_peak(tmp_path: Path) -> None:
    cost = costs_of(tmp_path, PAPER_MACHINE, "M9", stages=["pretrain"]).total
    assert 0.38 * (cost.gpu_hours or 0) == pytest.approx(0.16 * PAPER_GPU_HOURS, rel=0.05)
    assert str(PAPER_MACHINE.source).startswith("stated: 38% of H100's 989 TFLOP/s bf16; ")


def test_a_plan_at_the_papers_scale_counts_published_data_on_an_assumed_h100(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["--variant", "M7", "--scale", "paper", "--dry-run", "--json", "--runs", str(tmp_path)]
    said = []
    for flags in ([], ["--gpu", "H200"], ["--data", "hub"]):
        assert run.main([*plan, *flags]) == 0
        (entry,) = json.loads(capsys.readouterr().out)
        said.append(entry)
    usual, named, published = said
    assert usual == published and usual["disk_gb"] > 1000
    assert usual["gpu_hours_source"].startswith("assumed: 38% of H100's 989 TFLOP/s bf16; at least 8 ms")
    assert named["gpu_hours_source"].startswith("stated: 38% of H200's") and named["gpu_hours"] == usual["gpu_hours"]


def test_done_units_cost_nothing_and_shared_ones_count_once(tmp_path: Path) -> None:
    separate = [costs_of(tmp_path, PAPER_MACHINE, name).total.gpu_hours or 0 for name in ("M9", "M10")]
    both = costs_of(tmp_path, PAPER_MACHINE, "M9", "M10")
    together_hours, rows_hours = both.total.gpu_hours or 0, [both.row(row).gpu_hours for row in both.rows]
    assert rows_hours == pytest.approx(separate)
    assert max(separate) <= together_hours < sum(separate) - 2400
    (m9,) = paper_rows(tmp_path, "M9")
    finish_pretraining(Layout(tmp_path), m9.stages[0])
    rest = costs_of(tmp_path, PAPER_MACHINE, "M9")
    assert rest.of(m9.stages[0]) == Cost()
    assert rest.total.gpu_hours == pytest.approx(sum(rest.of(unit.run).gpu_hours or 0 for unit in m9.planned[1:]))


def test_recorded_trials_are_not_paid_again(tmp_path: Path) -> None:
    def hours() -> float:
        return costs_of(tmp_path, PAPER_MACHINE, "M2").of(study).gpu_hours or 0

    (row,) = paper_rows(tmp_path, "M2")
    study = next(unit.run for unit in row.planned if isinstance(unit.run, GlueStudy) and unit.run.task == "cola")
    before, point = hours(), study.points[0]
    record_trial(Layout(tmp_path), study, 0)
    same = [other for other in study.points if other.batch_size == point.batch_size]
    assert 0 < hours() < before and len(same) == 3


# Memory


def test_a_refusal_names_the_largest_micro_batch_that_fits(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no micro-batch fits: take more GPUs with --engine zero2, or GPUs with more"):
        require_memory(paper_rows(tmp_path, "M8"), Machine(3.0, 8, "ddp", 512, None, None))
    require_memory(paper_rows(tmp_path, "M9"), PAPER_MACHINE)  # the paper's own settings fit into its GPUs
    machine = replace(PAPER_MACHINE, gpu_memory_gb=24, micro_batch_tokens=1 << 17)
    rows = paper_rows(tmp_path, "M8")
    with pytest.raises(ValueError, match=r"M8's pretraining stage 1 needs .* GB on each GPU.* would fit$") as refusal:
        require_memory(rows, machine)
    named = int(str(refusal.value).split("micro_batch_tokens ")[1].split()[0])
    require_memory(rows, replace(machine, micro_batch_tokens=named))
    with pytest.raises(ValueError, match="would fit"):
        require_memory(rows, replace(machine, micro_batch_tokens=2 * named))


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


def test_refinedweb_takes_two_bytes_a_token_and_twenty_a_document(tmp_path: Path) -> None:
    assert corpus_bytes(HUB, "web") == pytest.approx(600e9 * 2 + 968e6 * 20, rel=1e-3)
    both = costs_of(tmp_path, PAPER_MACHINE, "M2", "M4", stages=["pretrain"])
    assert both.total.disk_gb == pytest.approx(1219 + 2 * 131.9e6 * 40 / 1e9, rel=0.01), "one corpus, two stages"


# Before the queue


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (replace(ONE_GPU, micro_batch_tokens=32), "set micro_batch_tokens to 64 or more"),
        (Machine(2.0, 1, "single", 512, None, None), "needs 2.5 GB on each GPU"),
    ],
)
def test_what_cannot_start_is_found_before_the_queue(tmp_path: Path, machine: Machine, said: str) -> None:
    with pytest.raises(ValueError, match=f"M2's pretraining stage 1 .*{said}"):
        require_startable(rows_of(tmp_path, "M2"), Layout(tmp_path), machine)


def test_data_that_nobody_brought_is_missing(tmp_path: Path) -> None:
    said = r"corpus web .*prefetch\.py --variant M2 --scale paper --stages pretraining --data"
    with pytest.raises(MissingData, match=said):
        require_data(paper_rows(tmp_path, "M2", stages=["pretrain"]), HUB)
    require_data(rows_of(tmp_path, "M2"), SYNTHETIC)


def test_a_parent_without_a_checkpoint_is_missing(tmp_path: Path) -> None:
    first = rows_of(tmp_path, "M9")[0].stages[0]
    finish_pretraining(Layout(tmp_path), first)
    with pytest.raises(MissingData, match=f"needs pretraining/{first.id}, which is not planned"):
        require_startable(rows_of(tmp_path, "M9"), Layout(tmp_path), ONE_GPU)


def test_a_task_is_as_large_as_its_card_says() -> None:
    """dataset_info on nyu-mll/glue's card: bytes of the train split. Bytes of an example in Arrow: its texts, an offset
    of 4 bytes for each, its number in 4, its label in 8, or in 4 where it is a float."""
    for task, stated in {"mnli": 74_619_646, "qqp": 50_900_820, "cola": 484_869, "stsb": 754_791}.items():
        size = PUBLISHED[task]
        others = 4 * len(task_named(task).columns) + 4 + (4 if task == "stsb" else 8)
        assert size.characters == pytest.approx(stated / size.train - others, abs=0.05)
