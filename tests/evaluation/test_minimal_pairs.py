"""BLiMP: the published pairs and groups, scored as published scorers define it, in an evaluation of its own."""

import json
from collections import Counter
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch

from ablations.ladders import SCALES
from ablations.loading import papers
from ablations.plan import plan
from ablations.recipe_runs import PAIRS_PER_PARADIGM
from ablations.scales import Scale
from neobert.data.sources import DirectorySource, open_source
from neobert.data.synthetic import corpus_documents
from neobert.data.task_files import BLIMP_FOLDER, PAIRS_OF_A_PARADIGM, PARADIGMS, MinimalPair, read_pairs
from neobert.data.tokenizers import TextTokenizer, train_bpe, train_wordpiece
from neobert.errors import ChangedData, DamagedFile, MissingData
from neobert.evaluation.items import Items
from neobert.evaluation.readouts import MeasuredModel, measure
from neobert.evaluation.readouts import read_pairs as score_pairs
from neobert.executors.readouts import items_of
from neobert.hub import NeoBERTConfig, NeoBERTForMaskedLM
from neobert.kinds.readouts import BLIMP, ReadoutEvaluation
from neobert.processes import StopRequest
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification
from tests.support.made_up_blimp import write_blimp
from tests.support.small_corpora import REAL_DATA, texts, write_table
from tests.support.small_models import FORMS, language_model, small_model

