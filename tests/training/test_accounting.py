"""What a run says of its own cost: rate, padding, work, utilization, phases, memory; and a trace that costs no bit."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from neobert.files import read_lines
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.size import datasheet_peak, training_flops_per_token
from neobert.training import accounting
from neobert.training.accounting import datasheet_ceiling, matmul_ceiling
from neobert.training.distributed import Process
from tests.support.tiny_runs import (
    STEPS,
    assert_equal_weights,
    beside,
    finish,
    record,
    tiny_run,
    trainer_of,
    write_tiny_run,
)

PHASES = {"data", "forward", "backward", "optimizer"}
PACKINGS = ("padded", "packed", "packed_across_documents")
TRACED_STEPS = 3
CPU = torch.device("cpu")
Runs = dict[str, PretrainingRun]


@pytest.fixture(scope="module")
def runs() -> Runs:
    return {packing: tiny_run(packing=packing) for packing in PACKINGS}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, runs: Runs) -> Path:
    """A folder with a finished run of each packing."""
    root = tmp_path_factory.mktemp("finished")
    for run in runs.values():
        write_tiny_run(root, run)
    finish(root, *(run.reference for run in runs.values()))
    return root


def step_lines(root: Path, run: PretrainingRun) -> list[dict[str, Any]]:
    return [line for line in read_lines(root / "pretraining" / run.id / "metrics.jsonl") if "loss" in line]


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_phases_of_a_step_add_up_to_its_seconds(finished: Path, runs: Runs, packing: str) -> None:
    lines = step_lines(finished, runs[packing])
    assert all(line["phase_seconds"].keys() == PHASES for line in lines)
    shares = [sum(line["phase_seconds"].values()) / line["seconds"] for line in lines]
    assert max(shares) < 1.001
    assert max(shares) > 0.8  # not of every step: another process may hold the core between two phases
    attributed = sum(sum(line["phase_seconds"].values()) for line in lines)
    means = record(finished, runs[packing])["phase_seconds"]
    assert sum(means.values()) * STEPS == pytest.approx(attributed, rel=1e-2)
    for line in lines:
        assert line["tokens_per_second"] == pytest.approx(line["real_tokens"] / line["seconds"], rel=1e-3)


@pytest.mark.parametrize("packing", PACKINGS)
def test_padding_and_work_are_those_of_the_tensors(finished: Path, runs: Runs, packing: str) -> None:
    """Counted anew in what the model was given."""
    run, told = runs[packing], record(finished, runs[packing])
    trainer = trainer_of(finished, run)
    real = slots = attended = 0
    for step in trainer.data():
        for batch in step.micro_batches:
            slots += batch.token_ids.numel()
            real += int((batch.plan.positions >= 0).sum())
            rows = torch.arange(len(batch.plan.doc_ids))[:, None].expand_as(batch.plan.doc_ids)[batch.plan.doc_ids >= 0]
            lengths = Counter(zip(rows.tolist(), batch.plan.doc_ids[batch.plan.doc_ids >= 0].tolist(), strict=True))
            attended += sum(length**2 for length in lengths.values())
    assert told["real_tokens"] == real
    assert told["padding"] == pytest.approx(1 - real / slots, abs=1e-12)
    per_token = training_flops_per_token(run.recipe.model, attended / real, run.recipe.masking.rate)
    assert told["flops"] == pytest.approx(per_token * real)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("processes", [1, 3])
def test_slots_count_the_filler_that_fixed_sizes_and_processes_add(
    finished: Path, runs: Runs, packing: str, processes: int
) -> None:
    batches = trainer_of(finished, runs[packing], micro_batch_tokens=96).batches
    feedings = []
    for rank in range(processes):
        batches.process = Process(rank, processes)
        feedings.append(list(islice(batches.steps(batches.rows(), few_sizes=True), 8)))
    for of_all in zip(*feedings, strict=True):
        held = sum(batch.token_ids.numel() for step in of_all for batch in step.micro_batches)
        assert {step.slots for step in of_all} == {held}


@pytest.mark.parametrize("packing", PACKINGS)
def test_utilization_follows_from_the_records_own_numbers(finished: Path, runs: Runs, packing: str) -> None:
    told = record(finished, runs[packing])
    utilization, rate = told["model_flops_utilization"], told["flops"] / told["seconds"]
    assert utilization["of_measured_ceiling"] == pytest.approx(
        rate / utilization["ceiling_flops_per_second"], rel=1e-3 / told["seconds"]
    )
    assert 0 < utilization["of_measured_ceiling"] < 1
    assert utilization["of_datasheet"] is None
    assert told["tokens_per_second"] == pytest.approx(told["real_tokens"] / told["seconds"], rel=1e-3 / told["seconds"])
    assert told["compiled"] is False and told["compile_seconds"] == 0
    assert told["peak_memory_bytes"].keys() == {"process"} and told["peak_memory_bytes"]["process"] > 1 << 26


def test_the_ceiling_is_measured_once_and_takes_no_random_number() -> None:
    state = torch.get_rng_state()
    ceiling = matmul_ceiling(CPU, "fp32")
    assert ceiling > 1e8 and matmul_ceiling(CPU, "fp32") == ceiling
    assert torch.equal(torch.get_rng_state(), state)
    assert datasheet_ceiling(CPU, "bf16") is None


def test_a_slow_first_product_does_not_end_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one of a process loads a GPU's libraries for seconds."""
    clock, sizes = [0.0], list[int]()

    def product(left: torch.Tensor, right: torch.Tensor, out: object = None) -> torch.Tensor:
        clock[0] += 1e-6 if sizes else 10
        sizes.append(len(left))
        return right

    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(accounting.time, "perf_counter", lambda: clock[0])
    accounting._measure_ceiling.__wrapped__(CPU, "fp32", 1)
    assert max(sizes) == max(accounting.SIZES["cpu"])


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA L40", None),
    ],
)
def test_a_gpu_is_found_in_the_table_by_its_whole_name(name: str, peak: float | None) -> None:
    assert datasheet_peak(name) == peak


def test_a_trace_holds_the_phases_of_its_steps_and_neither_it_nor_deterministic_kernels_change_a_bit(
    finished: Path, runs: Runs, tmp_path: Path
) -> None:
    root, run = beside(tmp_path / "traced", finished), runs["padded"]
    folder = write_tiny_run(root, run, trace_steps=TRACED_STEPS, deterministic=True)
    said = finish(root, run.reference)
    path = folder / "attempts" / "000001" / "trace.json"
    assert f"the trace of steps 4 to {3 + TRACED_STEPS} lies in {path}" in said
    events = json.loads(path.read_text())["traceEvents"]
    named = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
    assert named.keys() >= PHASES and named["data"] == named["optimizer"] == TRACED_STEPS
    assert named["forward"] == named["backward"] >= TRACED_STEPS
    assert [child.name for child in sorted(path.parent.iterdir())] == ["metrics.jsonl", "trace.json"]
    assert_equal_weights(root, finished, run)
    assert [line["loss"] for line in step_lines(root, run)] == [line["loss"] for line in step_lines(finished, run)]


def test_a_run_says_whether_kernels_are_deterministic(finished: Path, runs: Runs, tmp_path: Path) -> None:
    chosen = []
    for deterministic in (True, False):
        trainer_of(beside(tmp_path / str(deterministic), finished), runs["padded"], deterministic=deterministic)
        chosen.append(torch.are_deterministic_algorithms_enabled())
    assert chosen == [True, False]
