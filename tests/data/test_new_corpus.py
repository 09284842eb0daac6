"""A corpus is added by one entry of the catalog: in a copy of the tree, through the real command, from plain files."""

import gzip
import json
from pathlib import Path

from tests.support.small_corpora import texts
from tests.support.tree_copy import edit, fresh_clone, shell, shrink_smoke_scale

ENTRY = '    "web": CorpusEntry((REFINEDWEB,), 600e9, 968_000_000),\n'
CHILD = """
M2_RECIPES = M2.derive("M2@recipes", Modification("Recipes", source="a test", data={"corpus": "recipes"}), kept=False)
"""


def test_a_corpus_of_compressed_json_lines_is_declared_and_trained_on(tmp_path: Path) -> None:
    tree, data, runs = fresh_clone(tmp_path / "tree"), tmp_path / "data", tmp_path / "runs"
    shrink_smoke_scale(tree)
    edit(tree / "neobert" / "data" / "catalog.py", ENTRY, ENTRY + '    "recipes": CorpusEntry(),\n')
    ladder = tree / "ablations" / "ladder.py"
    ladder.write_text(f"{ladder.read_text(encoding='utf-8')}\n{CHILD}\n", encoding="utf-8")
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts(400))
    corpus = data / "corpora" / "recipes" / "2026" / "part.jsonl.gz"
    corpus.parent.mkdir(parents=True)
    corpus.write_bytes(gzip.compress(lines.encode()))
    (data / "corpora" / "columns.json").write_text('{"recipes": "body"}')
    command = f".venv/bin/python ablations/run.py --variant M2@recipes --stages pretrain --runs {runs}"
    ended = shell(tree, f"{command} --data {data}")
    assert ended.returncode == 0, ended.stderr
    (corpus_folder,) = (path for path in (runs / "data").iterdir() if (path / "manifest.json").is_file())
    manifest = json.loads((corpus_folder / "manifest.json").read_text())
    assert manifest["documents"] == 400 and manifest["origins"]["corpus"].endswith(":column=body")
    (run,) = (runs / "pretraining").glob("*/run.json")
    assert json.loads(run.read_text())["run"]["recipe"]["data"]["corpus"] == "recipes"
    refused = shell(tree, command)
    assert refused.returncode == 3 and "the synthetic world has no corpus recipes" in refused.stderr
