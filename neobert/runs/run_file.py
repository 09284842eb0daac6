"""run.json: reading and writing the file with everything that a run, study or evaluation needs.

It contains the specification, the source of the data, how the run is executed, and its labels.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import Field, PositiveInt, ValidationError, model_validator
from pydantic_core import ErrorDetails

from neobert.errors import DamagedFile, MissingData
from neobert.execution import Execution
from neobert.files import is_there, publish_once, replace_file
from neobert.identity import NUMERICS, Neutral, plain
from neobert.own_code import register, sources_in
from neobert.recipe import ANY, Value
from neobert.runs.kinds import Run
from neobert.runs.layout import Layout
from neobert.runs.records import provenance, read_sealed, sealed
from neobert.runs.work import Work
from neobert.starts import folder_of, remember

Specified = TypeVar("Specified", bound=Work)
EXECUTION = "execution.json"


class SourceSpecification(Value):
    """Source of the data: a name or folder for `open_source`, the number of synthetic documents, the folders of a
    ladder's own tasks, and the folders and text columns of its own corpora."""

    retired: ClassVar = {"readout_files": ANY, "unseen": ANY}

    name: str
    synthetic_documents: PositiveInt
    task_folders: dict[str, str] = Field(default_factory=dict)
    corpora: dict[str, tuple[str, str]] = Field(default_factory=dict)


class RunFile(Value):
    """Content of run.json: everything needed to do the work.

    `numerics` are the versions hashed in its id. `own_code` are the sources of the user's classes and functions that
    the run names (`neobert.own_code`); `start` is the folder of the weights that it starts from (`neobert.starts`).
    """

    id: str
    numerics: dict[str, int]
    run: Run
    source: SourceSpecification
    execution: Execution
    labels: dict[str, Any]
    own_code: Annotated[dict[str, str], Neutral({})] = Field(default_factory=dict)
    start: Annotated[str | None, Neutral(None)] = None

    @model_validator(mode="after")
    def _remember_what_it_needs(self) -> Self:
        register(self.own_code)
        if self.start is not None and self.run.start is not None:
            remember(self.run.start, self.start)
        return self

    def specification(self, kind: type[Specified]) -> Specified:
        """Return the specification. Raises DamagedFile if it is of another kind, as in a folder that was moved."""
        if not isinstance(self.run, kind):
            raise DamagedFile(f"run {self.id} is of the kind {self.run.kind}, which does not belong in its folder")
        return self.run

    @property
    def owner(self) -> str:
        """External model, or first variant, for which the run was planned; empty if the labels have none."""
        return str(self.labels.get("model") or next(iter(self.labels.get("variants", ())), ""))


def write_run_file(
    layout: Layout,
    run: Run,
    source: SourceSpecification,
    execution: Execution,
    labels: dict[str, Any],
    kept: Collection[str] = (),
) -> Path:
    """Write run.json before the run starts, unless it exists. Returns its folder.

    Execution does not affect the result, nor does the place of the same data: if one of them differs from the recorded
    one, both are written to execution.json. Fields of the execution that are `kept` stay as recorded.

    Raises DamagedFile if a file that is there is torn, was changed, or was written by a version that this one cannot
    read.
    """
    content = RunFile(
        id=run.id,
        numerics=NUMERICS,
        run=run,
        source=source,
        execution=execution,
        labels=labels,
        own_code=sources_in(run),
        start=folder_of(run.start),
    )
    folder = layout.root / run.folder
    path = folder / "run.json"
    if not is_there(path):
        publish_once(path, sealed({**plain(content), "provenance": provenance()}))
    recorded = read_run_file(folder)
    execution = execution.model_copy(update=recorded.execution.model_dump(include=set(kept)))
    if (recorded.execution, recorded.source) != (execution, source):
        replace_file(folder / EXECUTION, sealed({**plain(execution), "source": plain(source)}))
    return folder


def read_checked_run_file(folder: Path) -> RunFile:
    """Read the run.json of work that is about to be done, and check that its id matches the folder.

    Raises:
        MissingData: there is no run.json.
        DamagedFile: it is torn, was changed, or this version computes something else under that id.
    """
    run_file = read_run_file(folder)
    run = run_file.run
    if run.id == run_file.id == folder.name:
        return run_file
    if run.id_under(run_file.numerics) == folder.name:
        changed = ", ".join(name for name in run.mechanisms if run_file.numerics.get(name) != NUMERICS[name])
        raise DamagedFile(
            f"{folder / 'run.json'} was planned by a version with other numerics ({changed} changed since): run the "
            "command again, which plans it under a new name"
        )
    raise DamagedFile(
        f"{folder / 'run.json'} describes {run.id} and not {folder.name}: it was changed or moved: move it away and "
        "run the command again, which writes it again"
    )


def read_run_file(folder: Path) -> RunFile:
    """Read what `write_run_file` wrote, with the newest execution and place of the data.

    Raises:
        MissingData: there is no run.json.
        DamagedFile: it is torn or was written by another version.
    """
    path = folder / "run.json"
    if not is_there(path):
        raise MissingData(f"{folder} holds no run.json: start the run with ablations/run.py")
    content = read_sealed(path)
    newest = folder / EXECUTION
    if is_there(newest):
        execution = read_sealed(newest)
        content["execution"] = {name: value for name, value in execution.items() if name in Execution.model_fields}
        content["source"] = execution.get("source", content["source"])
    try:
        return RunFile.read({name: value for name, value in content.items() if name not in ("schema", "provenance")})
    except ValidationError as error:
        causes = "; ".join(f"{'.'.join(map(str, each['loc']))}: {_said(each)}" for each in error.errors())
        raise DamagedFile(f"{path} does not describe a run of this version: {causes}") from error


def _said(error: ErrorDetails) -> str:
    """Return the sentence of an error, without pydantic's words before those of this package."""
    return str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
