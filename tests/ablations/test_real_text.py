"""The real text of the study: built from originals, equal to what is declared, its held-out texts held out."""

import json
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ablations import machine_check, real_text, text_sources
from ablations.machine_check import RECORDED, ROUNDING, SLICE, STEPS, compare
from ablations.real_text import ATTRIBUTION, HELD_OUT_CHARACTERS, build, held_out_text, read_sources, total_hash
from ablations.text_sources import TextSource
from neobert.data.shards import heldout_bound, text_hash
from neobert.data.sources import open_source
from neobert.errors import EXIT_MISSING, EXIT_OFF, EXIT_REFUSED

SENTENCE = "This is the page of number {}, and it is for you to read with the others that are in the book. "


def page(number: int, sentences: int = 300) -> str:
    return "".join(SENTENCE.format(f"{number} and {k}") + "\n\n" for k in range(sentences))


def commit(folder: Path, files: dict[str, str]) -> str:
    """Write files into a repository and return the commit's name."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(content.encode())
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "x"], ["rev-parse", "HEAD"]):
        done = subprocess.run([*git, *command], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[TextSource]:
    """Two repositories and a package, which pip would have downloaded, as a table of sources to be recorded."""
    blank = TextSource("", "", "web", "", "markdown", r".*\.md", 200, 0, "CC0", "somebody", 0, 0, "")
    web = {f"{n}.md": page(n) for n in range(4)} | {"short.md": "the of and", "no.txt": "x", "copy.md": page(1)}
    first = commit(
        tmp_path / "repositories" / "o" / "web", web | {"big.md": page(5, 60_000), "es.md": "el perro " * 90}
    )
    second = commit(tmp_path / "repositories" / "o+docs", {"a.md": page(7), "b.md": page(8), "1.md": page(1)})
    cache = tmp_path / "cache"
    cache.mkdir()
    with zipfile.ZipFile(cache / "novels-1.0-py3-none-any.whl", "w") as wheel:
        for number in range(3):
            wheel.writestr(f"novels/{number}.txt", page(20 + number, 2000))
    book = replace(blank, name="novels", version="1.0", corpus="wikibook", conversion="lines")
    found = [
        replace(blank, name="o/web", version=first),
        replace(blank, name="o/docs", version=second, held_out="source"),
        replace(book, files="novels/0.txt"),
        replace(book, files="novels/[12].txt", held_out="files"),
    ]
    table = tmp_path / "sources.csv"
    monkeypatch.setattr(real_text, "SOURCES", table)
    monkeypatch.setattr(real_text, "read_sources", lambda: read_sources(table))
    real_text._write_sources(found, table)
    return found


def flags(tmp_path: Path, out: str, *more: str) -> list[str]:
    cache, repositories = str(tmp_path / "cache"), str(tmp_path / "repositories")
    return ["--build", "--out", str(tmp_path / out), "--cache", cache, "--repositories", repositories, *more]


def test_what_is_built_again_is_the_same_byte_by_byte_and_what_differs_is_named(
    sources: list[TextSource], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert real_text.main(flags(tmp_path, "first", "--record")) == 0
    assert real_text.main(flags(tmp_path, "second")) == 0
    declared = real_text.read_sources()
    assert total_hash(declared) in capsys.readouterr().out
    for corpus in ("web", "wikibook"):
        first, second = (tmp_path / name / "corpora" / corpus / "texts.jsonl" for name in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()
    assert all(source.origin in (tmp_path / "first" / ATTRIBUTION).read_text() for source in sources)
    real_text._write_sources([replace(declared[0], sha256="0", documents=9), *declared[1:]], real_text.SOURCES)
    assert real_text.main(flags(tmp_path, "third")) == EXIT_REFUSED and not list(tmp_path.glob("third*"))
    assert f"o/web ({declared[0].documents} texts" in (error := capsys.readouterr().err) and "declared 9" in error
    assert "o/docs" not in error.split("sources differ")[1]
    assert real_text.main(flags(tmp_path, "first")) == EXIT_REFUSED and "exists" in capsys.readouterr().err


def test_the_harness_holds_out_the_declared_groups_and_nothing_else(sources: list[TextSource], tmp_path: Path) -> None:
    build(sources, tmp_path / "out", tmp_path / "repositories", tmp_path / "cache", record=True)
    for corpus, groups in (("web", 1), ("wikibook", 2)):
        lines = (tmp_path / "out" / "corpora" / corpus / "texts.jsonl").read_text().splitlines()
        texts = [json.loads(line) for line in lines]
        is_held_out = np.array([text_hash(text["text"]) for text in texts], dtype=np.uint64) <= int(0.01 * 2**64)
        assert is_held_out.sum() == groups
        held_out = [text for text, is_out in zip(texts, is_held_out, strict=True) if is_out]
        assert all(HELD_OUT_CHARACTERS / 2 < len(text["text"]) <= HELD_OUT_CHARACTERS for text in held_out)
        trained = "\n".join(text["text"] for text, is_out in zip(texts, is_held_out, strict=True) if not is_out)
        assert not any(line in trained for text in held_out for line in text["text"].split("\n")[:-1])
    read = list(open_source(str(tmp_path / "out"), synthetic_documents=1).documents("web"))
    assert len(read) == len(set(read)) and not any("perro" in text for text in read)
    assert sum("number 1 and" in text for text in read) <= 1, "a page of a held-out source is not trained on"


def test_a_limit_of_characters_keeps_the_texts_with_the_smallest_hashes(
    sources: list[TextSource], tmp_path: Path
) -> None:
    (whole,) = build(sources[:1], tmp_path / "a", tmp_path / "repositories", tmp_path / "cache", record=True)
    limited = replace(sources[0], most_characters=whole.characters // 2)
    (less,) = build([limited], tmp_path / "b", tmp_path / "repositories", tmp_path / "cache", record=True)
    assert 0 < less.characters <= whole.characters // 2 and less.documents < whole.documents
    kept, all_texts = (set(open_source(str(tmp_path / name), synthetic_documents=1).documents("web")) for name in "ba")
    assert kept < all_texts


def test_a_source_that_cannot_be_had_is_named(
    sources: list[TextSource], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")  # no network: the hub of repositories is an empty folder
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{tmp_path}/nowhere/.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://github.com/")
    real_text._write_sources([replace(sources[0], version="0" * 40)], real_text.SOURCES)
    assert real_text.main(flags(tmp_path, "out")) == EXIT_MISSING
    assert "o/web at 000" in (error := capsys.readouterr().err) and "--repositories" in error
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{tmp_path}/repositories/.insteadOf")
    real_text._write_sources(sources[:1], real_text.SOURCES)
    assert real_text.main([*flags(tmp_path, "out", "--record")[:-3], "--record"]) == 0, "fetched at the commit alone"
    assert real_text.main([]) == EXIT_REFUSED and real_text.main(["--build"]) == EXIT_REFUSED


def test_a_git_that_does_not_end_is_named(
    sources: list[TextSource], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_sources, "FETCH_SECONDS", 0)
    real_text._write_sources(sources[:1], real_text.SOURCES)
    assert real_text.main(flags(tmp_path, "out")) == EXIT_MISSING
    assert "did not end within 0 s" in capsys.readouterr().err


def test_a_text_too_short_to_be_held_out_is_refused() -> None:
    with pytest.raises(ValueError, match="too short"):
        held_out_text("only these words")


def test_the_committed_table_has_enough_text_and_groups_under_free_licences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    declared = read_sources()
    assert real_text.main(["--list"]) == 0 and total_hash(declared) in capsys.readouterr().out
    for corpus in ("wikibook", "web"):
        trained = [source for source in declared if source.corpus == corpus and not source.held_out]
        held_out = [source for source in declared if source.corpus == corpus and source.held_out]
        assert 60e6 < sum(source.characters for source in trained) < 120e6
        assert sum(source.documents for source in held_out) >= 30 and sum(s.characters for s in held_out) > 1e6
        assert not {source.name for source in trained} & {source.name for source in held_out}
    assert all(len(source.sha256) == 64 and source.documents and source.authors for source in declared)
    free = ("CC BY ", "CC BY-SA ", "CC0", "MIT", "Apache-2.0", "BSD-3-Clause", "Unlicense", "public domain")
    assert all(any(name in source.licence for name in free) for source in declared)
    assert not any("NC" in source.licence or "ND" in source.licence for source in declared)


def test_a_machine_agrees_exactly_within_rounding_or_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = json.loads(RECORDED.read_text())["losses"]
    assert {"AVX2", "DEFAULT"} <= recorded.keys() and all(len(losses) == STEPS for losses in recorded.values())
    mine = recorded["AVX2"]
    assert compare(mine, "AVX2", recorded)["largest_difference"] == 0
    near = [loss * (1 + ROUNDING / 2) for loss in mine]
    assert (
        compare(near, "AVX512", recorded)["agrees"] and "within rounding" in compare(near, "AVX2", recorded)["verdict"]
    )
    assert compare(recorded["DEFAULT"], "AVX2", recorded)["agrees"], "what rounding does is below the limit"
    monkeypatch.setattr(machine_check, "measure_losses", lambda: [loss * (1 + 2 * ROUNDING) for loss in mine])
    assert real_text.main(["--check-machine"]) == EXIT_OFF and "rounding explains" in capsys.readouterr().err
    monkeypatch.setattr(machine_check, "measure_losses", lambda: mine)
    assert real_text.main(["--check-machine"]) == 0 and "exactly" in capsys.readouterr().out


def test_the_slice_is_a_folder_that_data_reads() -> None:
    texts = list(open_source(str(SLICE), synthetic_documents=1).documents("wikibook"))
    hashes = np.array([text_hash(text) for text in texts], dtype=np.uint64)
    assert 0.7e6 < sum(map(len, texts)) < 1e6 and (hashes <= heldout_bound(hashes)).sum() >= 32
