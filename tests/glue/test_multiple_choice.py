"""Multiple choice: a score for each pair of a text and a choice, and one softmax over the choices, as transformers'."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForMultipleChoice, BertConfig

from neobert.glue.batching import PackedLayout, PaddedLayout
from neobert.glue.encoding import ChoiceSplit, EncodedTask, encode_task, load_encoded, save_encoded
from neobert.glue.finetuning import FineTuner
from neobert.glue.metrics import evaluate
from neobert.glue.tasks import Task
from neobert.hub.external import ExternalEncoder
from neobert.model.attention import whole_rows_plan
from neobert.model.heads import Classifier
from tests.glue.glue_worlds import CPU, VOCABULARY, classifier, encoder_weights, point, protocol
from tests.support.external_models import CONTEXT, SHAPE, specials, tokenizer

TASK = Task(name="goals", kind="multiple_choice", columns=("goal", "a", "b", "c"), metrics=("accuracy",))
ROWS = {
    "goal": ["the cat is hungry", "rain", "it is late in the day"],
    "a": ["it sleeps", "an umbrella", "go home"],
    "b": ["it eats a mouse and drinks", "a hat", "begin"],
    "c": ["it reads", "", "wait for the morning"],
    "label": [1, 0, 2],
}


def encoded(most: int = CONTEXT) -> EncodedTask:
    return encode_task(TASK, {"train": ROWS, "validation": ROWS}, tokenizer(), most)


def marked_questions(count: int, seed: int, choices: int = 3) -> ChoiceSplit:
    """Questions of a few tokens; the choice with token 7 is right."""
    rng = np.random.default_rng(seed)
    labels, texts = rng.integers(0, choices, count), []
    for right in labels:
        asked = rng.integers(10, VOCABULARY, rng.integers(1, 5))
        for choice in range(choices):
            texts.append(
                [1, *asked, 2, 7 if choice == right else 8, *rng.integers(10, VOCABULARY, rng.integers(0, 6)), 2]
            )
    offsets = np.cumsum([0, *map(len, texts)])
    token_ids = np.concatenate(texts).astype(np.int32)
    return ChoiceSplit(token_ids, offsets, np.zeros(len(token_ids), np.int8), labels)


def test_a_question_has_a_pair_for_each_choice_and_is_one_example(tmp_path: Path) -> None:
    train = encoded().splits["train"]
    assert isinstance(train, ChoiceSplit) and (len(train), train.choices, TASK.labels, TASK.outputs) == (3, 3, 3, 1)
    texts = [(ROWS["goal"][row], ROWS[choice][row]) for row in range(3) for choice in "abc"]
    for number, (goal, choice) in enumerate(texts):
        (framed,) = tokenizer().frame_all([[goal], [choice]], max_tokens=CONTEXT)
        assert train[number][0].tolist() == list(framed.token_ids)
    assert train.sizes.sum() == len(train.token_ids)
    chosen = train.take(np.array([2, 0]))
    assert chosen.labels.tolist() == [2, 1]
    assert chosen[0][0].tolist() == train[6][0].tolist() and chosen[5][0].tolist() == train[2][0].tolist()
    save_encoded(tmp_path / "goals", encoded())
    again = load_encoded(tmp_path / "goals").splits["validation"]
    assert isinstance(again, ChoiceSplit) and again.labels.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": [1, 3, 0]}, "row 1: label 3 is not one of 0, 1, 2"),
        ({"b": ["x", None, "y"]}, "row 1: 'b' is None, not a text"),
        ({"c": ["x", "y"]}, "column 'c' has 2 rows, but 'label' has 3"),
    ],
)
def test_rows_that_are_no_questions_are_refused_with_the_place(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode_task(TASK, {"train": ROWS | changes, "validation": ROWS}, tokenizer(), CONTEXT)


def test_scores_loss_and_predictions_are_those_of_transformers_class() -> None:
    """BERT's pooler is the layer `dense` of the head: the same weights give the same logits."""
    torch.manual_seed(0)
    configuration = BertConfig(**{**SHAPE, **specials(), "max_position_embeddings": CONTEXT, "initializer_range": 0.5})
    theirs = AutoModelForMultipleChoice.from_config(configuration).eval()
    ours = Classifier(ExternalEncoder(theirs.bert), SHAPE["hidden_size"], TASK.outputs, 0.0).eval()
    ours.dense.load_state_dict(theirs.bert.pooler.dense.state_dict())
    ours.classifier.load_state_dict(theirs.classifier.state_dict())
    train, layout = encoded().splits["train"], PaddedLayout(specials()["pad_token_id"], CONTEXT)
    batch = layout.collate(train, np.arange(3), CPU)
    inputs = (batch.texts.token_ids, batch.texts.mask, batch.texts.token_types)
    ids, mask, types = (each.reshape(3, 3, -1) for each in inputs)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask, token_type_ids=types, labels=torch.tensor(ROWS["label"]))
    tuner = FineTuner(ours, encoder_weights(ours), encoded(), protocol(), CPU, layout)
    with torch.no_grad():
        logits = tuner._logits(batch)
        torch.testing.assert_close(logits, expected.logits, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(tuner._loss(logits, batch.labels), expected.loss)
    predictions = tuner.predict()
    np.testing.assert_allclose(predictions["validation"], expected.logits.numpy(), rtol=1e-5, atol=1e-5)
    right = (expected.logits.argmax(dim=1).numpy() == ROWS["label"]).mean()
    assert evaluate(TASK, predictions, encoded().labels).score == pytest.approx(right)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 12), pooling=st.sampled_from(["cls", "mean"]))
def test_choices_of_a_packed_batch_score_as_alone(seed: int, count: int, pooling: str) -> None:
    split, model, layout = marked_questions(count, seed), classifier(TASK.outputs).eval(), PackedLayout()
    examples = np.random.default_rng(seed).permutation(count)
    with torch.no_grad():
        batch = layout.collate(split, examples, CPU)
        together = layout.logits(model, batch, pooling).reshape(-1, 3)
        for row, example in enumerate(examples):
            for choice in range(3):
                ids = torch.from_numpy(split[3 * example + choice][0]).long()[None]
                hidden = model.model(ids, whole_rows_plan(ids))[0]
                pooled = hidden[:1] if pooling == "cls" else hidden.mean(dim=0, keepdim=True)
                torch.testing.assert_close(together[row, choice], model.head(pooled)[0, 0], rtol=1e-5, atol=1e-5)
    assert batch.labels.tolist() == split.labels[examples].tolist()


def test_choices_are_learned_and_equal_runs_give_equal_bits() -> None:
    content = EncodedTask(TASK, {"train": marked_questions(200, 1), "validation": marked_questions(60, 2)})
    model = classifier(TASK.outputs)
    tuner = FineTuner(model, encoder_weights(model), content, protocol(epochs=4), CPU)
    first, again = (tuner.run(point(learning_rate=5e-3), 0) for _ in range(2))
    assert first.predictions["validation"].shape == (60, 3)
    assert first.metrics["accuracy"] > 0.9
    np.testing.assert_array_equal(first.predictions["validation"], again.predictions["validation"])
