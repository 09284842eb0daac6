"""A score bias is one class and one row, an optimizer one row: ALiBi and RAdam, added in a copy of the tree."""

import inspect
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from neobert import recipe
from neobert.model import build, positions
from neobert.model.attention import AttentionPlan, GatherIndex, packed_plan, padded_plan, whole_rows_plan
from neobert.model.encoder import Encoder
from neobert.model.positions import Positions
from tests.support.small_models import CONTEXT, pack, random_document, small_model
from tests.support.tree_copy import fresh_clone, shell, shrink_smoke_scale


class ALiBiPositions(Positions):
    """Scores fall with the distance of two tokens, in each head at another rate (Press et al. 2022), to both sides."""

    def __init__(self, model: recipe.Model, context: int) -> None:
        super().__init__()
        self.slopes = [2.0 ** (-8 * (head + 1) / model.heads) for head in range(model.heads)]

    def score_bias(self, positions: Tensor) -> Tensor:
        """−slope × distance: (rows, heads, tokens, tokens)."""
        distances = (positions[:, None, :, None] - positions[:, None, None, :]).abs()
        return -torch.tensor(self.slopes, device=positions.device)[:, None, None] * distances


POSITIONS_ROW = '    "alibi": ALiBiPositions,\n'
OPTIMIZER_ROW = """    "radam": lambda model, recipe: torch.optim.RAdam(
        model.parameters(),
        lr=recipe.peak_learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
        weight_decay=recipe.weight_decay,
        decoupled_weight_decay=True,
    ),
"""
ALIBI_VARIANT = """
M8_ALIBI = M8.derive(
    "M8@alibi", Modification("ALiBi", source="Press et al. 2022", model={"positions": "alibi"}), kept=False
)
"""
RADAM_VARIANT = """
M8_RADAM = M8.derive(
    "M8@radam", Modification("RAdam", source="Liu et al. 2020", optimization={"optimizer": "radam"}), kept=False
)
"""


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Encoder:
    monkeypatch.setitem(positions.POSITIONS, "alibi", ALiBiPositions)
    encoder = build.build_encoder(small_model().model_copy(update={"positions": "alibi"}), CONTEXT)
    build.initialize(encoder, small_model().initialization, seed=0)
    return encoder


@torch.no_grad()
def test_packed_padded_and_alone_a_document_has_the_same_states_under_a_score_bias(encoder: Encoder) -> None:
    documents = [random_document(length, length) for length in (5, 3, 7)]
    token_ids, numbers, places = pack([documents[:2], documents[2:]], CONTEXT)
    plans = [packed_plan(numbers, places), AttentionPlan(places, None, torch.tensor([0]), CONTEXT, numbers)]
    padded_ids, padded_numbers, _ = pack([[document] for document in documents], CONTEXT)
    padded = encoder(padded_ids, padded_plan(padded_numbers >= 0))
    for plan in plans:  # the second one is that for variable-length kernels
        packed = encoder(token_ids, plan)
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
    in_a_run = GatherIndex(flat_places, boundaries=torch.tensor([0, 2, 3, 4], dtype=torch.int32))
    for slots in (by_row, in_a_run):
        states = encoder(token_ids, packed_plan(numbers, places), slots)
        torch.testing.assert_close(states, everywhere.flatten(0, 1)[flat_places[0]], rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_score_bias_tells_places_apart(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    document = random_document(8)[None]
    reordered = document[:, [0, 1, 2, 4, 3, 5, 6, 7]]
    states = [encoder(ids, whole_rows_plan(ids))[0, 0] for ids in (document, reordered)]
    assert not torch.allclose(*states, atol=1e-4)
    monkeypatch.setattr(ALiBiPositions, "score_bias", lambda self, positions: None)
    states = [encoder(ids, whole_rows_plan(ids))[0, 0] for ids in (document, reordered)]
    torch.testing.assert_close(*states, rtol=0, atol=1e-5)


def test_a_kernel_that_takes_no_score_bias_is_refused_by_name(encoder: Encoder) -> None:
    class OwnAttention:
        def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return value

    document = random_document(4)[None]
    plan = whole_rows_plan(document)
    with pytest.raises(ValueError, match="OwnAttention takes no score bias"):
        encoder(document, AttentionPlan(plan.positions, attention=OwnAttention()))
    with pytest.raises(ValueError, match="variable-length attention takes no score bias"):
        encoder(document, AttentionPlan(plan.positions, boundaries=torch.tensor([0, 4])))


def insert(path: Path, before: str, text: str) -> None:
    content = path.read_text(encoding="utf-8")
    assert content.count(before) == 1, f"{before!r} stands {content.count(before)} times in {path}"
    path.write_text(content.replace(before, text + before), encoding="utf-8")


def replace(path: Path, old: str, new: str) -> None:
    insert(path, old, new)
    path.write_text(path.read_text(encoding="utf-8").replace(old, ""), encoding="utf-8")


def test_a_score_bias_is_a_class_and_a_row_and_an_optimizer_a_row(tmp_path: Path) -> None:
    """A variant with each is pre-trained in a copy of the tree."""
    tree = fresh_clone(tmp_path / "clone")
    shrink_smoke_scale(tree)
    module = tree / "neobert/model/positions.py"
    table = 'POSITIONS: dict[str, Callable[[recipe.Model, int], Positions]] = {\n    "learned"'
    insert(module, table, f"{inspect.getsource(ALiBiPositions)}\n\n")
    insert(module, '    "rotary": RotaryPositions,\n', POSITIONS_ROW)
    replace(tree / "neobert/recipe.py", 'positions: Literal["learned",', 'positions: Literal["alibi", "learned",')
    insert(tree / "neobert/training/optimization.py", '    "muon": _muon,\n', OPTIMIZER_ROW)
    replace(tree / "neobert/recipe.py", 'optimizer: Literal["adam",', 'optimizer: Literal["radam", "adam",')
    insert(tree / "ablations/ladder.py", "\nTITLE = ", ALIBI_VARIANT + RADAM_VARIANT)
    names = {"M8@alibi", "M8@radam"}
    answer = shell(
        tree, f".venv/bin/python ablations/run.py --variant {' '.join(names)} --stages pretrain --cluster here"
    )
    assert answer.returncode == 0, answer.stderr
    records = [json.loads(path.read_text()) for path in tree.glob("runs/pretraining/*/done.json")]
    assert {name for record in records for name in record["labels"]["variants"]} == names
    for record in records:
        lines = (tree / "runs/pretraining" / record["id"] / "metrics.jsonl").read_text().splitlines()
        losses = [line["loss"] for line in map(json.loads, lines) if "loss" in line]
        assert len(losses) == 6 and all(0 < loss < 20 for loss in losses)
