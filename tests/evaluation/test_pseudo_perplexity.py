"""Pseudo-perplexity: equal to masking one token after the other, with an interval that covers, once for each run."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ablations.launch.execute import measure_perplexity
from ablations.launch.flags import perplexity_flags
from ablations.run import build_parser
from ablations.run import main as run_main
from neobert.data.shards import Documents, TokenizedCorpus, all_documents
from neobert.data.tokenizers import SpecialIds
from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_REFUSED, MissingData, RunFailed
from neobert.evaluation.perplexity import (
    DocumentLoss,
    PerplexityMeasurement,
    PerplexityRun,
    measure_losses,
    pseudo_perplexity,
)
from neobert.evaluation.pseudo_perplexity import default_lengths, main, read_finished_run
from neobert.evaluation.texts import Passage, choose_documents, cut_passages, open_files
from neobert.model.attention import whole_rows_plan
from neobert.model.build import build_masked_language_model
from neobert.model.heads import MaskedLanguageModel
from neobert.processes import REPOSITORY, Stopped, StopRequest
from neobert.runs.layout import Layout
from neobert.runs.records import PerplexityConfig, PerplexityScores, read_record, read_records
from neobert.runs.specifications import PretrainingRun
from neobert.training.trainer import last_checkpoint
from tests.support.small_models import FORMS, language_model
from tests.support.tiny_runs import (
    Trainable,
    claimed,
    tiny_model,
    tiny_run,
    tiny_stage,
    work,
    write_tiny_run,
)

Ended = subprocess.CompletedProcess[str]
IDS = SpecialIds(pad=0, cls=2, sep=3, mask=4, unk=1, first_text_id=5, end_text_id=50)


def corpus_of(*texts: list[int], hashes: list[int] | None = None) -> TokenizedCorpus:
    """A corpus of these token ids; texts hash to 10, 20, … unless told."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    given = hashes or [10 * (number + 1) for number in range(len(texts))]
    tokens = np.array([token for text in texts for token in text], dtype=np.uint16)
    return TokenizedCorpus(IDS, lengths, 4 * lengths, np.array(given, dtype=np.uint64), (tokens,), {})


def documents_of(*texts: list[int], hashes: list[int] | None = None) -> Documents:
    """All of such a corpus."""
    return all_documents(corpus_of(*texts, hashes=hashes))


def text_of(length: int, seed: int = 0) -> list[int]:
    """`length` ordinary token ids."""
    return np.random.default_rng([seed, length]).integers(5, 50, length).tolist()


def losses_of(model: MaskedLanguageModel, passage: Passage, batch_tokens: int = 64) -> NDArray[np.float64]:
    """In fp32 on the CPU."""
    return measure_losses(model.eval(), passage, IDS.mask, "fp32", batch_tokens)


@torch.no_grad()
def one_by_one(model: MaskedLanguageModel, passage: Passage) -> list[float]:
    """−log p by the definition: a whole forward pass for each token, scores of all tokens."""
    losses = []
    for place in passage.positions.tolist():
        token_ids = torch.from_numpy(passage.token_ids)[None].clone()
        token_ids[0, place] = IDS.mask
        logits = model.logits(token_ids, whole_rows_plan(token_ids))[0, place]
        losses.append(-float(logits.double().log_softmax(dim=0)[int(passage.token_ids[place])]))
    return losses


@pytest.mark.parametrize("batch_tokens", [1, 20, 41, 10_000])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_loss_is_that_of_masking_one_token_after_the_other(form: dict[str, str], batch_tokens: int) -> None:
    """Whatever the size of a batch."""
    model = language_model(**form)
    (passage,) = cut_passages(documents_of(text_of(30)), 20, None, 0)
    losses = losses_of(model, passage, batch_tokens)
    assert len(losses) == 18
    assert losses == pytest.approx(one_by_one(model.eval(), passage), abs=1e-6)
    assert losses.std() > 0.1, "all alike would hide a wrong place"


