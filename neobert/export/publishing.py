"""Exports of one run, or of every run with an index, as folders that are written atomically; uploads to the hub."""

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from neobert.command_line import tell_error
from neobert.data.mteb_tasks import Wording
from neobert.errors import MissingData, ParityOff, RunFailed, exit_code
from neobert.files import json_bytes, publish_folder, replace_file, temporary_sibling

Target = Literal["hf", "sentence-transformers", "onnx"]
INDEX, INDEX_PAGE = "index.json", "README.md"
UNFIT = re.compile(r"(?:[^\w.]|\.{2,})+", re.ASCII)
"""What becomes one hyphen in names of repositories on the hub, which allows neither "--" nor ".."."""


def export(
    run: Path,
    target: str,
    out: Path,
    step: int | None,
    with_code: bool = False,
    *,
    instructions: Wording | None = None,
) -> dict[str, object]:
    """Write `out` atomically; return its name, the run, the step and the measured deviations.

    with_code: whether to add the model's code. instructions: whose wording the prompts of a contrastive run's tasks
        have; None stands for the paper's.

    Raises:
        ValueError: `out` exists, a package is not installed, or the run is of another kind.
        MissingData: there is no such run or step.
        ParityOff: the export does not compute what the run computes.
    """
    if out.exists():
        raise ValueError(f"--out {out} exists: name a new folder or remove it")
    from neobert.runs.run_file import read_run_file

    is_contrastive = read_run_file(run.resolve()).run.kind == "contrastive"
    if is_contrastive and with_code:
        raise ValueError("--remote-code is for pre-training runs: export a contrastive run without it")
    if instructions and not is_contrastive:
        raise ValueError("--instructions is for contrastive runs: a pre-trained encoder takes none")
    temporary = temporary_sibling(out.resolve())
    temporary.mkdir(parents=True)
    try:
        if is_contrastive:
            done = _export_contrastive(run.resolve(), target, step, temporary, instructions or "paper")
        else:
            done = _export_pretrained(run.resolve(), target, step, temporary, with_code)
        publish_folder(temporary, out.resolve())
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"folder": str(out), **done}


def _export_pretrained(run: Path, target: str, step: int | None, folder: Path, with_code: bool) -> dict[str, object]:
    from neobert.export.card import pretrained_card, write_evaluation_results
    from neobert.export.checkpoint import open_checkpoint
    from neobert.export.huggingface import write_sentence_transformers, write_transformers
    from neobert.export.onnx import write_onnx
    from neobert.export.remote_code import write_remote_code

    writers = {"hf": write_transformers, "sentence-transformers": write_sentence_transformers, "onnx": write_onnx}
    checkpoint = open_checkpoint(run, step)
    parity = writers[target](checkpoint, folder)
    if with_code:
        parity |= write_remote_code(checkpoint, folder)
    (folder / "README.md").write_text(pretrained_card(checkpoint, target, parity, with_code), encoding="utf-8")
    write_evaluation_results(checkpoint, folder)
    return {"run": checkpoint.run_file.id, "step": checkpoint.step, "parity": parity}


def _export_contrastive(run: Path, target: str, step: int | None, folder: Path, wording: Wording) -> dict[str, object]:
    from neobert.export.card import contrastive_card
    from neobert.export.contrastive import open_contrastive_checkpoint, write_contrastive

    checkpoint = open_contrastive_checkpoint(run, step, wording)
    parity = write_contrastive(checkpoint, target, folder)
    (folder / "README.md").write_text(contrastive_card(checkpoint, target, parity), encoding="utf-8")
    return {"run": checkpoint.run_file.id, "step": checkpoint.step, "parity": parity}


def check_repository(repository: str) -> None:
    """Check the name of a repository.

    Raises:
        ValueError: the hub does not accept the name.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ValueError(
            f"--push {repository!r} names no repository of the hub, such as user/model: {error}"
        ) from error


def check_token(repository: str) -> None:
    """Check that the user is logged in to the hub, before anything is computed.

    Raises:
        ValueError: there is no token.
    """
    from huggingface_hub import get_token

    if get_token() is None:
        raise ValueError(f"--push {repository} needs a token of the hub: run hf auth login, or set HF_TOKEN")


def push(folder: Path, repository: str, message: str, branch: str | None = None) -> str:
    """Upload a folder, to a new private repository if there is none; return the URL of the commit.

    branch: branch of the repository, for an earlier checkpoint. It starts from the main branch, whose other files are
        not this checkpoint's and are deleted there.

    Raises:
        RunFailed: the hub refused or could not be reached; the folder is kept.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # from the HTTP library of the installed client

    api = HfApi()
    try:
        repository = api.create_repo(repository, private=True, exist_ok=True).repo_id  # with the user's name
        if branch is not None:
            api.create_branch(repository, branch=branch, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message=message,
            revision=branch,
            delete_patterns=None if branch is None else "*",
        )
        return str(done.commit_url)
    except (HTTPError, OSError) as error:
        again = f"hf upload {repository} {folder} --private" + (f" --revision {branch}" if branch else "")
        raise RunFailed(
            f"{folder} is exported, but the hub took no {repository}: {error}; `{again}` tries again"
        ) from error


