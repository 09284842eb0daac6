"""What a run says of its own cost: rate, padding, work, memory."""

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch

from neobert.kinds.pretraining import PretrainingRun
from neobert.model.size import datasheet_peak, training_flops_per_token
from neobert.training.distributed import Process
from tests.support.tiny_runs import beside, finish, record, tiny_run, trainer_of, write_tiny_run

PACKINGS = ("padded", "packed", "packed_across_documents")
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
    trainer, feedings = trainer_of(finished, runs[packing], micro_batch_tokens=96), []
    trainer.compiled = True
    for rank in range(processes):
        trainer.process = Process(rank, processes)
        trainer.restore_data(trainer.data_state)
        feedings.append(list(islice(trainer.data(), 8)))
    for of_all in zip(*feedings, strict=True):
        held = sum(batch.token_ids.numel() for step in of_all for batch in step.micro_batches)
        assert {step.slots for step in of_all} == {held}


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_rate_follows_from_the_records_own_numbers(finished: Path, runs: Runs, packing: str) -> None:
    told = record(finished, runs[packing])
    assert told["tokens_per_second"] == pytest.approx(told["real_tokens"] / told["seconds"], rel=1e-3 / told["seconds"])
    assert told["compiled"] is False and told["compile_seconds"] == 0
    assert told["model_flops_utilization"] == {"of_datasheet": None}
    assert told["peak_memory_bytes"].keys() == {"process"} and told["peak_memory_bytes"]["process"] > 1 << 26


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


def test_a_run_says_whether_kernels_are_deterministic(finished: Path, runs: Runs, tmp_path: Path) -> None:
    chosen = []
    for deterministic in (True, False):
        trainer_of(beside(tmp_path / str(deterministic), finished), runs["padded"], deterministic=deterministic)
        chosen.append(torch.are_deterministic_algorithms_enabled())
    assert chosen == [True, False]