def test_no_batch_is_larger_than_allowed_and_scores_are_computed_at_one_token_a_copy() -> None:
    model, rows, scored = language_model(), [], []
    model.model.register_forward_pre_hook(lambda _, given: rows.append(tuple(given[0].shape)))
    model.decoder.register_forward_pre_hook(lambda _, given: scored.append(tuple(given[0].shape)))
    (passage,) = cut_passages(documents_of(text_of(18)), 20, None, 0)
    losses_of(model, passage, 100)
    assert rows == [(5, 20), (5, 20), (5, 20), (3, 20)]
    assert scored == [(count, 24) for count, _ in rows]


def test_a_model_that_knows_nothing_has_the_vocabulary_size() -> None:
    model = language_model()
    torch.nn.init.zeros_(model.decoder.weight)
    torch.nn.init.zeros_(model.decoder.bias)
    read = cut_passages(documents_of(*(text_of(18, seed) for seed in range(3))), 20, None, 0)
    losses = [DocumentLoss(float(losses_of(model, passage).mean()), 18) for passage in read]
    result = pseudo_perplexity(20, losses)
    assert result.pseudo_perplexity == pytest.approx(50, rel=1e-5)
    assert (result.positions, result.documents) == (54, 3)
    assert result.low == pytest.approx(50, rel=1e-5) and result.high == pytest.approx(50, rel=1e-5)


def test_special_and_unknown_tokens_are_never_masked_and_a_text_of_nothing_else_is_passed_over() -> None:
    text = [7, IDS.unk, 8, IDS.mask, 9, IDS.sep]
    (passage,) = cut_passages(documents_of([IDS.unk] * 8, text), 8, None, 0)
    assert passage.token_ids.tolist() == [IDS.cls, *text, IDS.sep]
    assert passage.positions.tolist() == [1, 3, 5]


def test_texts_are_those_with_the_smallest_hashes_of_all_that_are_long_enough_each_once() -> None:
    """Whatever the order in the corpus; equal texts have one hash."""
    texts = [text_of(length, seed) for seed, length in enumerate([30, 9, 30, 18, 30])]
    view = documents_of(*texts, texts[2], hashes=[50, 10, 40, 20, 30, 40])
    read = cut_passages(view, 20, None, 0)
    assert [passage.text_hash for passage in read] == [20, 30, 40, 50]
    assert read[0].token_ids.tolist() == [IDS.cls, *texts[3][:18], IDS.sep]


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
    st.lists(st.integers(3, 42), min_size=1, max_size=4, unique=True),
    st.integers(1, 6),
    st.integers(2, 4),
)
def test_every_length_has_the_same_documents(texts: list[int], lengths: list[int], most: int, least: int) -> None:
    """Those with the longest length that enough documents have; a longer length is left out, never half filled."""
    lengths = sorted(lengths)
    chosen, measured = choose_documents(
        documents_of(*(text_of(tokens, tokens) for tokens in texts)), lengths, most, least
    )
    enough = [each for each in lengths if min(most, sum(tokens + 2 >= each for tokens in texts)) >= least]
    assert list(measured) == enough
    read = [cut_passages(chosen, tokens, None, 0) for tokens in measured]
    assert all([each.text_hash for each in one] == [each.text_hash for each in read[0]] for one in read)
    assert not measured or least <= len(read[0]) <= most


def test_a_document_without_a_token_to_mask_at_the_shortest_length_is_read_at_none() -> None:
    view = documents_of([IDS.unk] * 6 + text_of(20), text_of(26), text_of(26, 1))
    chosen, lengths = choose_documents(view, (8, 20), 5, 2)
    assert chosen.numbers.tolist() == [1, 2] and lengths == (8, 20)


def test_a_sample_of_all_positions_is_all_positions() -> None:
    view = documents_of(text_of(30))
    (whole,), (sampled,) = cut_passages(view, 20, None, 0), cut_passages(view, 20, 18, 0)
    assert whole.positions.tolist() == sampled.positions.tolist() == list(range(1, 19))


