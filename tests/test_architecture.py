"""The house: heavy packages have one door, listing and reporting need no torch."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("neobert", "ablations", "sweeps", "reports", "benchmarks")
DOORS = {
    "submitit": {"neobert/slurm/submit.py", "neobert/slurm/job.py"},
    "deepspeed": {"neobert/training/zero.py"},
    "flash_attn": {"neobert/model/attention.py"},
    "mteb": {"neobert/embeddings/mteb.py"},
    "tensorboard": {"neobert/runs/tracking.py"},
    "wandb": {"neobert/runs/tracking.py"},
    "optuna": {f"neobert/search/{name}.py" for name in ("memory", "samplers", "storages", "study", "subjects")},
    "sentence_transformers": {"benchmarks/encoding.py", "neobert/export/huggingface.py"},
    "transformers": {
        "benchmarks/pretraining.py",
        "benchmarks/throughput.py",
        "benchmarks/trainer_peer.py",
        "neobert/hub/__init__.py",
        "neobert/hub/attention.py",
        "neobert/hub/configuration.py",
        "neobert/hub/external.py",
        "neobert/hub/modeling.py",
        "neobert/export/huggingface.py",
    },
    "datasets": {"benchmarks/data.py", "neobert/embeddings/mteb.py"},
    "jinja2": {"reports/findings.py"},
    "huggingface_hub": {
        "neobert/data/download.py",
        "neobert/export/card.py",
        "neobert/external.py",
    },
    "matplotlib": {
        "neobert/search/memory.py",
        "reports/figures/curves.py",
        "reports/figures/drawing.py",
        "reports/figures/embeddings.py",
        "reports/figures/figure1.py",
        "reports/figures/differences.py",
        "reports/figures/perplexity.py",
        "reports/figures/rates.py",
        "reports/figures/searches.py",
        "reports/figures/throughput.py",
    },
}
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Top-level names of all packages that a file imports, at its head or inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def ends_well(code: str) -> None:
    """Run code in an interpreter of its own."""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_heavy_packages_have_one_door() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in SOURCES
        for name in imported(path)
        if name in DOORS and str(path.relative_to(ROOT)) not in DOORS[name]
    ]
    assert not wrong


TORCH_FREE = ("ablations", "sweeps", "reports", "neobert/runs", "neobert/slurm")
"""Whole rooms; of others what commands need to list, plan or report."""
ALSO_TORCH_FREE = (
    "import ablations; ablations.variants(); ablations.train",
    "import neobert.executors.selection, neobert.glue.selection, neobert.evaluation.items",
    "import neobert.data.download, neobert.executors.corpus, neobert.data.streams, neobert.data.mteb_tasks",
    "from neobert.export.__main__ import build_parser; build_parser()",
    "from ablations.run import build_parser; build_parser()",
    "from sweeps.mteb_suite import build_parser; build_parser()",
    "from neobert.data.sources import HubSource; HubSource().embedding_tasks()",
    "from neobert.data.sources import SyntheticSource as S; S(1).embedding_task_data('SyntheticThingClustering')",
)


def test_what_lists_plans_or_reports_imports_no_torch() -> None:
    paths = [path.relative_to(ROOT) for path in SOURCES if path.relative_to(ROOT).as_posix().startswith(TORCH_FREE)]
    modules = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    code = f"""if True:
        import sys
        for statement in {[*ALSO_TORCH_FREE, *(f"import {module}" for module in modules)]!r}:
            exec(statement)
            if heavy := {{'torch', 'transformers', 'mteb', 'datasets'}} & set(sys.modules):
                sys.exit(f"{{statement}}: {{heavy}}")"""
    ends_well(code)


def test_training_loads_no_transformers() -> None:
    """It takes a second of every worker's start."""
    code = "import neobert.executors.pretraining, neobert.executors.glue, sys"
    code += "; sys.exit(', '.join({'transformers', 'mteb'} & set(sys.modules)) or 0)"
    ends_well(code)


def test_the_package_itself_is_light() -> None:
    code = "import sys; before = set(sys.modules); import neobert; sys.exit(len(set(sys.modules) - before) > 3)"
    ends_well(code)


def test_no_pickle_and_no_remote_code() -> None:
    """Arrays are loaded without pickle, of pickled weights tensors alone are read, code of a checkpoint is not run.

    The exception: one module runs the code of a folder that the user trusts.
    """
    trusted_code = {"neobert/hub/external.py"}
    patterns = {
        r"\bimport pickle": set(),
        r"torch\.(load|save)\(": set(),
        r"weights_only=False": set(),
        r"allow_pickle=True": set(),
        r"trust_remote_code=True": set(),
        r"get_class_from_dynamic_module": trusted_code,
    }
    wrong = [
        f"{path.relative_to(ROOT)}: {pattern}"
        for path in SOURCES
        for pattern, where in patterns.items()
        if re.search(pattern, path.read_text()) and path.relative_to(ROOT).as_posix() not in where
    ]
    assert not wrong


def test_no_path_of_one_machine() -> None:
    own = Path(__file__).name
    paths = [path for top in ROOT.glob("[!.]*") for path in (top, *top.rglob("[!.]*"))]
    files = [path for path in paths if path.suffix in {".py", ".md", ".toml"} or path.name == "Makefile"]
    wrong = [
        str(path.relative_to(ROOT))
        for path in files
        if path.name != own and re.search(r"(?<![\w.])/(work|root|home)/\w", path.read_text())
    ]
    assert not wrong


def test_the_walks_of_the_design_page_name_what_is_there() -> None:
    (walks,) = re.findall(r"^## Walks\n(.*?)^## ", (ROOT / "docs/design.md").read_text(), re.MULTILINE | re.DOTALL)
    names = re.findall(r"`([\w.]+\.\w+)`", walks.replace("`status.py`", ""))
    assert len(names) > 30
    for module, _, name in (full.rpartition(".") for full in names):
        text = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text()
        assert re.search(rf"^(class|def) {name}\b", text, re.MULTILINE), f"{module} has no {name}"
