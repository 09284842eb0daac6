"""Contrastive fine-tuning in plans: the protocol's numbers, the nineteen data sets, and what a command refuses."""

from pathlib import Path
from typing import Any

import pytest

from ablations.loading import papers
from ablations.recipe_runs import pair_sets
from ablations.run import main
from neobert.data.pairs import DECLARED_SETS, Pair, sets_of
from neobert.data.sources import DirectorySource, HubSource
from neobert.embeddings.pairs import alike
from neobert.errors import EXIT_MISSING, EXIT_REFUSED
from neobert.kinds.contrastive import ContrastiveRun
from neobert.runs.index import read_index
from neobert.runs.layout import Layout
from neobert.runs.records import sealed
from tests.ablations.plans import rows_of
from tests.embeddings.tiny_contrastive import tiny_contrastive, write_tiny_contrastive
from tests.support.small_corpora import write_table

STAGES: tuple[...] = ("pretrain", "contrastive")

_JUDGED = {
    "default/train": {"query-id": ["q"], "corpus-id": ["d"], "score": [1]},
    "queries/queries": {"_id": ["q", "x"], "text": ["Q", "X"]},
    "corpus/corpus": {"_id": ["d", "y"], "text": ["D", "Y"], "title": ["", ""]},
}
_SIMILAR = {"default/train": {"sentence1": ["Q", "a"], "sentence2": ["D", "b"], "score": [4.5, 4.0]}}
PUBLISHED: dict[str, dict[str, dict[str, list[Any]]]] = {
    "AGNEWS": {"pair/train": {"title": ["Q"], "description": ["D"]}},
    "ALLNLI": {"triplet/train": {"anchor": ["Q"], "positive": ["D"], "negative": ["N"]}},
    "AMAZONQA": {"default/train": {"query": ["Q"], "pos": [["D", "E"]]}},
    "CONCURRENTQA": {
        "default/train": {"question": ["Q"], "pos_paras": [[{"text": "D"}]], "neg_paras": [[{"text": "N"}]]}
    },
    "FEVER": _JUDGED,
    "GITHUBISSUE": {"positive/train": {"anchor": ["Q"], "positive": ["D"]}},
    "GOOAQ": {"triplet-5/train": {"question": ["Q"], "answer": ["D"], **{f"negative_{i}": ["N"] for i in range(1, 6)}}},
    "MEDMCQA": {"default/train": {"question": ["Q"], "exp": ["D"]}},
    "MSMARCO": _JUDGED,
    "NPR": {"pair/train": {"title": ["Q"], "body": ["D"]}},
    "PAQ": {"default/train": {"set": [["Q", "D"]]}},
    "PUBMEDQA": {
        "triplet-20/train": {"anchor": ["Q"], "positive": ["D"], **{f"negative_{i}": ["N"] for i in range(1, 21)}}
    },
    "QQP": {"default/train": {"set": [{"query": "Q", "pos": ["D", "E"], "neg": ["N", "N"]}]}},
    "SENTENCECOMP": {"default/train": {"set": [["D", "Q"]]}},
    "STACKEXCHANGE": {
        "body-body-pair/train": {"body1": ["Q"], "body2": ["D"]},
        "post-post-pair/train": {"post1": ["Q"], "post2": ["D"]},
    },
    "STACKOVERFLOW": {"default/train": {"query": ["Q"], "positive": [["D"]], "negative": [["N", "N"]]}},
    "STS12": _SIMILAR,
    "STSBENCHMARK": _SIMILAR,
    "TRIVIAQA": {"triplet/train": {"anchor": ["Q"], "positive": ["D"], "negative": ["N"]}},
    "WIKIHOW": {"default/train": {"text": ["Q"], "summary": ["D"]}},
    "YAHOO": {"title-answer-pair/train": {"title": ["Q"], "answer": ["D"]}},
}
NEGATIVES = {"ALLNLI": 1, "CONCURRENTQA": 1, "GOOAQ": 5, "PUBMEDQA": 20, "QQP": 2, "STACKOVERFLOW": 2, "TRIVIAQA": 1}


def write_published(folder: Path, name: str) -> None:
    """A data set as prefetch lays it down."""
    for place, columns in PUBLISHED[name].items():
        write_table(folder / "pairs" / name / place / "0000.parquet", columns)