def test_a_sample_is_drawn_by_the_seed_alone() -> None:
    view = documents_of(*(text_of(30, seed) for seed in range(20)))

    def drawn(seed: int) -> list[list[int]]:
        return [passage.positions.tolist() for passage in cut_passages(view, 32, 6, seed)]

    assert drawn(0) == drawn(0) != drawn(1)
    assert all(len(set(places)) == 6 and places == sorted(places) for places in drawn(0))
    assert len({tuple(places) for places in drawn(0)}) > 10, "documents share no draw"
    assert {place for places in drawn(0) for place in places} == set(range(1, 31))


def simulated_loss(random: np.random.Generator, positions: int) -> DocumentLoss:
    """A document whose tokens' losses scatter around a mean of its own, which scatters around 2."""
    return DocumentLoss(float(random.normal(random.normal(2.0, 0.3), 1.0, positions).mean()), positions)


@pytest.mark.parametrize(("documents", "positions"), [(3, 4), (12, 64)])
def test_the_interval_covers_the_full_value_as_often_as_it_says(documents: int, positions: int) -> None:
    """95 % of 2,000 simulated measurements; three standard errors of that share are 1.5 %."""
    random = np.random.default_rng(7)
    results = [
        pseudo_perplexity(20, [simulated_loss(random, positions) for _ in range(documents)]) for _ in range(2000)
    ]
    covered = np.mean([result.low <= math.exp(2.0) <= result.high for result in results])
    assert covered == pytest.approx(0.95, abs=0.015)


