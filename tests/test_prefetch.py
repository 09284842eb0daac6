"""Prefetch: what a plan needs comes whole, once, with the hub's identity, whatever is killed; and closes offline.

The hub is a stand-in on this machine (`hub_stand_in`): names and layouts of the live hub are not tested here.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub.constants as hub_constants
import pytest
from hub_stand_in import StandIn, StandInRepository, published_repositories, serving

from ablations import prefetch
from ablations.plan import chosen_variants, plan
from neobert.data import hub_items, prefetching
from neobert.data.directory import DirectorySource
from neobert.data.hub import REFINEDWEB, HubSource
from neobert.data.mteb_repositories import MTEB_REPOSITORIES
from neobert.files import sha256_of
from neobert.grid.claims import acquire
from neobert.layout import Layout
from neobert.offline import offline_environment

ROOT = Path(__file__).parent.parent
WEB = "datasets/tiiuae/falcon-refinedweb"
LLAMA = "models/meta-llama/Llama-2-7b-hf"
FILES = 24


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in, with nobody logged in."""
    monkeypatch.setattr(hub_constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    with serving(published_repositories()) as stand_in:
        monkeypatch.setattr(hub_constants, "ENDPOINT", stand_in.address)
        template = stand_in.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(hub_constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield stand_in


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a socket fails."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)


def run(folder: Path, *flags: str) -> int:
    """The command for the whole ladder."""
    return prefetch.main(["--variant", "all", "--data-dir", str(folder), *flags])


def contents(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file but those of prefetch's own."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".prefetch" not in path.parts]
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files if path.name != "manifest.json"}


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """The manifest's files without the time of day."""
    files = json.loads((folder / "manifest.json").read_text())["files"]
    return {name: {key: value for key, value in entry.items() if key != "modified_ns"} for name, entry in files.items()}


def test_everything_that_the_ladder_reads_comes_in_the_directory_layout(hub: StandIn, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert run(folder) == 0
    source = DirectorySource(folder)
    assert list(source.documents("web")) == ["web 0", "page 0", "web 1", "page 1", "web 2", "page 2"]
    assert list(source.documents("wikibook")) == ["a sentence", "another", "article"]
    assert set(source.tasks().values()) == {None}
    assert source.task_examples("mnli", "validation_matched")["name"] == ["mnli/validation_matched"] * 2
    assert source.tokenizer("wordpiece", 30_522, tmp_path).ids.mask >= 0
    assert source.tokenizer("bpe", 32_064, tmp_path).opens_second
    entries = manifest(folder)
    assert {name: entry["sha256"] for name, entry in entries.items()} == contents(folder)
    web = entries["corpora/web/tiiuae--falcon-refinedweb--train-00001-of-00003-abc.parquet"]
    assert web == {
        "repository": REFINEDWEB.name,
        "repository_type": "dataset",
        "branch": "main",
        "revision": "a" * 40,
        "file": "data/train-00001-of-00003-abc.parquet",
        "bytes": len(hub.repositories[WEB].files[web["file"]]),
        "sha256": web["sha256"],
        "checksum": f"sha256:{web['sha256']}",
        "column": "content",
    }


def test_a_prefetched_folder_gives_the_run_ids_of_the_hub(hub: StandIn, tmp_path: Path) -> None:
    """At the commits that prefetch wrote down, `--data DIR` and `--data hub` are the same study."""
    assert run(tmp_path / "data") == 0
    commits = {place.partition("/")[2]: repository.commit for place, repository in hub.repositories.items()}
    layout = Layout(tmp_path / "runs")
    ids = [
        [unit.run.id for row in plan(chosen_variants(["all"]), [0], "paper", source, layout) for unit in row.units]
        for source in (DirectorySource(tmp_path / "data"), HubSource(commits))
    ]
    assert ids[0] == ids[1] and len(ids[0]) > 100


def test_what_is_here_is_not_fetched_again_and_what_differs_is(hub: StandIn, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert run(folder) == 0
    whole = contents(folder)
    assert len(hub.fetched) == len(whole) == FILES
    assert run(folder) == 0
    assert len(hub.fetched) == FILES
    damaged, removed = folder / "glue/rte/train.parquet", folder / "tokenizers/llama-2/tokenizer.json"
    damaged.write_bytes(bytes(reversed(damaged.read_bytes())))
    removed.unlink()
    assert run(folder) == 0
    names = sorted(path.rpartition("/")[2] for path in hub.fetched[FILES:])
    assert names == ["tokenizer.json", "train-00000-of-00001.parquet"]
    assert contents(folder) == whole


def test_a_copied_folder_is_hashed_and_not_fetched(hub: StandIn, tmp_path: Path) -> None:
    assert run(tmp_path / "data") == 0
    shutil.copytree(tmp_path / "data", tmp_path / "copy", copy_function=shutil.copyfile)
    assert run(tmp_path / "copy") == 0
    assert len(hub.fetched) == FILES


@pytest.mark.parametrize("file", [1, 7, FILES])
def test_kill_9_in_the_middle_of_a_file_is_completed_by_the_same_command(
    hub: StandIn, tmp_path: Path, file: int
) -> None:
    assert run(tmp_path / "undisturbed") == 0
    hub.asked.clear()
    hub.stall_at = file
    command = [sys.executable, str(ROOT / "ablations" / "prefetch.py"), "--variant", "all", "--workers", "1"]
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
    process = subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "data")], env=environment, stdout=subprocess.DEVNULL
    )
    assert hub.stalled.wait(60)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(contents(tmp_path / "data")) == file - 1, "a file in its place is whole"
    hub.stall_at = None
    hub.asked.clear()
    assert run(tmp_path / "data") == 0
    assert len(hub.fetched) == FILES - (file - 1)
    assert contents(tmp_path / "data") == contents(tmp_path / "undisturbed")
    assert manifest(tmp_path / "data") == manifest(tmp_path / "undisturbed")
    assert not (tmp_path / "data" / ".prefetch" / "staging").exists()


def test_the_commit_is_resolved_once_even_where_the_branch_moves_on(hub: StandIn, tmp_path: Path) -> None:
    hub.repositories[LLAMA].gated = True
    assert run(tmp_path / "data") == 3
    for repository in hub.repositories.values():
        repository.newest = "9" * 40
    hub.repositories[LLAMA].gated = False
    (tmp_path / "data/glue/rte/train.parquet").unlink()
    assert run(tmp_path / "data") == 0
    assert {entry["revision"] for entry in manifest(tmp_path / "data").values()} == {letter * 40 for letter in "abcdef"}


def test_a_gated_tokenizer_is_one_sentence_and_all_others_are_brought(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories[LLAMA].gated = True
    folder = tmp_path / "data"
    assert run(folder) == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "meta-llama/Llama-2-7b-hf is gated: accept its licence at" in lines[0] and "set HF_TOKEN" in lines[0]
    assert len(contents(folder)) == FILES - 1
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody")
    assert run(folder) == 0
    assert len(contents(folder)) == FILES


def test_a_repository_that_the_hub_does_not_show_is_one_sentence(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del hub.repositories["datasets/nyu-mll/glue"]
    assert run(tmp_path / "data") == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "GLUE task mnli" in lines[0] and "no dataset nyu-mll/glue" in lines[0]
    assert len(contents(tmp_path / "data")) == 7


@pytest.mark.parametrize(
    ("setting", "value", "advice"),
    [("HF_HUB_OFFLINE", True, "unset it to prefetch"), ("ENDPOINT", "http://127.0.0.1:9", "does not answer")],
)
def test_a_hub_that_cannot_be_asked_is_one_sentence(
    tmp_path: Path,
    hub: StandIn,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    value: object,
    advice: str,
) -> None:
    monkeypatch.setattr(hub_constants, setting, value)
    assert run(tmp_path / "data") == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and advice in lines[0] and not hub.asked
    assert not contents(tmp_path / "data")


def test_bytes_that_the_hub_did_not_state_never_reach_their_place(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = hub.repositories[WEB].files
    name = "data/train-00002-of-00003-abc.parquet"
    hub.repositories[WEB].wrong[name] = bytes(reversed(good[name]))
    tokenizer = hub.repositories[LLAMA]
    tokenizer.wrong["tokenizer.json"] = tokenizer.files["tokenizer.json"].replace(b"a", b"b")
    assert run(tmp_path / "data") == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all("other bytes than the hub states" in line for line in lines)
    assert len(contents(tmp_path / "data")) == FILES - 2
    hub.repositories[WEB].wrong.clear()
    tokenizer.wrong.clear()
    assert run(tmp_path / "data") == 0


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


def test_a_plan_is_printed_before_anything_is_written(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "data", "--dry-run", "--json") == 0
    rows = {row["item"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["corpus web"]["files"] == 3 and rows["corpus web"]["revisions"] == ["a" * 40]
    assert rows["corpus web"]["missing_bytes"] == rows["corpus web"]["bytes"] > 0
    assert not (tmp_path / "data").exists() and not hub.fetched


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_a_disk_with_too_little_room_is_refused_before_the_first_byte(
    hub: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(prefetching.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert run(tmp_path / "data", *flags) == 2
    assert "cap each corpus with --most-bytes" in capsys.readouterr().err
    assert not hub.fetched


def test_files_that_somebody_else_put_there_stay_as_they_are(hub: StandIn, tmp_path: Path) -> None:
    """Even where an earlier call wanted to bring a file of that name and could not."""
    folder = tmp_path / "data"
    own = folder / "tokenizers/llama-2/tokenizer.json"
    hub.repositories[LLAMA].gated = True
    assert run(folder) == 3
    own.parent.mkdir(parents=True)
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
    assert claim is not None
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
    assert items < {entry["item"] for entry in found} and len(found) == 12 + len(MTEB_REPOSITORIES)
    assert found[-1]["from"] == REFINEDWEB.name
    assert found[-1]["command"].startswith("python ablations/prefetch.py --variant all --data-dir")


def test_a_checked_folder_closes_the_plan_without_a_network(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    assert run(folder) == 0
    monkeypatch.setattr(socket, "socket", None)
    assert run(folder, "--check") == 0
    assert "complete: 12 items" in capsys.readouterr().out
    rows = plan(chosen_variants(["all"]), [0], "smoke", DirectorySource(folder), Layout(tmp_path / "runs"))
    assert len(rows) == 11 and not any(row.skipped for row in rows)
    (folder / "corpora/wikibook/bookcorpus--bookcorpus--0000.parquet").unlink()
    assert run(folder, "--check") == 3
    assert "missing: corpus wikibook: corpus wikibook lacks 1 of the 2 files" in capsys.readouterr().out


def test_the_check_reads_every_byte_unless_sizes_are_asked_for(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    assert run(folder) == 0
    path = folder / "corpora/web/tiiuae--falcon-refinedweb--train-00000-of-00003-abc.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes([whole[4] ^ 1]) + whole[5:])
    assert run(folder, "--check", "sizes") == 0
    assert run(folder, "--check") == 3
    assert "has other bytes than tiiuae/falcon-refinedweb" in capsys.readouterr().out
    path.write_bytes(b"x" * len(whole))
    assert run(folder, "--check", "sizes") == 3
    assert "not readable as parquet" in capsys.readouterr().out
    path.write_bytes(whole[:-1])
    assert run(folder, "--check") == 3
    assert f"is not there with its {len(whole)} bytes" in capsys.readouterr().out


def test_mteb_data_are_whole_repositories_at_the_commit_of_the_table(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"README.md": b"# STS12\n", "data/test-00000.parquet": b"PAR1", ".gitattributes": b""}
    hub.repositories["datasets/mteb/sts12-sts"] = StandInRepository(files, MTEB_REPOSITORIES["STS12"][1])
    one = {"STS12": MTEB_REPOSITORIES["STS12"]}
    monkeypatch.setattr(hub_items, "MTEB_REPOSITORIES", one)
    monkeypatch.setattr("ablations.needs.MTEB_REPOSITORIES", one)
    assert run(tmp_path / "data", "--stages", "mteb") == 0
    brought = {name for name in contents(tmp_path / "data") if name.startswith("mteb/")}
    assert brought == {"mteb/STS12/README.md", "mteb/STS12/data/test-00000.parquet"}
    assert run(tmp_path / "data", "--stages", "mteb", "--check") == 0


def test_the_mteb_table_is_what_mteb_says() -> None:
    pytest.importorskip("mteb")
    code = """
import json, mteb
tasks = mteb.get_benchmark("MTEB(eng, v1)").tasks
single = [one for task in tasks for one in getattr(task, "tasks", None) or [task]]
print(json.dumps({one.metadata.name: [one.metadata.dataset[key] for key in ("path", "revision")] for one in single}))
"""
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(answer.stdout) == {task: list(place) for task, place in MTEB_REPOSITORIES.items()}


def test_a_run_on_hub_data_names_what_is_missing_and_asks_no_network(tmp_path: Path) -> None:
    """With the variables that jobs get, and with every connection refused: one sentence, exit 3, nothing written."""
    blocked = "import socket, sys\ndef refuse(*_): raise AssertionError('connected')\nsocket.socket.connect = refuse\n"
    code = f"{blocked}from ablations.run import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["--variant", "M2", "M3", "--data", "hub", "--cluster", "here", "--runs", str(tmp_path / "runs")]
    answer = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=os.environ | offline_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 3
    assert len(answer.stderr.splitlines()) == 1 and "Traceback" not in answer.stderr
    for words in ("corpus web (tiiuae/falcon-refinedweb)", "tokenizer bpe", "--variant M2 M3", "pass --data DIR"):
        assert words in answer.stderr
    assert not (tmp_path / "runs").exists()


def test_the_offline_variables_switch_the_hub_off() -> None:
    code = "import huggingface_hub.constants as c; raise SystemExit(0 if c.HF_HUB_OFFLINE else 1)"
    environment = os.environ | offline_environment()
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


@pytest.mark.parametrize("size", ["0", "0.5", "many", "20XB", "GB"])
def test_sizes_are_checked(size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path, "--most-bytes", size)
    assert "--most-bytes" in capsys.readouterr().err
