"""Prefetch before and after the bytes: what is chosen, what is refused, and whether a folder closes a plan offline."""

import json
import shlex
import shutil
import socket
from pathlib import Path
from typing import NoReturn

import pytest

from ablations import loading, prefetch
from ablations import run as run_command
from ablations.launch.checks import requirements
from ablations.loading import papers
from ablations.paper_models import folder_or_repository, paper_models
from neobert.data import download
from neobert.data.catalog import REFINEDWEB
from neobert.data.mteb_tasks import members_of
from neobert.data.sources import DirectorySource, HubSource
from neobert.executors.external import resolve_model
from neobert.runs.claims import acquire
from neobert.runs.layout import Layout
from reports.figures import published
from tests.ablations.hub_stand_in import LLAMA, WEB, StandIn, StandInRepository, manifest, run
from tests.ablations.plans import rows_of
from tests.support.published_layouts import save_nomic, save_remote

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a socket fails."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)


def test_a_corpus_is_capped_to_whole_files_and_its_part_has_an_identity_of_its_own(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = [len(content) for name, content in hub.repositories[WEB].files.items() if name.endswith(".parquet")]
    folder = tmp_path / "data"
    flags = ("--stages", "pretrain", "--most-bytes")
    assert run(folder, *flags, str(sum(sizes[:2]) + 1)) == 0
    assert list(DirectorySource(folder).documents("web")) == ["web 0", "page 0", "web 1", "page 1"]
    part = DirectorySource(folder).corpus_origin("web")
    whole = HubSource({REFINEDWEB.name: "a" * 40}).corpus_origin("web")
    assert part.startswith(f"{whole}#2of3:")
    assert run(folder, *flags, str(sizes[0])) == 2, "books alone are larger"
    assert "less than the first file of corpus wikibook" in capsys.readouterr().err
    assert prefetch.main(["--variant", "M2", "--data-dir", str(folder), *flags, str(sizes[0])]) == 0
    assert DirectorySource(folder).corpus_origin("web") == part, "a smaller cap takes nothing away"
    assert run(folder, "--stages", "pretrain") == 0
    assert DirectorySource(folder).corpus_origin("web") == whole


def test_a_disk_with_too_little_room_is_refused_before_the_first_byte(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    for flags in ((), ("--dry-run", "--json")):
        assert run(tmp_path / "data", *flags) == 2
        said = capsys.readouterr()
        assert "cap each corpus with --most-bytes" in said.err
    web = next(row for row in json.loads(said.out) if row["item"] == "corpus web")
    assert web["files"] == 3 and web["revisions"] == ["a" * 40] and web["missing_bytes"] == web["bytes"] > 0
    assert not hub.fetched


def test_files_that_somebody_else_put_there_stay_as_they_are(hub: StandIn, tmp_path: Path) -> None:
    """Even where an earlier call wanted to bring a file of that name and could not."""
    folder = tmp_path / "data"
    own = folder / "tokenizers/llama-2/tokenizer.json"
    hub.repositories[LLAMA].gated = True
    assert run(folder) == 3
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_bytes(hub.repositories[LLAMA].files["tokenizer.json"] + b"\n")
    assert DirectorySource(folder).tokenizer_origin("bpe", 32_064).startswith("directory:")
    assert run(folder, "--check") == 0
    assert run(folder) == 0
    assert own.read_bytes().endswith(b"\n")
    assert "tokenizers/llama-2/tokenizer.json" not in manifest(folder)


def test_two_prefetches_of_one_folder_do_not_mix(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = acquire(tmp_path / "data/.prefetch/claims")
    with claim:
        assert run(tmp_path / "data") == 1
    assert "another prefetch is at work" in capsys.readouterr().err and not hub.fetched


@pytest.mark.usefixtures("no_network")
def test_the_check_names_every_missing_item_and_what_brings_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "data", "--check", "--stages", "pretrain", "glue", "mteb", "--json") == 3
    found = json.loads(capsys.readouterr().out)
    items = {"corpus web", "corpus wikibook", "tokenizer bpe", "tokenizer wordpiece", "GLUE task stsb"}
    assert items < {entry["item"] for entry in found} and len(found) == 12 + len(members_of(None))
    assert found[-1]["from"] == REFINEDWEB.name
    assert found[-1]["command"].startswith("python ablations/prefetch.py --variant all --data-dir")
    assert run(tmp_path / "data", "--check", "--stages", "mteb", "--benchmark", "MTEB(eng, v2)", "--json") == 3
    found = json.loads(capsys.readouterr().out)
    assert [entry["item"] for entry in found if "STS" in entry["item"]] == [
        f"MTEB task {name}" for name in ("STS12", "STS13", "STS14", "STS15", "STS17", "STS22.v2", "STSBenchmark")
    ]
    assert found[-1]["command"].endswith("--stages mteb --benchmark 'MTEB(eng, v2)'")
    assert run(tmp_path / "data", "--check", "--stages", "mteb", "--benchmark", "MTEB(eng, v3)") == 2
    assert "no benchmark 'MTEB(eng, v3)': did you mean 'MTEB(eng, v2)'" in capsys.readouterr().err


def test_a_checked_folder_closes_the_plan_without_a_network(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    assert run(folder) == 0
    monkeypatch.setattr(socket, "socket", None)
    assert run(folder, "--check") == 0
    assert "complete: 12 items" in capsys.readouterr().out
    rows = rows_of(tmp_path / "runs", "all", source=DirectorySource(folder))
    assert len(rows) == len(papers().steps) and not any(row.skipped for row in rows)
    path = folder / "corpora/web/tiiuae--falcon-refinedweb/data/train-00000-of-00003-abc.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes([whole[4] ^ 1]) + whole[5:])
    assert run(folder, "--check") == 3
    assert "has other bytes than tiiuae/falcon-refinedweb" in capsys.readouterr().out, "it reads every byte"
    path.write_bytes(whole[:-1])
    assert run(folder, "--check") == 3
    assert f"is not there with its {len(whole)} bytes" in capsys.readouterr().out
    (folder / "corpora/wikibook/bookcorpus--bookcorpus/plain_text/train/0000.parquet").unlink()
    assert run(folder, "--check") == 3
    assert "missing: corpus wikibook: corpus wikibook lacks 1 of the 2 files" in capsys.readouterr().out


@pytest.mark.usefixtures("no_network")
def test_a_run_on_hub_data_names_what_is_missing_and_asks_no_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--variant", "M2", "M3", "--data", "hub", "--cluster", "here", "--runs", str(tmp_path / "runs")]
    assert run_command.main(command) == 3
    (said,) = capsys.readouterr().err.splitlines()
    for words in ("corpus web (tiiuae/falcon-refinedweb)", "tokenizer bpe", "--variant M2 M3", "pass --data DIR"):
        assert words in said
    assert not (tmp_path / "runs").exists()


def test_models_of_table_4_are_brought_by_name_and_their_commits_noted(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No pickles; what was brought is what --model finds in the folder."""
    files = {"config.json": b"{}", "model.safetensors": b"x", "tokenizer.json": b"{}", "pytorch_model.bin": b"p"}
    folder = tmp_path / "data"
    hub.repositories["models/google-bert/bert-large-uncased"] = StandInRepository(files, "b" * 40)
    assert run(folder, "--stages", "contrastive", "--models", "BERT-lagre", "--dry-run") == 2
    assert "did you mean 'BERT-large'" in capsys.readouterr().err
    assert run(folder, "--stages", "pretrain", "--models", "BERT-large") == 0
    brought = folder / "models" / "BERT-large"
    assert sorted(path.name for path in brought.glob("[!.]*")) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert folder_or_repository("BERT-large", str(folder)) == str(brought)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_repositories_lack_is_brought_beside_them(hub: StandIn, tmp_path: Path) -> None:
    """The tokenizer of NomicBERT, the classes of GTE at a commit that does not move: what comes is what loads."""
    own = contents(save_nomic(tmp_path / "nomic"))
    tokenizer = {name: own.pop(name) for name in list(own) if name.startswith("tokenizer")}
    hub.repositories["models/nomic-ai/nomic-bert-2048"] = StandInRepository(own | {"modeling.py": b"1 / 0"}, "1" * 40)
    hub.repositories["models/google-bert/bert-base-uncased"].files |= tokenizer
    *_, gte_code = paper_models()["GTE-en-8192-base"]
    model = contents(save_remote(tmp_path / "gte", repository=gte_code.name))
    code = {name: model.pop(name) for name in list(model) if name.endswith(".py")}
    hub.repositories["models/Alibaba-NLP/gte-en-mlm-base"] = StandInRepository(model, "2" * 40)
    hub.repositories[f"models/{gte_code.name}"] = StandInRepository(code | {"README.md": b""}, gte_code.branch)
    folder, layout = tmp_path / "data", Layout(tmp_path / "runs")
    flags = ("--stages", "pretrain", "--models", "NomicBERT-2048", "GTE-en-8192-base")
    assert run(folder, *flags) == 0 and run(folder, *flags, "--check") == 0
    assert not (folder / "models" / "NomicBERT-2048" / "modeling.py").exists()
    nomic = resolve_model(layout, folder_or_repository("NomicBERT-2048", str(folder)))
    gte = resolve_model(layout, folder_or_repository("GTE-en-8192-base", str(folder)), trusts_code=True)
    assert (nomic.model_type, gte.model_type) == ("nomic_bert", "new")
    assert manifest(folder)["models/GTE-en-8192-base/modeling.py"]["revision"] == gte_code.branch


@pytest.mark.parametrize("has_safetensors", [True, False])
def test_a_pickle_is_brought_where_there_is_nothing_else(hub: StandIn, tmp_path: Path, has_safetensors: bool) -> None:
    files = {"config.json": b"{}", "tokenizer_config.json": b"{}", "spm.model": b"s", "pytorch_model.bin": b"p"}
    files |= {"pytorch_model.generator.bin": b"p", **({"model.safetensors": b"x"} if has_safetensors else {})}
    hub.repositories["models/microsoft/deberta-v3-base"] = StandInRepository(files, "b" * 40)
    assert run(tmp_path / "data", "--stages", "pretrain", "--models", "DeBERTaV3-base") == 0
    brought = {path.name for path in (tmp_path / "data" / "models" / "DeBERTaV3-base").glob("[!.]*")}
    weights = "model.safetensors" if has_safetensors else "pytorch_model.bin"
    assert brought == {"config.json", "tokenizer_config.json", "spm.model", weights}


def test_every_baseline_of_the_paper_is_declared() -> None:
    printed = {(row.model, row.size) for row in (*published.table3(papers()), *published.table4(papers()))}
    theirs = {model if "Nomic" in model else f"{model}-{size.lower()}" for model, size in printed}
    assert {name for name in theirs if not name.startswith("NeoBERT")} == paper_models().keys()
    assert len({parts[0].name for parts in paper_models().values()}) == len(paper_models())


def test_a_ladder_needs_no_tasks_but_its_own_ones_of_glue(tmp_path: Path) -> None:
    path = tmp_path / "my ladder's.py"
    path.write_text('from ablations.ladder import M0\nTASKS = ["cola", "rte"]\n')
    own = loading.load(str(path))
    assert shlex.split(own.flag) == ["--ladder", str(path)], "one word of a shell, whatever the file is called"
    assert requirements(own, [own.root], "smoke", ["glue"]).tasks == ("rte", "cola")