CONTEXT = 32
NEVER = StopRequest()
TEXTS = tuple(corpus_documents("web", documents=400))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and three pairs of each paradigm."""
    folder = tmp_path_factory.mktemp("data")
    write_table(folder / "corpora" / "web" / "part.parquet", {"text": texts(20)})
    write_blimp(folder, 3)
    return folder


def evaluations(data: str, scale: Scale = "smoke") -> dict[tuple[str, ...], ReadoutEvaluation]:
    """The planned readouts of M2, by their names."""
    source = open_source(data, synthetic_documents=100)
    (row,) = plan(
        papers(), [papers().variants["M2"]], (0,), scale, source, Layout(Path("runs")), ("pretraining", "readouts")
    )
    return {run.readouts: run for run in ReadoutEvaluation.among(row.runs)}


# The data


def test_paradigms_are_in_the_papers_groups() -> None:
    fields, phenomena = zip(*PARADIGMS.values(), strict=True)
    assert (len(PARADIGMS), len(set(phenomena))) == (67, 12) and Counter(phenomena)["argument_structure"] == 9
    assert set(fields) == {"morphology", "syntax", "semantics", "syntax_semantics"}
    assert len({*PARADIGMS, *phenomena, *fields}) == 67 + 12 + 4, "no two groups have one name"


@pytest.mark.skipif(not (REAL_DATA / BLIMP_FOLDER).is_dir(), reason="BLiMP is not here")
def test_groups_are_those_of_the_published_files_which_have_seven_pairs_of_equal_sentences() -> None:
    same = []
    for name, paradigm in PARADIGMS.items():
        path = REAL_DATA / BLIMP_FOLDER / f"{name}.jsonl"
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        terms = {(line["field"].replace("/", "_"), line["linguistics_term"]) for line in lines}
        ((field, term),) = terms
        assert paradigm[:2] == (field, "argument_structure" if term == "s-selection" else term)
        pairs = read_pairs(path, PAIRS_OF_A_PARADIGM)
        assert [(pair.good, pair.bad) for pair in pairs] == [(e["sentence_good"], e["sentence_bad"]) for e in lines]
        same += [(name, number) for number, pair in enumerate(pairs) if pair.good == pair.bad]
    assert Counter(name for name, _ in same) == {"passive_1": 2, "principle_A_case_2": 5}
    assert all(number >= PAIRS_PER_PARADIGM for _, number in same), "small scales read none of them"


def test_missing_short_and_damaged_files_are_named(data: Path, tmp_path: Path) -> None:
    write_blimp(tmp_path, 3)
    (tmp_path / "corpora").symlink_to(data / "corpora")
    source, path = DirectorySource(tmp_path), tmp_path / BLIMP_FOLDER / "passive_1.jsonl"
    assert len(source.minimal_pairs(2)) == 2 * len(PARADIGMS)
    with pytest.raises(DamagedFile, match=r"\.jsonl has 3 pairs, and the first 4 are asked"):
        source.minimal_pairs(4)
    path.write_text("{")
    with pytest.raises(DamagedFile, match=r"passive_1\.jsonl is not readable as jsonl"):
        source.minimal_pairs(1)
    path.unlink()
    with pytest.raises(MissingData, match=r"lacks 1 of the 67 files of BLiMP \(passive_1\.jsonl\)"):
        evaluations(str(tmp_path))


# The plan


def test_blimp_is_an_evaluation_of_its_own_and_changes_no_other(data: Path, tmp_path: Path) -> None:
    (tmp_path / "corpora").symlink_to(data / "corpora")
    without, found = evaluations(str(tmp_path)), evaluations(str(data))
    own = found.pop((BLIMP,))
    assert found == without and own.id not in {each.id for each in without.values()}
    assert own.corpora == {BLIMP: open_source(str(data), synthetic_documents=1).blimp_origin()}
    (run,) = own.runs()
    more = own.model_copy(update={"pairs_per_paradigm": PAIRS_PER_PARADIGM + 1})
    assert more.id != own.id and more.runs()[0].id != run.id, "the number of pairs is in the name"


@pytest.mark.parametrize("scale", [each for each in SCALES if each != "as-written"])
def test_large_scales_read_all_pairs(scale: Scale, data: Path) -> None:
    pairs = PAIRS_OF_A_PARADIGM if scale in ("proxy", "paper") else PAIRS_PER_PARADIGM
    assert evaluations(str(data), scale)[BLIMP,].pairs_per_paradigm == pairs


@pytest.mark.parametrize("name", ["synthetic", "hub"])
def test_data_without_blimp_say_so(name: str) -> None:
    source = open_source(name, synthetic_documents=100)
    (row,) = plan(
        papers(), [papers().variants["M2"]], (0,), "smoke", source, Layout(Path("runs")), ("pretraining", "readouts")
    )
    assert row.skipped.keys() == {BLIMP} and "DIR/blimp/data" in row.skipped[BLIMP]
    assert (BLIMP,) not in evaluations(name)


def test_pairs_are_the_first_of_each_file_and_the_planned_ones(data: Path, tmp_path: Path) -> None:
    specification = SourceSpecification(name=str(data), synthetic_documents=1)
    (run,) = evaluations(str(data))[BLIMP,].model_copy(update={"pairs_per_paradigm": 2}).runs()
    items = items_of(Layout(tmp_path), run, specification, NEVER)
    assert [*items.pairs] == [BLIMP] and not any(tmp_path.iterdir()), "nothing is drawn or kept"
    expected = [pair for name in PARADIGMS for pair in read_pairs(data / BLIMP_FOLDER / f"{name}.jsonl", 3)[:2]]
    assert items.pairs[BLIMP] == expected
    of_others = run.model_copy(update={"corpora": {BLIMP: "directory:0"}})
    with pytest.raises(ChangedData, match="BLiMP changed since this was planned"):
        items_of(Layout(tmp_path), of_others, specification, NEVER)


# The score


def subject_of(tokenizer: TextTokenizer, form: str) -> MeasuredModel:
    model = language_model(CONTEXT, vocabulary_size=tokenizer.vocabulary_size, **FORMS[form]).eval()  # type: ignore[arg-type]
    return MeasuredModel(model, tokenizer, CONTEXT, "fp32", torch.device("cpu"))


@torch.no_grad()
def published_score(subject: MeasuredModel, form: str, sentence: str) -> float:
    """A sentence's pseudo-log-likelihood by the definition of published scorers: Salazar et al. (2020, section 2.2)
    and minicons' metric `original`. It is the sum over the
    tokens between the special ones of log p of the token, in a forward pass of the sentence with it alone masked."""
    changes = {"vocabulary_size": subject.tokenizer.vocabulary_size, **FORMS[form]}
    model = NeoBERTForMaskedLM(NeoBERTConfig.from_recipe(small_model(**changes), CONTEXT)).eval()
    model.load_state_dict(subject.model.state_dict())
    ids = subject.ids
    encoded = subject.tokenizer.tokenizer.encode(sentence, add_special_tokens=False).ids
    whole = torch.tensor([[ids.cls, *encoded, ids.sep]])
    total = 0.0
    for place in range(1, whole.shape[1] - 1):
        masked = whole.clone()
        masked[0, place] = ids.mask
        total += model(input_ids=masked).logits[0, place].log_softmax(-1)[whole[0, place]].item()
    return total


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("train", [train_wordpiece, train_bpe])
def test_the_score_is_that_of_published_scorers(form: str, train, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Sums and decisions, on words of several tokens."""
    subject = subject_of(train(TEXTS, 220 if train is train_wordpiece else 420), form)
    pairs = DirectorySource(data).minimal_pairs(1)[:8]
    expected = np.array([[published_score(subject, form, text) for text in (pair.good, pair.bad)] for pair in pairs])
    seen = []
    honest = MeasuredModel.sum_losses

    def listening(self, *arguments):  # type: ignore[no-untyped-def]
        seen.append(honest(self, *arguments))
        return seen[-1]

    monkeypatch.setattr(MeasuredModel, "sum_losses", listening)
    measured = score_pairs(subject, pairs, NEVER)
    np.testing.assert_allclose(-seen[0].reshape(-1, 2), expected, rtol=1e-4)
    assert measured.numerators.tolist() == (expected[:, 0] > expected[:, 1]).tolist() and measured.ties == 0
    lengths = [len(tokens) for tokens in subject.tokenizer.encode([pair.good for pair in pairs])]
    assert max(lengths) > max(len(pair.good.split()) for pair in pairs)