def test_a_variants_mix_says_which_published_sets_are_taken(tmp_path: Path) -> None:
    """Own sets always; published ones of the other mix only by name. Each set is declared once."""
    paper, code = set(sets_of("paper")), set(sets_of("code"))
    assert (len(paper), len(code)) == (19, 17) and PUBLISHED.keys() == DECLARED_SETS.keys() == paper | code
    assert paper - code == {"AGNEWS", "MEDMCQA", "NPR", "YAHOO"} and code - paper == {"PAQ", "QQP"}
    for name in ("NPR", "QQP", "STS12"):
        write_published(tmp_path, name)
    write_table(tmp_path / "pairs" / "mine.parquet", {"query": ["Q"], "document": ["D"]})
    source = DirectorySource(tmp_path)

    def taken(*arguments: Any) -> set[str]:
        return {pairs.name for pairs in pair_sets(source, *arguments)}

    assert taken(None) == taken(None, "paper") == {"NPR", "STS12", "mine"}
    assert taken(None, "code") == {"QQP", "STS12", "mine"} and taken(["QQP"]) == {"QQP"}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_rows_become_pairs(tmp_path: Path, name: str) -> None:
    write_published(tmp_path, name)
    source = DirectorySource(tmp_path)
    assert source.pair_sets() == (name,) and source.pair_instruction(name) == DECLARED_SETS[name].instruction
    found = [pair._replace(similarity=None) for pair in alike(source.pairs(name), 4)]
    assert found == [Pair("Q", "D", ("N",) * NEGATIVES.get(name, 0))] * (2 if name == "STACKEXCHANGE" else 1)
    similar = [Pair("Q", "D", similarity=4.5), Pair("a", "b", similarity=4.0)]
    assert list(alike(source.pairs(name), None)) == (similar if name.startswith("STS") else found)


def test_the_codes_protocol_is_a_variant_of_its_own(tmp_path: Path) -> None:
    """Also where the paper's and the code's would read the same pairs: they are filtered otherwise."""
    write_published(tmp_path, "STS12")
    write_published(tmp_path, "QQP")
    rows = rows_of(tmp_path, "M9", "M9@contrastive-code", source=HubSource(), stages=STAGES)
    paper, code = (run for row in rows for run in ContrastiveRun.among(row.runs))
    assert paper.weights == code.weights and paper.id != code.id
    assert [pairs.name for pairs in code.sets] == list(sets_of("code"))
    protocol = code.protocol
    assert (protocol.reduction, protocol.similar_above, protocol.false_negatives) == ("sum", None, "kept")
    assert (protocol.sampling_exponent, protocol.texts_per_step, protocol.instructed) == (0.1, 24, "nothing")
    at_paper = papers().variants["M9@contrastive-code"].recipe.embedding
    assert (at_paper.contrastive.texts_per_step, at_paper.pairs) == (32, "code")
    (sts,) = (pairs for pairs in paper.sets if pairs.name == "STS12")
    unfiltered = paper.model_copy(update={"protocol": paper.protocol.model_copy(update={"similar_above": None})})
    assert len({run.pairs_id(sts) for run in (paper, unfiltered, code)}) == 3


def test_missing_sets_are_named_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = ["--runs", str(tmp_path / "runs")]
    common = ["--variant", "M8", "--stages", "pretrain", "contrastive", *runs]
    assert main([*common, "--pairs", "paraphrase"]) == EXIT_REFUSED
    assert "did you mean 'paraphrases'?" in capsys.readouterr().err
    assert main([*common, "--data", "hub", "--scale", "paper"]) == EXIT_MISSING
    said = capsys.readouterr().err
    assert all(DECLARED_SETS[name].repository in said for name in sets_of("paper")) and "prefetch.py" in said
    assert "PAQ_pairs" not in said
    assert not (tmp_path / "runs").exists()


def test_status_shows_the_run_and_what_it_waits_for(tmp_path: Path) -> None:
    run = tiny_contrastive("0123456789ab")
    folder = write_tiny_contrastive(tmp_path, run)
    (row,) = read_index(Layout(tmp_path)).rows()
    assert (row.kind, row.id, row.state, row.total) == ("contrastive", run.id, "waiting", run.protocol.steps)
    assert row.note == "after pretraining 0123456789ab"
    record = {"kind": "contrastive", "id": run.id, "steps": 12, "real_tokens": 10, "seconds": 2.0}
    scores = {"heldout_loss": {"paraphrases": 1.0, "answers": 2.0}}
    (folder / "done.json").write_bytes(sealed({**record, "gpu_hours": 0.0, "scores": scores}))
    (row,) = read_index(Layout(tmp_path)).rows()
    assert (row.state, row.heldout_loss, row.tokens_per_second) == ("done", 1.5, 5.0)
