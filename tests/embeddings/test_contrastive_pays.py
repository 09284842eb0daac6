"""What contrastive fine-tuning on real pairs is worth on five real tasks, of whose texts it saw none."""

import unicodedata
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import spearmanr

from ablations.run import main
from neobert.data.sources import open_source
from neobert.embeddings.encoders import TextEncoder
from neobert.errors import EXIT_DONE
from neobert.executors.encoders import load_encoder
from neobert.runs.kinds import read_records
from neobert.runs.layout import Layout
from tests.support.small_corpora import REAL_DATA

CPU = torch.device("cpu")
FOLDER = REAL_DATA / "mteb" / "STS"
TASKS = ("STS12", "STS13", "STS16", "STSBenchmark", "SICK-R")
real = pytest.mark.skipif(not FOLDER.is_dir(), reason="the real pairs and tasks are not here")


def similarity_rows(task: str) -> tuple[list[str], list[str], list[float]]:
    """First sentences, second sentences and how similar people found them."""
    (path,) = (FOLDER / task).glob("*.parquet")
    columns = pq.read_table(path, columns=["sentence1", "sentence2", "score"]).to_pydict()
    return columns["sentence1"], columns["sentence2"], columns["score"]


def similarity_scores(encoder: TextEncoder) -> dict[str, float]:
    """100 × Spearman's correlation of cosines with people's scores, for each task."""
    scores = {}
    for task in TASKS:
        first, second, judged = similarity_rows(task)
        vectors = encoder.encode([*first, *second])
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = np.sum(vectors[: len(first)] * vectors[len(first) :], axis=1)
        scores[task] = 100 * float(spearmanr(cosines, judged).statistic)
    return scores


def plain_words(text: str) -> str:
    """The text in lower case, without punctuation and symbols, with single spaces."""
    kept = (" " if unicodedata.category(letter)[0] in "PSZC" else letter for letter in text.lower())
    return " ".join("".join(kept).split())


@real
@pytest.mark.slow
def test_no_pair_that_is_trained_on_shares_a_text_with_the_five_tasks() -> None:
    """Compared as they are and as plain words; without the filter some do."""
    as_written = {text for task in TASKS for column in similarity_rows(task)[:2] for text in column}
    as_words = set(map(plain_words, as_written)) - {""}
    source = open_source(str(REAL_DATA), synthetic_documents=1, unseen=[str(FOLDER)])
    left_out, kept = 0, 0
    for name in source.pair_sets():
        for pair in source.pairs(name):
            texts = {pair.query, pair.document, *pair.negatives}
            if source.leaves_out(pair):
                left_out += 1
                continue
            kept += 1
            assert texts.isdisjoint(as_written) and as_words.isdisjoint(map(plain_words, texts)), texts
    print(f"{kept} pairs are trained on, {left_out} left out")
    assert left_out > 0 and kept > 100_000


@real
@pytest.mark.slow
def test_contrastive_fine_tuning_moves_five_similarity_tasks_far_above_zero_shot(tmp_path: Path) -> None:
    """M8 at smoke scale, pre-trained on real text, before and after 300 steps on labelled pairs of sentences.

    Neighbouring paragraphs of novels, dialogues, definitions and titles are left out: beside them the other four tasks
    gain, and STS13 loses.
    """
    flags = ["--variant", "M8", "--data", str(REAL_DATA), "--stages", "pretrain", "contrastive"]
    flags += ["--pairs", "labelled_positive_pairs", "snli_triplets"]
    assert main([*flags, "--without-texts-of", str(FOLDER), "--runs", str(tmp_path)]) == EXIT_DONE
    torch.set_num_threads(1)
    (record,) = (record for record in read_records(tmp_path)[0] if record["kind"] == "contrastive")
    assert sum(counts["shared"] for counts in record["pairs"].values()) > 0
    layout = Layout(tmp_path)
    before = similarity_scores(load_encoder(layout, record["inputs"]["weights"], CPU))
    after = similarity_scores(load_encoder(layout, record["id"], CPU))
    for task in TASKS:
        print(f"{task}: zero-shot {before[task]:.1f}, fine-tuned {after[task]:.1f}")
    gains = [after[task] - before[task] for task in TASKS]
    assert min(gains) > 0 and sum(gains) / len(gains) >= 5