def test_a_tie_counts_half_and_values_are_means_over_paradigms(data: Path) -> None:
    subject = subject_of(train_wordpiece(TEXTS, 220), "NeoBERT form")
    pairs = DirectorySource(data).minimal_pairs(3)
    pairs = [MinimalPair(p.good, p.good, p.paradigm) if p.paradigm == "passive_1" else p for p in pairs]
    found = measure(BLIMP, Items(pairs={BLIMP: pairs}), subject, NEVER)[BLIMP]
    assert found.ties == 3 and found.groups["passive_1"] == 0.5
    equal_in_tokens = [MinimalPair(p.good, p.good.upper(), p.paradigm) for p in pairs]
    assert score_pairs(subject, equal_in_tokens, NEVER).ties == len(pairs)
    assert found.denominators is not None and found.denominators.tolist() == [3] * len(PARADIGMS)
    by_paradigm = dict(zip(PARADIGMS, (found.numerators / 3).tolist(), strict=True))
    assert found.value == pytest.approx(fmean(by_paradigm.values())) and 0.2 < found.value < 0.8
    for place, count in ((0, 4), (1, 12)):
        names = {each[place] for each in PARADIGMS.values()}
        assert len(names) == count
        for name in names:
            of_group = [value for own, value in by_paradigm.items() if PARADIGMS[own][place] == name]
            assert found.groups[name] == pytest.approx(fmean(of_group))
    assert found.groups.items() >= {name: pytest.approx(value) for name, value in by_paradigm.items()}.items()
    assert len(found.groups) == 67 + 12 + 4
    swapped = [MinimalPair(pair.bad, pair.good, pair.paradigm) for pair in pairs]
    assert score_pairs(subject, swapped, NEVER).value == pytest.approx(1 - found.value)