@dataclass(frozen=True)
class PlannedExport:
    """A checkpoint of a finished run, its folder, and the repository to push to. `step` is None for the last one."""

    run: Path
    step: int | None
    folder: Path
    repository: str | None

    @property
    def branch(self) -> str | None:
        """The branch of the repository for an earlier checkpoint; None for the last one."""
        return None if self.step is None else f"step{self.step}"

    def facts(self) -> dict[str, Any]:
        """Return what `--dry-run` prints about the export."""
        state = "there" if self.folder.exists() else "to be written"
        facts = {"run": self.run.name, "step": self.step, "folder": str(self.folder), "state": state}
        return facts | ({"push": self.repository, "branch": self.branch} if self.repository else {})


def plan_exports(
    runs: Path, out: Path, *, checkpoints: bool = False, repositories: str | None = None
) -> list[PlannedExport]:
    """Plan the export of every finished pre-training and contrastive run of a folder, named by variant, scale, data,
    seed and id.

    checkpoints: whether to include earlier checkpoints. repositories: common prefix of the repositories, user/prefix.

    Raises:
        MissingData: there is no finished run.
        ValueError: the hub does not accept the name of a repository.
        DamagedFile: a run file cannot be read.
    """
    from neobert.runs.run_file import read_run_file

    finished = sorted(
        done.parent for kind in ("pretraining", "contrastive") for done in runs.glob(f"{kind}/*/done.json")
    )
    if not finished:
        raise MissingData(f"--all {runs}: there is no finished run of pre-training or contrastive fine-tuning")
    planned = []
    for run in finished:
        run_file = read_run_file(run)
        labels, specification = run_file.labels, run_file.run
        words = (
            run_file.owner or "run",
            labels.get("scale"),
            labels.get("data"),
            specification.kind == "contrastive" and "contrastive",
        )
        name = "-".join(str(word) for word in (*words, f"seed{specification.seed}", run_file.id) if word)
        name = UNFIT.sub("-", name).lstrip("-.")
        repository = None if repositories is None else f"{repositories}-{name}"
        if repository is not None:
            check_repository(repository)
        planned.append(PlannedExport(run, None, out / name, repository))
        for step in _steps_on_the_way(run) if checkpoints else ():
            planned.append(PlannedExport(run, step, out / f"{name}-step{step}", repository))
    return planned


def _steps_on_the_way(run: Path) -> list[int]:
    from neobert.training.checkpoints import steps_on_disk

    return steps_on_disk(run / "checkpoints")[:-1]


def export_all(planned: Sequence[PlannedExport], target: str, out: Path, with_code: bool) -> list[Exception]:
    """Export what does not exist yet, push everything, then write the index; return the errors.

    with_code: as in `export`, for pre-training runs. A run that fails is reported and skipped, also one whose folder is
    of another target.
    """
    failed: list[Exception] = []
    for each in planned:
        brings_code = with_code and each.run.parent.name == "pretraining"
        try:
            if not each.folder.exists():
                export(each.run, target, each.folder, each.step, brings_code)
            elif not _is_export(each.folder, target, brings_code):
                raise ValueError("the folder has another --to or --remote-code: remove it or name another --out")
            if each.repository is not None:
                push(each.folder, each.repository, f"Run {each.run.name}", each.branch)
        except (ValueError, MissingData, RunFailed, ParityOff, OSError, RuntimeError) as error:
            tell_error("neobert.export", f"{each.folder.name}: {error}", exit_code(error))
            failed.append(error)
    entries = list(_entries(planned))
    replace_file(out / INDEX, json_bytes(entries))
    replace_file(out / INDEX_PAGE, _index_page(entries).encode())
    return failed


def _is_export(folder: Path, target: str, with_code: bool) -> bool:
    from neobert.export.card import LIBRARIES

    card = (folder / "README.md").read_text(encoding="utf-8")
    return f'library_name: "{LIBRARIES[target]}"\n' in card and any(folder.glob("*.py")) == with_code


def _entries(planned: Sequence[PlannedExport]) -> Iterator[dict[str, Any]]:
    """Yield the index entries of existing exports, with the losses of finished runs."""
    from neobert.runs.records import read_record

    for each in planned:
        if each.folder.exists():
            record = read_record(each.run / "done.json")
            losses = record["scores"]["heldout_loss"] if each.step is None else {}
            facts = {"folder": each.folder.name, "run": each.run.name, "kind": record["kind"], "step": each.step}
            yield facts | {"heldout_loss": losses, "repository": each.repository, "branch": each.branch}


def _index_page(entries: Sequence[dict[str, Any]]) -> str:
    """Return a table of the exports as Markdown."""
    lines = ["# Exported runs", "", "| model | step | held-out loss |", "|---|---|---|"]
    for entry in entries:
        losses = ", ".join(f"{name} {loss:.4f}" for name, loss in entry["heldout_loss"].items())
        step = "last" if entry["step"] is None else f"{entry['step']:,}"
        lines.append(f"| [{entry['folder']}]({entry['folder']}/README.md) | {step} | {losses or '–'} |")
    return "\n".join(lines) + "\n"
