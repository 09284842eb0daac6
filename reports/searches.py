"""Searches of fine-tuning points: what each has tried, and the sentence about it below tables."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ablations.ladders import Ladder
from neobert.errors import DamagedFile
from neobert.files import matching
from neobert.kinds.glue import GlueStudy
from neobert.recipe import Point
from neobert.runs.collected import RunFiles
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile
from neobert.search.space import Search
from reports.labels import Labels


@dataclass(frozen=True)
class Tried:
    """What a search has tried.

    `points` are those whose trials ended with all seeds, in the order in which they were asked for, and `ended_early`
    is the number of others, which its pruner ended. `scored` are the ids of the trials at `points`, `trials` those at
    every point. The records lie below the root of `files`.
    """

    study: GlueStudy
    labels: Labels
    points: tuple[Point, ...]
    ended_early: int
    scored: frozenset[str]
    trials: frozenset[str]
    files: RunFiles = field(compare=False, repr=False)

    @property
    def layout(self) -> Layout:
        return Layout(self.files.root)

    @property
    def search(self) -> Search:
        assert self.study.search is not None
        return self.study.search

    @property
    def sentence(self) -> str:
        """How many points were tried by which means: the footer of what uses a score of the search."""
        search, tried = self.search, len(self.points) + self.ended_early
        count = f"{tried}" if tried == search.trials else f"{tried} of {search.trials}"
        chosen = "of the grid" if search.sampler == "grid" else f"chosen by {search.sampler}"
        early = f", {self.ended_early} ended early by {search.pruner}" if search.pruner != "none" else ""
        return f"{self.study.about.title}: {count} points {chosen}{early}; not the whole grid"


def read_searches(
    ladder: Ladder, folder: RunFiles, run_files: Iterable[RunFile], problems: list[str]
) -> Iterator[Tried]:
    """Yield what each search has tried; one that cannot be read is added to `problems`."""
    layout = Layout(folder.root)
    for run_file in run_files:
        study = run_file.specification(GlueStudy)
        if study.search is None:
            continue
        try:
            _refuse_links(folder, study)
            searched = study.search_trials(layout)
            done = [each for each in searched if each.state == "done"]
            yield Tried(
                study=study,
                labels=Labels.read(run_file.labels, ladder),
                points=tuple(each.point for each in done),
                ended_early=sum(each.state == "pruned" for each in searched),
                scored=frozenset(trial.id for each in done for trial in each.trials),
                trials=frozenset(trial.id for each in searched for trial in each.trials),
                files=folder,
            )
        except (DamagedFile, OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"the search {study.id} of {study.task} is left out: {error}")


def _refuse_links(folder: RunFiles, study: GlueStudy) -> None:
    """Raise DamagedFile if a file of a search may not be read."""
    for place in ("asked", "trials"):
        for path in matching(folder.root, f"{study.folder}/{place}/*.json"):
            if reason := folder.why_not(path):
                raise DamagedFile(reason)
