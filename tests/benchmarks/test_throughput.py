"""The benchmark of throughput times forward passes of whole rows, each model at its best batch, and records them."""

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import throughput
from benchmarks.__main__ import main, read_results
from benchmarks.measuring import count_operations
from benchmarks.pretraining import huggingface_shape
from benchmarks.throughput import CPU_SETTING, ENCODERS, QUARTERS, ROBERTA, ROUNDS, Encoder
from neobert.execution import utc_now
from neobert.files import replace_file
from neobert.runs.kinds import read_records
from neobert.runs.layout import Layout
from neobert.runs.records import ThroughputConfig, ThroughputScores, sealed

SHAPE = huggingface_shape(2, 64, 1, 96)
SMALL = (
    Encoder("small neobert", "neobert", {"layers": 2, "width": 64, "heads": 1, "feedforward_width": 96}),
    Encoder("small modernbert", "modernbert", SHAPE),
    Encoder("small bert", "bert", SHAPE),
    Encoder("small roberta", "roberta", ROBERTA | SHAPE),
)
SETTING = CPU_SETTING._replace(encoders=SMALL, lengths=(32, 1024), batch_tokens=(1024, 2048), steps=2, compared=32)


@pytest.mark.parametrize("tokens", [8, 32])
def test_operations_of_a_token_are_those_of_its_weights_and_of_attention(tokens: int) -> None:
    """All tokens of a row are attended to: two products of the width, with as many positions as tokens."""
    modules = SMALL[0].build("sdpa").modules()
    products = sum(each.weight.numel() for each in modules if isinstance(each, torch.nn.Linear))
    counted = count_operations({"ours": SETTING.forward(SMALL[0], tokens, 1)}, 1)
    assert counted == {"ours": 2 * products + 4 * tokens * 64 * 2}


def write(folder: Path, tokens: int, *walls: float) -> dict[str, Any]:
    """Write the record of passes with these times of a token."""
    record = SETTING.record(SMALL[0], tokens, 2, [1 / wall for wall in walls], utc_now())
    replace_file(Layout(folder).throughput(str(record["id"])), sealed(record))
    return record


def test_a_record_is_complete_read_by_the_reports_and_takes_the_place_of_an_older_one_alone(tmp_path: Path) -> None:
    write(tmp_path, 16, 0.5, 0.5)
    write(tmp_path, 32, 0.5, 0.5)
    record = write(tmp_path, 32, 0.5, 0.25, 0.2, 0.125)
    found, problems = read_records(tmp_path)
    (read,) = (each for each in found if each["id"] == record["id"])
    assert not problems and len(found) == 2 and {key: read[key] for key in record} == record
    assert read["started_at"] <= read["finished_at"]
    config = ThroughputConfig.model_validate(record["config"])
    assert (config.model, config.sequence_tokens, config.batch_size, config.steps) == ("small neobert", 32, 2, 8)
    scores = ThroughputScores.model_validate(record["scores"])
    assert scores.tokens_per_second == statistics.median([2, 4, 5, 8])
    assert scores.spread == pytest.approx(statistics.stdev([2, 4, 5, 8]))
    assert {"device", "date", "packages", "machine", "commit"} <= record.keys()


def test_without_a_gpu_the_small_models_are_measured_at_lengths_that_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "CPU_SETTING", SETTING)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["throughput", "--folder", str(tmp_path)]) == 0
    (ours,) = read_results(tmp_path)
    assert (ours["name"], ours["open"]) == ("throughput_over_modernbert", None) and ours["figures"]["threads"] == 1
    assert ours["ratio"] == ours["figures"]["ratio"]["processor"]["median"] > 0
    found = {(each["config"]["model"], each["config"]["sequence_tokens"]): each for each in read_records(tmp_path)[0]}
    lengths = {"small neobert": (32, 1024), "small modernbert": (32, 1024), "small bert": (32,), "small roberta": (32,)}
    assert found.keys() == {(name, tokens) for name, able in lengths.items() for tokens in able}
    for (_, tokens), record in found.items():
        assert record["config"]["batch_size"] in (1024 // tokens, 2048 // tokens)
        assert record["config"]["steps"] == ROUNDS * SETTING.steps


def test_real_sizes_have_the_parameters_that_are_published_for_them() -> None:
    """Without their heads; NeoBERT's 221.7 million and the rest to a hundredth."""
    millions = [221.7, 149.0, 108.9, 124.1, 334.1, 354.3, 394.8]
    with torch.device("meta"):
        for encoder, expected in zip(ENCODERS, millions, strict=True):
            count = sum(parameter.numel() for parameter in encoder.build("sdpa").parameters()) / 1e6
            assert count == pytest.approx(expected, rel=0.01), encoder.name


def test_quarters_have_a_quarter_of_the_depth_and_width() -> None:
    for quarter, whole in zip(QUARTERS, ENCODERS, strict=False):
        with torch.device("meta"):
            small, large = (
                [each.weight.shape for each in encoder.build("sdpa").modules() if isinstance(each, torch.nn.Linear)]
                for encoder in (quarter, whole)
            )
        assert small[0] == torch.Size(size // 4 for size in large[0]), quarter.name
        assert len(small) / len(large) == pytest.approx(0.25, rel=0.1), quarter.name
