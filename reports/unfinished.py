"""What a folder of runs holds beside records: studies that were begun, trials that failed, runs without an end."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.scales import Scale
from neobert.errors import DamagedFile
from neobert.recipe import Point
from neobert.runs.specifications import GlueStudy, RunFile, read_run_file
from reports.made import known_scale

LISTED = 3


def begun_studies(root: Path, problems: list[str]) -> list[RunFile]:
    """Every study's run.json; one that cannot be read is a problem."""
    run_files = []
    for path in sorted(root.glob("glue/*/studies/*/run.json")):
        try:
            run_file = read_run_file(path.parent)
            known_scale(str(run_file.labels["scale"]))
            run_files.append(run_file)
        except (DamagedFile, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
            problems.append(f"the study of {path} is left out: {error}")
    return run_files


def unfinished_runs(root: Path) -> list[str]:
    """One sentence where stages of pre-training were begun and have no record."""
    begun = sorted(root.glob("pretraining/*/run.json"))
    names = [path.parent.name for path in begun if not (path.parent / "done.json").exists()]
    if not names:
        return []
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return [
        f"{len(names)} stage(s) of pre-training are not finished and not counted: {', '.join(names[:LISTED])}{more}"
    ]


@dataclass(frozen=True)
class FailedTrial:
    """A trial that left an error and no record, as its study planned it."""

    id: str
    study: GlueStudy
    point: Point
    scale: Scale
    labels: Mapping[str, Any]


def failed_trials(root: Path, run_files: Iterable[RunFile], recorded: set[str]) -> Iterator[FailedTrial]:
    """Trials that left an error and no record, from the studies that planned them."""
    errors = {path.stem for path in root.glob("glue/*/errors/*.json")} - recorded
    for run_file in run_files if errors else ():
        study, scale = run_file.study, known_scale(str(run_file.labels["scale"]))
        assert study is not None
        for point in study.points:
            trial_id = study.trial_id(point)
            if trial_id in errors:
                errors.remove(trial_id)
                yield FailedTrial(trial_id, study, point, scale, run_file.labels)
