"""Two users share a folder of runs: what one of them begins the other goes on with, and nothing is done twice."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from neobert.files import read_lines
from tests.support.users import GROUP, run_as, why_no_users

FIRST, SECOND = 60_001, 60_002
RUN = ("--variant", "M0@steps0.002", "--scale", "smoke", "--cluster", "here", "--workers", "1")
WORDS = ("the", "cat", "dog", "house", "tree", "river", "stone", "bird", "runs", "sleeps", "eats", "under", "near")


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def text(number: int, words: int) -> str:
    drawn = (WORDS[(number * 7 + place * (1 + number % 5)) % len(WORDS)] for place in range(words))
    return " ".join([*drawn, str(number)])


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder of the group of both, with data and a home for each."""
    folder = Path(tempfile.mkdtemp(prefix="shared-"))
    folder.chmod(0o755)
    for name, owner, mode in (("runs", 0, 0o2775), ("out", 0, 0o2775), ("1", FIRST, 0o700), ("2", SECOND, 0o700)):
        (folder / name).mkdir()
        os.chown(folder / name, owner, GROUP)
        (folder / name).chmod(mode)
    write_lines(folder / "data/corpora/wikibook/a.jsonl", [{"text": text(number, 40)} for number in range(400)])
    for split, count in (("train", 24), ("validation", 16)):
        rows = [{"sentence": text(number, 8), "label": number % 2} for number in range(count)]
        write_lines(folder / f"data/glue/cola/{split}.jsonl", rows)
    try:
        if reason := why_no_users(folder / "1"):
            pytest.skip(reason)
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.mark.drill
def test_what_one_user_begins_another_goes_on_with(shared: Path) -> None:
    runs = shared / "runs"
    own = ("--runs", str(runs))

    def run(user: int, *stages: str) -> tuple[int, str]:
        command = ["ablations/run.py", *RUN, *own, "--data", str(shared / "data"), "--stages", *stages]
        return run_as(user, command, shared / str(user - FIRST + 1))

    code, said = run(FIRST, "pretrain")
    assert code == 0, said
    (record,) = runs.glob("pretraining/*/done.json")
    trained = record.stat()

    weights = max(record.parent.glob("checkpoints/step-*")) / "model.safetensors"
    before = sorted(path.name for path in runs.rglob("*") if "claims" not in path.parts)
    weights.chmod(0)
    code, said = run(SECOND, "pretrain", "glue")
    assert code == 1 and f"{weights}: Permission denied" in said and "Traceback" not in said, said
    assert not [path for path in runs.rglob("*") if "damaged" in path.name]
    assert set(before) <= {path.name for path in runs.rglob("*")}
    weights.chmod(0o664)

    code, said = run(SECOND, "pretrain", "glue")
    assert code == 0, said
    for command in (["ablations/status.py"], ["reports/collect.py", "--out", str(shared / "out" / "records")]):
        code, said = run_as(SECOND, [*command, *own], shared / "2")
        assert code == 0, said
    code, said = run(FIRST, "pretrain", "glue")
    assert code == 0, said

    assert record.stat() == trained
    assert not [path for path in runs.rglob("*") if "damaged" in path.name]
    finished = [json.loads(path.read_bytes())["id"] for path in (record, *runs.glob("glue/cola/*.json"))]
    begun = [line["part"] for line in read_lines(runs / "starts.jsonl")]
    assert len(finished) > 2 and all(begun.count(part) <= 1 + (part != record.parent.name) for part in finished)
    assert begun.count(record.parent.name) == 1
    modes = {path: path.stat().st_mode & 0o7777 for place in (runs, shared / "out") for path in place.rglob("*")}
    private = {str(path): oct(mode) for path, mode in modes.items() if mode not in (0o664, 0o2775)}
    assert not private
    assert {path.stat().st_uid for path in modes} == {FIRST, SECOND}
    assert {path.stat().st_gid for path in modes} == {GROUP}