def test_a_loss_that_is_not_finite_is_named() -> None:
    with pytest.raises(RunFailed, match="at 20 tokens is not finite"):
        pseudo_perplexity(20, [DocumentLoss(1.0, 3), DocumentLoss(math.nan, 3)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Trainable:
    """A folder with a run of seconds that is done."""
    root, run = tmp_path_factory.mktemp("runs"), tiny_run()
    write_tiny_run(root, run)
    assert work(root, run.reference) == EXIT_DONE
    return root, run


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Ended]]:
    """The command in this process, which gets its signals back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def run(root: Path, *arguments: str) -> Ended:
        capsys.readouterr()
        try:
            code = main(["--runs", str(root), *arguments])
        except SystemExit as end:  # argparse refuses
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Ended(arguments, code, said.out, said.err)

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def measurement_of(
    root: Path, run: PretrainingRun, lengths: tuple[int, ...] = (8, 16), **changes: Any
) -> PerplexityRun:
    """A small measurement of a run."""
    layout = Layout(root)
    fields = {"run": run.id, "lengths": lengths, "documents": 4, "sampled_positions": 3, "seed": 0, "text": None}
    fields |= changes
    return PerplexityRun(layout, read_finished_run(layout, run.id), PerplexityMeasurement.model_validate(fields))


def test_the_command_publishes_one_record_that_reports_read_and_measures_nothing_twice(
    finished: Trainable, command: Callable[..., Ended]
) -> None:
    root, run = finished
    flags = ("--run", run.id, "--lengths", "16", "8", "5000", "--documents", "5", "--sample", "all", "--json")
    first = command(root, *flags)
    assert first.returncode == EXIT_DONE, first.stderr
    (record,) = json.loads(first.stdout)
    assert read_record(Layout(root).pseudo_perplexity(record["id"])) == record
    assert record in read_records(root)[0]
    assert PerplexityConfig.model_validate(record["config"]).text == "held-out web"
    lengths = PerplexityScores.model_validate(record["scores"]).lengths
    assert [(point.tokens, point.documents) for point in lengths] == [(8, 5), (16, 5)]
    assert all(point.positions <= 5 * (point.tokens - 2) for point in lengths)
    assert list(record["left_out"]) == ["5000"] and "5000 tokens left out" in first.stderr
    assert record["inputs"] == {"pretraining": run.id, "data": run.data_id} and "commit" in record
    starts = (root / "starts.jsonl").read_text()
    assert json.loads(command(root, *flags).stdout) == [record]
    assert (root / "starts.jsonl").read_text() == starts


@pytest.fixture
def articles(tmp_path: Path) -> Path:
    """Five articles of different lengths, four in a parquet file and one in a file of its own."""
    from pyarrow import Table, parquet

    words = [f"the small house number {number} stands by the river" for number in range(60)]
    folder = tmp_path / "articles"
    folder.mkdir()
    texts = [" ".join(words[first : first + 20]) for first in range(4)]
    parquet.write_table(Table.from_pydict({"text": texts}), folder / "a.parquet")
    (folder / "b.txt").write_text(" ".join(words[30:]))
    return folder


def test_another_text_is_named_by_its_bytes_and_read_in_the_tokens_of_the_run(
    finished: Trainable, articles: Path, command: Callable[..., Ended]
) -> None:
    root, run = finished
    flags = ("--run", run.id, "--lengths", "8", "16", "--documents", "5", "--sample", "all", "--json")
    said = command(root, *flags, "--text", str(articles))
    assert said.returncode == EXIT_DONE, said.stderr
    (record,) = json.loads(said.stdout)
    content = open_files(articles).content
    assert record["config"] == {
        "stage": 0,
        "text": f"articles@{content}",
        "sampled_positions": None,
        "same_documents": True,
    }
    assert record["inputs"]["data"] == content
    assert [(point["tokens"], point["documents"]) for point in record["scores"]["lengths"]] == [(8, 5), (16, 5)]
    first = next(articles.glob("*.txt"))
    first.rename(articles / "other name.txt")
    assert open_files(articles).content == content
    (articles / "other name.txt").write_text("changed")
    assert open_files(articles).content != content
    (articles / "other name.txt").write_bytes("é".encode("latin-1"))
    with pytest.raises(ValueError, match=r"other name\.txt is not UTF-8"):
        list(open_files(articles).documents())


def test_run_py_hands_text_and_sample_on(capsys: pytest.CaptureFixture[str]) -> None:
    parser = build_parser()
    given_flags = ["--perplexity-text", "articles", "--perplexity-sample", "all"]
    assert perplexity_flags(parser.parse_args(given_flags)) == [
        "--sample",
        "all",
        "--text",
        str(Path("articles").resolve()),
    ]
    assert perplexity_flags(parser.parse_args([])) == ["--sample", "64"]
    with pytest.raises(SystemExit):
        run_main(["--variant", "M7", *given_flags])
    assert "--perplexity-text goes with --stages" in capsys.readouterr().err


def test_a_record_holds_what_the_definition_gives(finished: Trainable) -> None:
    root, run = finished
    planned = measurement_of(root, run, (12,), sampled_positions=None)
    with claimed(Layout(root), planned.part.id) as claim:
        planned.run(claim, StopRequest())
    (point,) = read_record(planned.part.record)["scores"]["lengths"]
    assert planned.corpus.ids.mask == IDS.mask
    model = build_masked_language_model(run.recipe.model, run.context)
    model.load_state_dict(last_checkpoint(Layout(root), run.id).weights())
    means = [np.mean(one_by_one(model.eval(), passage)) for passage in planned.passages[12]]
    assert point["pseudo_perplexity"] == pytest.approx(math.exp(np.mean(means)), rel=1e-6)


def test_a_stopped_measurement_goes_on_from_the_last_document(finished: Trainable) -> None:
    root, run = finished
    planned = measurement_of(root, run, seed=1)
    measured: list[int] = []

    class Stopping(StopRequest):
        @property
        def requested(self) -> bool:
            measured.append(0)
            return len(measured) > 3

    with claimed(Layout(root), planned.part.id) as claim:
        with pytest.raises(Stopped, match="3 documents"):
            planned.run(claim, Stopping())
        kept = planned.documents_path.read_text()
        assert kept.count("\n") == 3 and not planned.part.is_done
        measurement_of(root, run, seed=1).run(claim, StopRequest())
    assert planned.documents_path.read_text().startswith(kept) and planned.part.is_done
    assert planned.documents_path.read_text().count("\n") == 8


def test_a_signal_ends_the_command_with_the_code_for_more_to_do(finished: Trainable) -> None:
    root, run = finished
    line = [sys.executable, "-m", "neobert.evaluation.pseudo_perplexity", "--runs", str(root), "--run", run.id]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    flags = ["--sample", "all", "--batch-tokens", "1", "--seed", "2"]
    process = subprocess.Popen([*line, *flags], env=environment, stderr=subprocess.PIPE, text=True)
    before = (root / "starts.jsonl").read_text()
    while (root / "starts.jsonl").read_text() == before and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 75 and "which are kept" in said


def test_what_decides_the_numbers_decides_the_name_and_a_batch_does_not(finished: Trainable) -> None:
    root, run = finished
    planned = measurement_of(root, run)
    others = [
        measurement_of(root, run, **{name: value}) for name, value in [("documents", 5), ("sampled_positions", 4)]
    ]
    others += [measurement_of(root, run, seed=1), measurement_of(root, run, (8, 17))]
    assert len({planned.part.id, *(other.part.id for other in others)}) == 5
    assert (
        PerplexityRun(planned.layout, planned.run_file, planned.measurement, batch_tokens=7).part.id == planned.part.id
    )


def test_an_unknown_or_unfinished_run_is_named(
    finished: Trainable, tmp_path: Path, command: Callable[..., Ended]
) -> None:
    root, run = finished
    said = command(root, "--run", f"{run.id[:10]}xx")
    assert said.returncode == EXIT_MISSING and f"did you mean '{run.id}'?" in said.stderr
    write_tiny_run(tmp_path, run)
    with pytest.raises(MissingData, match="is not finished"):
        read_finished_run(Layout(tmp_path), run.id)
    with pytest.raises(MissingData, match="there are no runs"):
        read_finished_run(Layout(tmp_path / "empty"), run.id)


@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        (
            "--lengths 9000 8000",
            EXIT_MISSING,
            "nothing to read at 8000 tokens or more: fewer than 2 held-out",
        ),
        ("--lengths 2 8", EXIT_REFUSED, "2 tokens have no room"),
        ("--lengths 0", EXIT_REFUSED, "0 is no whole number from 1"),
        ("--text nothing", EXIT_MISSING, "holds no text"),
        ("--text .", EXIT_MISSING, "holds no text"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(
    finished: Trainable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: str,
    code: int,
    sentence: str,
    command: Callable[..., Ended],
) -> None:
    monkeypatch.chdir(tmp_path)
    said = command(finished[0], "--run", finished[1].id, *flags.split())
    assert said.returncode == code and sentence in said.stderr


def test_the_stage_of_run_py_measures_each_run_and_tells_the_worst_code(
    finished: Trainable, capfd: pytest.CaptureFixture[str]
) -> None:
    root, run = finished
    before = len(read_records(root)[0])
    code = measure_perplexity(Layout(root), ["0123456789ab", run.id], threads=1, as_json=True)
    said = capfd.readouterr()
    assert code == EXIT_MISSING and "no pre-training run 0123456789ab" in said.err
    assert said.out == "" and run.id in said.err
    assert len(read_records(root)[0]) == before + 1


def test_learned_positions_bound_the_lengths(tmp_path: Path) -> None:
    run = tiny_run(model=tiny_model(positions="learned"), stages=(tiny_stage(context=32),))
    folder = write_tiny_run(tmp_path, run)
    (folder / "done.json").write_text("{}")
    with pytest.raises(ValueError, match="has learned positions for 32 tokens, not for 33"):
        measurement_of(tmp_path, run, (8, 33)).refuse_impossible()
    assert default_lengths(run) == [8, 16, 32]
    assert default_lengths(tiny_run()) == [8, 16, 32, 64, 128]
