"""Own parts: a score bias on every plan, and parts of a ladder file that are trained where the file is not."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ablations import loading
from ablations.plan import plan
from ablations.run import main
from neobert.errors import EXIT_REFUSED, EXIT_RUN_FAILED
from neobert.execution import Execution
from neobert.files import read_lines
from neobert.kinds.pretraining import PretrainingRun
from neobert.model import build
from neobert.model.attention import AttentionPlan, GatherIndex, packed_plan, padded_plan, whole_rows_plan
from neobert.model.encoder import Encoder
from neobert.model.size import parameter_count
from neobert.own_code import is_own
from neobert.runs.layout import Layout
from neobert.runs.records import read_record, read_sealed, sealed
from neobert.runs.run_file import SourceSpecification
from neobert.training import checkpoints
from tests.ablations.plans import SYNTHETIC
from tests.support.own_parts import ALiBiPositions
from tests.support.small_models import CONTEXT, pack, random_document, small_model
from tests.support.tiny_runs import worker


@pytest.fixture
def encoder() -> Encoder:
    encoder = build.build_encoder(small_model(positions=ALiBiPositions), CONTEXT)
    build.initialize(encoder, small_model().initialization, seed=0)
    return encoder


@torch.no_grad()
def test_packed_padded_and_alone_a_document_has_the_same_states_under_a_score_bias(encoder: Encoder) -> None:
    documents = [random_document(length, length) for length in (5, 3, 7)]
    token_ids, numbers, places = pack([documents[:2], documents[2:]], CONTEXT)
    plans = [packed_plan(numbers, places), AttentionPlan(places, None, torch.tensor([0]), CONTEXT, numbers)]
    padded_ids, padded_numbers, _ = pack([[document] for document in documents], CONTEXT)
    padded = encoder(padded_ids, padded_plan(padded_numbers >= 0))
    for each in plans:  # the second one is that for variable-length kernels
        packed = encoder(token_ids, each)
        for document, states, row, number in zip(documents, padded, (0, 0, 1), (0, 1, 0), strict=True):
            alone = encoder(document[None], whole_rows_plan(document[None]))[0]
            torch.testing.assert_close(states[: len(document)], alone, rtol=0, atol=1e-5)
            torch.testing.assert_close(packed[row, numbers[row] == number], alone, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_score_bias_holds_at_masked_positions_alone(encoder: Encoder) -> None:
    """The last block computes some queries: in lines of their rows, or in one run as variable-length kernels want."""
    token_ids, numbers, places = pack([[random_document(6)], [random_document(4, 1), random_document(3)]], CONTEXT)
    everywhere = encoder(token_ids, packed_plan(numbers, places))
    by_row = GatherIndex.at(torch.tensor([[0, 4], [1, 5]]), CONTEXT)
    flat_places = torch.tensor([[0, 4, CONTEXT + 1, CONTEXT + 5]])
    in_a_run = GatherIndex(flat_places, cu_seqlens=torch.tensor([0, 2, 3, 4], dtype=torch.int32))
    for slots in (by_row, in_a_run):
        states = encoder(token_ids, packed_plan(numbers, places), slots)
        torch.testing.assert_close(states, everywhere.flatten(0, 1)[flat_places[0]], rtol=0, atol=1e-5)


def test_a_kernel_that_takes_no_score_bias_is_refused_by_name(encoder: Encoder) -> None:
    class OwnAttention:
        def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return value

    document = random_document(4)[None]
    plan = whole_rows_plan(document)
    with pytest.raises(ValueError, match="OwnAttention takes no score bias"):
        encoder(document, AttentionPlan(plan.positions, attention=OwnAttention()))
    with pytest.raises(ValueError, match="variable-length attention takes no score bias"):
        encoder(document, AttentionPlan(plan.positions, cu_seqlens=torch.tensor([0, 4])))


LADDER = '''
"""Own parts."""
import math
from dataclasses import replace

import torch
from torch import nn

from ablations import ladder
from ablations.scales import SMOKE
from ablations.variant import Modification
from neobert.model.layers import GELUFeedForward, SelfInitialized

SHAPE = {(12, 768): (2, 16)}
SCALES = {"tiny": replace(SMOKE, shapes={"trained": SHAPE, "published": SHAPE}, heads=2, contexts={512: 32},
                          tokens_per_step={131_072: 64}, steps={1_000_000: 4}, documents=60)}
SMALL = 1e-3


class Scaled(GELUFeedForward, SelfInitialized):
    def __init__(self, width, nominal_width, start=SMALL):
        super().__init__(width, nominal_width)
        self.scale, self.start = nn.Parameter(torch.empty(width)), start

    def initialize(self):
        self.scale.fill_(self.start)

    def forward(self, hidden):
        return super().forward(hidden) * self.scale


def radam(model, recipe, decoupled=True):
    return torch.optim.RAdam(model.parameters(), recipe.peak_learning_rate, decoupled_weight_decay=decoupled)


def cyclic(progress, cycles):
    return (1 + math.cos(2 * math.pi * cycles * progress)) / 2


M5 = replace(ladder.M5, parent=None, modifications=())
OWN = M5.derive("own", Modification(
    "All of them",
    source="here",
    model={"feedforward": Scaled, "settings": {"feedforward": {"start": 0.5}}},
    optimization={"optimizer": radam, "decay": cyclic, "settings": {"decay": {"cycles": 3}}},
))
'''


def planned(file: Path, runs: Path) -> PretrainingRun:
    """The run of the variant `own`, with its run.json."""
    own = loading.load(str(file))
    (row,) = plan(own, [own.variants["own"]], [0], "tiny", SYNTHETIC, Layout(runs), ["pretraining"])
    execution = Execution(threads=1, processes=1, micro_batch_tokens=64, checkpoint_interval_steps=2)
    row.write(Layout(runs), SYNTHETIC, SourceSpecification(name="synthetic", synthetic_documents=100), execution)
    (run,) = row.stages
    return run


def work(runs: Path, run: PretrainingRun) -> tuple[int, str]:
    """The exit code of a worker of another process, which has never seen a ladder, and what it said."""
    process = worker(runs, run.folder)
    said = process.communicate(timeout=200)[1].decode()
    return process.returncode, said


def test_own_parts_go_with_the_run_to_workers_that_never_see_the_file(tmp_path: Path) -> None:
    """They train, and the step is the one that the parts say: their first weights and learning rates."""
    file, runs = tmp_path / "mine.py", tmp_path / "runs"
    file.write_text(LADDER)
    run = planned(file, runs)
    file.write_text("raise RuntimeError")
    code, said = work(runs, run)
    assert code == 0, said
    record = read_record(runs / run.folder / "done.json")
    trained = record["config"]["recipe"]
    assert [is_own(trained["model"]["feedforward"]), is_own(trained["optimization"]["optimizer"])] == [True, True]
    start = checkpoints.load(runs / run.folder / "checkpoints", 0).weights()
    scales = [tensor for name, tensor in start.items() if name.endswith("ffn.scale")]
    assert len(scales) == 2 and all(torch.equal(scale, torch.full((16,), 0.5)) for scale in scales)
    assert sum(tensor.numel() for tensor in start.values()) == parameter_count(run.recipe.model, run.context).total
    lines = read_lines(runs / run.folder / "metrics.jsonl")
    stage, peak = run.recipe.stages[0], run.recipe.optimization.peak_learning_rate
    for line in (line for line in lines if "learning_rate" in line and stage.warmup_steps <= line["step"]):
        progress = (line["step"] - stage.warmup_steps) / (stage.decay_steps - stage.warmup_steps)
        share = (1 + math.cos(6 * math.pi * progress)) / 2 if progress < 1 else 0.0
        assert line["learning_rate"] == pytest.approx(peak * (0.1 + 0.9 * share))


def test_an_edit_of_the_file_plans_another_run_and_one_of_run_json_is_refused(tmp_path: Path) -> None:
    file, runs = tmp_path / "mine.py", tmp_path / "runs"
    file.write_text(LADDER)
    run = planned(file, runs)
    file.write_text(LADDER + "# a comment\n")
    assert planned(file, tmp_path / "others").id != run.id
    path = runs / run.folder / "run.json"
    content = read_sealed(path)
    name = run.recipe.model.feedforward
    content["own_code"][name] = content["own_code"][name].replace("* self.scale", "* self.scale * 2")
    path.write_bytes(sealed(content))
    code, said = work(runs, run)
    assert code == EXIT_RUN_FAILED
    assert f"the source of {name} was changed since it was named" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"feedforward": Scaled', '"feedforward": 3', "feedforward: Input should be a valid string"),
        (
            '"feedforward": Scaled',
            '"feedforward": "scaled"',
            "'scaled' is no part of this package: known: gelu, swiglu",
        ),
        ('"feedforward": Scaled', '"feedforward": nn.Identity', "Identity is from the package torch: only code of a"),
        ('{"feedforward": {"start"', '{"ffn": {"start"', "'ffn' is none: known: positions, feedforward, norm, block"),
        ('{"start": 0.5}', '{"begin": 0.5}', r"the feed-forward Scaled@\w+ cannot be made: got an unexpected keyword"),
        ("self.scale, self.start = ", "1 / 0; self.scale, self.start = ", "own cannot be built: ZeroDivisionError"),
        (
            "recipe, decoupled=",
            "recipe, other, decoupled=",
            r"radam@\w+ cannot be made: missing a required argument: 'other'",
        ),
        ('"cycles": 3', '"cycle": 3', r"the decay cyclic@\w+ cannot be made: missing a required argument: 'cycles'"),
    ],
)
def test_a_part_that_cannot_be_made_is_refused_in_a_sentence(
    tmp_path: Path, old: str, new: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(LADDER.replace(old, new))
    flags = ["--variant", "own", "--scale", "tiny", "--stages", "pretrain", "--dry-run", "--runs", str(tmp_path / "r")]
    assert main(["--ladder", str(file), *flags]) == EXIT_REFUSED
    assert re.search(sentence, capsys.readouterr().err)
