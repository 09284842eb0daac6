"""What a plan takes for the size of the GLUE tasks is what their publishers state, and what lies on the disk."""

import statistics
from pathlib import Path

import pytest

from ablations.costs import PUBLISHED
from neobert.data.catalog import TASK_SPLITS
from neobert.data.sources import open_source
from neobert.glue.tasks import TASKS, task_named

REAL = Path(__file__).resolve().parents[2] / "shared" / "data"
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
    others = 4 * len(task_named(task).text_columns) + 4 + (4 if task == "stsb" else 8)
    assert size.characters == pytest.approx(train_bytes / size.train - others, abs=0.05)


@pytest.mark.parametrize(("task", "tokens"), [("mnli", 170 / 4.5 + 3), ("sst2", 53.5 / 4.5 + 2)])
def test_an_example_has_tokens_for_its_text_and_its_specials_up_to_the_protocols_most(task: str, tokens: float) -> None:
    assert PUBLISHED[task].tokens(task, 512) == pytest.approx(tokens)
    assert PUBLISHED[task].tokens(task, 7) == 7


@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data")
@pytest.mark.parametrize("task", TASKS)
def test_real_tasks_have_that_size(task: str) -> None:
    """Copies differ in spaces at ends of lines and around punctuation, so characters by up to 3 %."""
    source = open_source(str(REAL), synthetic_documents=1)
    if source.tasks()[task]:
        pytest.skip(str(source.tasks()[task]))
    splits = {split: source.task_examples(task, split) for split in TASK_SPLITS[task]}
    train = splits.pop("train")
    rows = zip(*(train[column] for column in task_named(task).text_columns), strict=True)
    characters = statistics.fmean(sum(len(str(text).encode()) for text in row) for row in rows)
    assert len(train["label"]) == PUBLISHED[task].train
    assert sum(len(split["label"]) for split in splits.values()) == PUBLISHED[task].validation
    assert characters == pytest.approx(PUBLISHED[task].characters, rel=0.03)
