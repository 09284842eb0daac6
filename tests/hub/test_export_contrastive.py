"""`python -m neobert.export` of contrastive runs: folders that give the vectors that the run gives, or none."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from ablations.recipe_runs import evaluation_after
from neobert.data.mteb_tasks import OFFICIAL_TASKS
from neobert.embeddings.encoders import NamedEncoder
from neobert.errors import EXIT_DONE, EXIT_OFF, EXIT_REFUSED
from neobert.executors import make_trainer
from neobert.executors.encoders import load_encoder
from neobert.executors.external import resolve_model, write_model_file
from neobert.export import checkpoint
from neobert.export.__main__ import main
from neobert.export.checkpoint import instructions_of
from neobert.external import ExternalModel
from neobert.kinds.contrastive import ContrastiveRun
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record
from neobert.runs.run_file import read_run_file
from neobert.training.distributed import ALONE
from tests.embeddings.tiny_contrastive import pair_set, tiny_contrastive, write_encoder, write_tiny_contrastive
from tests.embeddings.tiny_suite import SMOKE, SOURCE_HERE
from tests.support import external_models as world
from tests.support.own_parts import OwnNorm
from tests.support.published_layouts import save_remote
from tests.support.tiny_runs import claimed

CPU = torch.device("cpu")
SETS = ("paraphrases", "answers")
ASKED = ["the cat sleeps", "", "a dog and a cat " * 20, "x"]


def saved_run(root: Path, run: ContrastiveRun) -> Path:
    """A run as a finished one leaves it, with other weights than it began with."""
    folder = write_tiny_contrastive(root, run)
    course = make_trainer(Layout(root), read_run_file(folder), ALONE)
    course.begin()
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in course.model.parameters():
            weight.add_(0.01 * torch.randn_like(weight))
    with claimed(Layout(root), run.id) as claim:
        course.save(run.protocol.steps, claim.check)
    scores: dict[str, dict[str, float]] = {
        "heldout_loss": dict.fromkeys(SETS, 1.5),
        "heldout_accuracy": dict.fromkeys(SETS, 0.25),
    }
    publish_record(folder / "done.json", {"kind": "contrastive", "id": run.id, "state": "done", "scores": scores})
    return folder


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("own")
    return saved_run(root, instructed(tiny_contrastive(write_encoder(root).id, SETS)))


def instructed(run: ContrastiveRun) -> ContrastiveRun:
    """The run with an instruction that leaves room for a text, and with one that long texts cut."""
    told = {"paraphrases": "the same", "answers": "the cat and the dog " * 4}
    sets = tuple(pair_set(name, instruction=instruction) for name, instruction in told.items())
    return run.model_copy(update={"sets": sets})


def external_run(layout: Layout, model: ExternalModel) -> ContrastiveRun:
    write_model_file(layout, model)
    changes = {"context": 32, "tokenizer_origin": model.tokenizer_origin}
    return tiny_contrastive(model.id, SETS).model_copy(update=changes)


def exported(capsys: pytest.CaptureFixture[str], folder: Path, form: str, out: Path) -> dict[str, Any]:
    capsys.readouterr()
    code = main([str(folder), "--to", form, "--out", str(out)])
    said = capsys.readouterr()
    assert code == EXIT_DONE, said.err
    answer: dict[str, Any] = json.loads(said.out)
    return answer


def vectors_of(folder: Path, texts: list[str], **options: Any) -> np.ndarray:
    return load_encoder(Layout(folder.parent.parent), folder.name, CPU).encode(texts, **options)


@pytest.mark.parametrize("family", ["own", "bert", "roberta"])
def test_exported_folders_give_the_runs_vectors(
    family: str, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By transformers, and by sentence-transformers also behind an instruction. A prompt is cut otherwise than an
    instruction where both are longer than half the context: then there is none. BERT reads token types: an instruction
    has its text's own, as a prompt has."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    folder = own
    if family != "own":
        layout = Layout(tmp_path / "runs")
        saved = world.save(world.seeded(world.FAMILIES[family]), tmp_path / "model", token_types=family == "bert")
        folder = saved_run(layout.root, instructed(external_run(layout, resolve_model(layout, str(saved)))))
    answer = exported(capsys, folder, "hf", tmp_path / "hf")
    assert (answer["run"], answer["step"]) == (folder.name, 12) and 0 <= answer["parity"]["vectors"] <= 1e-5
    model_type = json.loads((tmp_path / "hf" / "config.json").read_text())["model_type"]
    assert model_type == ("neobert" if family == "own" else family)
    tokens = AutoTokenizer.from_pretrained(tmp_path / "hf")(ASKED, padding=True, truncation=True, return_tensors="pt")
    mask = tokens["attention_mask"].unsqueeze(-1)
    with torch.no_grad():  # the card's own lines
        states = AutoModel.from_pretrained(tmp_path / "hf")(**tokens).last_hidden_state
    vectors = (states * mask).sum(1) / mask.sum(1)
    np.testing.assert_allclose(vectors.numpy(), vectors_of(folder, ASKED), atol=1e-5, rtol=0)
    exported(capsys, folder, "sentence-transformers", tmp_path / "st")
    model = library.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    np.testing.assert_allclose(model.encode(ASKED), vectors_of(folder, ASKED), atol=1e-5, rtol=0)
    assert "paraphrases" in model.prompts and "answers" not in model.prompts
    found = model.encode(ASKED, prompt_name="paraphrases")
    np.testing.assert_allclose(found, vectors_of(folder, ASKED, instruction="the same"), atol=1e-5, rtol=0)
    card = (tmp_path / "hf" / "README.md").read_text()
    assert ("import neobert.hub" in card) == ("license: mit" in card) == (family == "own")
    assert "held-out pairs of answers | loss 1.5000, 25.0% of queries find" in card and "cut to 32 tokens" in card
    assert ("That of the encoder" in card) == (family != "own")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("is_told", "wanted"), [(True, "SyntheticParaphraseRetrieval"), (False, "SyntheticSentenceSimilarity")]
)
def test_mteb_gives_an_exported_folder_the_score_that_the_harness_gave_the_run(
    is_told: bool, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through sentence-transformers and mteb's own wrapper. An encoder whose pairs had no instruction is told nothing,
    here and there."""
    for package in ("sentence_transformers", "mteb"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from mteb import evaluate
    from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper

    from neobert.embeddings.mteb import measure_task, mteb_tasks

    runs, tokens = tmp_path / "runs", 96
    instruction = {} if is_told else {"instruction": None}
    run = tiny_contrastive(write_encoder(runs, context=tokens).id, max_tokens=tokens)
    run = run.model_copy(update={"context": tokens, "sets": tuple(pair_set(name, **instruction) for name in SETS)})
    folder = saved_run(runs, run)
    exported(capsys, folder, "sentence-transformers", tmp_path / "out")
    model = SentenceTransformerEncoderWrapper(str(tmp_path / "out"), device="cpu")
    about = [task for task in SOURCE_HERE.embedding_tasks() if task.name == wanted]
    (task,) = evaluation_after(run, SMOKE, about, SOURCE_HERE).tasks
    assert bool(task.prompts) == is_told
    named = NamedEncoder("neobert/T", run.id, load_encoder(Layout(runs), run.id, CPU))
    ours = measure_task(named, task, SOURCE_HERE, tmp_path / "results", task.prompts).score
    (theirs,) = mteb_tasks(task, SOURCE_HERE.embedding_task_data(task.name), task.origin)
    found = evaluate(model, theirs, cache=None, co2_tracker=False, show_progress_bar=False)
    assert abs(found.task_results[0].get_score() - ours) <= 1e-6


def test_the_56_tasks_are_told_in_the_papers_words(own: Path) -> None:
    run = read_run_file(own).specification(ContrastiveRun)
    told = instructions_of(run, tuple(OFFICIAL_TASKS.values()))
    assert told["BIOSSES"] == "Retrieve semantically similar text from the biomedical field."
    assert told["QuoraRetrieval-query"] and told["QuoraRetrieval-document"] == "" and "QuoraRetrieval" not in told
    assert told["CQADupstackTexRetrieval-query"] and "CQADupstackRetrieval-query" not in told
    assert told["paraphrases"] == "the same"


def test_an_encoder_with_code_of_its_own_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = resolve_model(Layout(tmp_path), str(save_remote(tmp_path / "model")), trusts_code=True)
    run = external_run(Layout(tmp_path), model)
    folder = write_tiny_contrastive(tmp_path, run)
    publish_record(folder / "done.json", {"kind": "contrastive", "id": run.id, "state": "done"})
    monkeypatch.setattr(checkpoint, "load_encoder", None)
    assert main([str(folder), "--to", "hf", "--out", str(tmp_path / "out")]) == EXIT_REFUSED
    assert "model runs code of its own, which exports do not contain" in capsys.readouterr().err


def test_an_encoder_with_own_parts_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its folder would load where the run was read, and nowhere else."""
    folder = saved_run(tmp_path, tiny_contrastive(write_encoder(tmp_path, norm=OwnNorm).id, SETS))
    assert main([str(folder), "--to", "hf", "--out", str(tmp_path / "out")]) == EXIT_REFUSED
    assert "has the own parts OwnNorm@" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_what_cannot_be_exported_is_one_sentence(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [str(own), "--to", "hf", "--out", str(tmp_path / "out")]
    original = checkpoint.transformers_tokenizer
    monkeypatch.setattr(checkpoint, "transformers_tokenizer", lambda tokenizer, context: original(tokenizer, 9))
    assert main(command) == EXIT_OFF and "the exported vectors differs from the run" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
