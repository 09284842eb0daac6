"""Prefetch: what a plan needs comes whole, once, with the hub's identity, whatever is killed; and closes offline.

The hub is a stand-in on this machine (`hub_stand_in`): names and layouts of the live hub are not tested here.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants as hub_constants
import pytest

from neobert.data import mteb_tasks
from neobert.data.catalog import REFINEDWEB
from neobert.data.mteb_tasks import MTEB_REPOSITORIES
from neobert.data.sources import DirectorySource, HubSource
from neobert.files import checksummed
from tests.ablations.hub_stand_in import FILES, LLAMA, WEB, StandIn, StandInRepository, contents, manifest, run
from tests.ablations.plans import rows_of

ROOT = Path(__file__).resolve().parents[2]


def test_everything_that_the_ladder_reads_comes_in_the_directory_layout(hub: StandIn, tmp_path: Path) -> None:
    """At the commits that prefetch wrote down, `--data DIR` and `--data hub` are the same study."""
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
    web = entries["corpora/web/tiiuae--falcon-refinedweb/data/train-00001-of-00003-abc.parquet"]
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
    commits = {place.partition("/")[2]: repository.commit for place, repository in hub.repositories.items()}
    ids = [
        [unit.run.id for row in rows_of(tmp_path, "all", scale="paper", source=each) for unit in row.planned]
        for each in (source, HubSource(commits))
    ]
    assert ids[0] == ids[1] and len(ids[0]) > 100


def test_what_is_here_is_not_fetched_again_and_what_differs_is(hub: StandIn, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert run(folder) == 0
    whole = contents(folder)
    assert len(hub.fetched) == len(whole) == FILES
    assert run(folder) == 0
    assert len(hub.fetched) == FILES
    damaged, removed = folder / "glue/rte/train-00000-of-00001.parquet", folder / "tokenizers/llama-2/tokenizer.json"
    damaged.write_bytes(bytes(reversed(damaged.read_bytes())))
    removed.unlink()
    assert run(folder) == 0
    names = sorted(path.rpartition("/")[2] for path in hub.fetched[FILES:])
    assert names == ["tokenizer.json", "train-00000-of-00001.parquet"]
    assert contents(folder) == whole
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    assert run(tmp_path / "copy") == 0
    assert len(hub.fetched) == FILES + 2


def test_files_that_were_not_checked_are_hashed_and_not_fetched(hub: StandIn, tmp_path: Path) -> None:
    """As a kill between the two leaves them: until then they are missing, and not files of somebody else."""
    folder = tmp_path / "data"
    assert run(folder) == 0
    noted, path = manifest(folder), folder / "manifest.json"
    content = json.loads(path.read_text())
    content["files"] = {name: entry | {"sha256": None} for name, entry in noted.items()}
    path.write_text(json.dumps(checksummed(content)))
    assert run(folder, "--check") == 3
    assert run(folder) == 0 and manifest(folder) == noted and len(hub.fetched) == FILES


def test_kill_9_in_the_middle_of_a_file_is_completed_by_the_same_command(hub: StandIn, tmp_path: Path) -> None:
    assert run(tmp_path / "undisturbed") == 0
    hub.asked.clear()
    hub.stall_at = 12
    command = [sys.executable, str(ROOT / "ablations" / "prefetch.py"), "--variant", "all", "--workers", "1"]
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
    process = subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "data")], env=environment, stdout=subprocess.DEVNULL
    )
    assert hub.stalled.wait(60)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert contents(tmp_path / "data").items() <= contents(tmp_path / "undisturbed").items(), "no file is a part of one"
    hub.stall_at = None
    hub.asked.clear()
    assert run(tmp_path / "data") == 0
    assert len(hub.fetched) == FILES - 11
    assert contents(tmp_path / "data") == contents(tmp_path / "undisturbed")
    assert manifest(tmp_path / "data") == manifest(tmp_path / "undisturbed")


def test_a_gated_tokenizer_is_one_sentence_and_all_others_are_brought(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is a repository that the hub does not show. With a token the same command completes the folder, at the commits
    that the first resolved."""
    hub.repositories[LLAMA].gated = True
    glue = hub.repositories.pop("datasets/nyu-mll/glue")
    folder = tmp_path / "data"
    assert run(folder) == 3
    hidden, gated = sorted(capsys.readouterr().err.splitlines(), key=lambda line: "Llama" in line)
    assert "meta-llama/Llama-2-7b-hf" in gated and "accept its licence at" in gated and "set HF_TOKEN" in gated
    assert "GLUE task mnli" in hidden and "dataset nyu-mll/glue cannot be read" in hidden
    assert len(contents(folder)) == 6
    hub.repositories["datasets/nyu-mll/glue"] = glue
    for repository in hub.repositories.values():
        repository.newest = "9" * 40
    glue.newest = None
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody")
    assert run(folder) == 0
    assert len(contents(folder)) == FILES
    assert {entry["revision"] for entry in manifest(folder).values()} == {letter * 40 for letter in "abcdef"}


@pytest.mark.parametrize(
    ("setting", "value", "advice"),
    [("HF_HUB_OFFLINE", True, "unset the `HF_HUB_OFFLINE`"), ("ENDPOINT", "http://127.0.0.1:9", "does not answer")],
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
    (line,) = capsys.readouterr().err.splitlines()
    assert advice in line and not hub.asked
    assert not contents(tmp_path / "data")


def test_bytes_that_the_hub_did_not_state_are_removed(
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


def test_mteb_data_are_whole_repositories_at_the_commit_of_the_table(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"README.md": b"# STS12\n", "data/test-00000.parquet": b"PAR1", ".gitattributes": b""}
    two = {task: MTEB_REPOSITORIES[task] for task in ("STS12", "STS22.v2")}
    hub.repositories |= {f"datasets/{name}": StandInRepository(files, commit) for name, commit in two.values()}
    monkeypatch.setattr(mteb_tasks, "MTEB_REPOSITORIES", two)
    assert run(tmp_path / "data", "--stages", "mteb") == 0
    brought = {name for name in contents(tmp_path / "data") if name.startswith("mteb/")}
    assert brought == {"mteb/STS12/README.md", "mteb/STS12/data/test-00000.parquet"}
    assert run(tmp_path / "data", "--stages", "mteb", "--check") == 0
    of_v2 = ("--stages", "mteb", "--benchmark", "MTEB(eng, v2)")
    assert run(tmp_path / "data", *of_v2, "--check") == 3
    assert run(tmp_path / "data", *of_v2) == run(tmp_path / "data", *of_v2, "--check") == 0
    assert [task.name for task in DirectorySource(tmp_path / "data").embedding_tasks()] == ["STS12", "STS22.v2"]


def test_nothing_outside_the_folder_is_touched(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither by a name in the manifest nor through a link."""
    folder, victim = tmp_path / "data", tmp_path / "victim"
    assert run(folder) == 0
    victim.write_text("mine")
    path = folder / "manifest.json"
    whole = json.loads(path.read_text())
    entry = next(entry for file, entry in whole["files"].items() if file.startswith("corpora/web/"))
    capsys.readouterr()
    for name in ("corpora/web/../../../victim", str(victim), "corpora\\victim"):
        for added in ({name: entry}, {"corpora/web/x.parquet": entry | {"file": name}}):
            path.write_text(json.dumps(checksummed(whole | {"files": whole["files"] | added})))
            assert run(folder) == 1
            (told,) = capsys.readouterr().err.splitlines()
            assert "no file of this folder" in told and victim.read_text() == "mine"
    path.write_text(json.dumps(checksummed(whole)))
    outside = tmp_path / "outside"
    (outside / "staging").mkdir(parents=True)
    for link in ("corpora/web", "glue/rte/train-00000-of-00001.parquet", ".prefetch"):
        moved = (folder / link).rename(tmp_path / "moved")
        (folder / link).symlink_to(victim if "." in link[1:] else outside)
        assert run(folder) == 1
        assert f"leads out of {folder}" in capsys.readouterr().err
        assert list(outside.iterdir()) == [outside / "staging"] and victim.read_text() == "mine"
        (folder / link).unlink()
        moved.rename(folder / link)
    assert run(folder) == 0 and len(hub.fetched) == FILES
