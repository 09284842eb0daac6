"""Tables 2, 3 and 5: modifications, GLUE development scores and best grid points, next to the paper's. Own tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ablations.ladders import Ladder
from ablations.scales import UNSCALED
from ablations.scaling import scaled
from ablations.variant import Recipe, Variant
from neobert.glue.tasks import TASKS, task_title
from neobert.identity import plain
from neobert.recipe import Point
from reports.figures import published
from reports.remarks import INCOMPLETE, remarks, searches_noted, warnings
from reports.rows import Study
from reports.scores import Cell, ScoreRow, point_name
from reports.tables import (
    DASH,
    THIS_STUDY,
    Column,
    Table,
    capitalized,
    frame_of,
    make_table,
    number,
    print_estimate,
)

LISTS = ("mixture", "batch_sizes", "learning_rates", "weight_decays")


def _changes(variant: Variant, study: Study) -> Iterator[dict[str, str]]:
    """Yield every changed field of a variant, by row of the paper's Table 2; a list is one field."""
    if variant.parent is None:
        return
    recipes = variant.parent.recipe, variant.recipe
    before, after = recipes
    scale_before, scale_after = (scaled(study.ladder, recipe, study.scale, study.vocabulary) for recipe in recipes)
    for row, delta in variant.delta_by_row().items():
        for path in dict.fromkeys(map(_field, delta)):
            yield {
                "variant": variant.name,
                "parent": variant.parent.name,
                "kept": "yes" if variant.kept else "no",
                "row": row,
                "field": path.removeprefix("pretraining."),
                "paper_before": _value(before, path),
                "paper_after": _value(after, path),
                "scale": study.scale,
                "scale_before": _value(scale_before, path),
                "scale_after": _value(scale_after, path),
                "source": variant.source,
            }


def _field(path: str) -> str:
    """Return the field that a leaf belongs to; a list with its items is one field."""
    parts = path.split(".")
    for index, part in enumerate(parts):
        if part in LISTS:
            return ".".join(parts[: index + 1])
    return path


def _value(recipe: Recipe, path: str) -> str:
    node: Any = plain(recipe)
    for part in path.split("."):
        index: Any = int(part) if isinstance(node, list) else part
        if node is None or (index not in node if isinstance(node, dict) else index >= len(node)):
            return DASH  # a stage, a setting or a start that other variants have
        node = node[index]
    return _text(node)


def _text(value: Any) -> str:
    if isinstance(value, dict):  # a subset of a mixture
        minimum = value["minimum_tokens"]
        documents = f"documents ≥ {minimum:,} tokens" if minimum else "all documents"
        return f"{value['share']:.0%} of {documents}"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("_", " ")


def table2(study: Study) -> Table:
    """Return the table of modifications: one line per changed field, from the parent's value to the variant's."""
    variants = {row.name: row.variant for row in study.rows if row.variant is not None}
    facts = pd.DataFrame([change for variant in variants.values() for change in _changes(variant, study)])
    is_first = facts.variant != facts.variant.shift()
    shown = pd.DataFrame(
        {
            "Variant": facts.variant.where(facts.kept == "yes", "(" + facts.variant + ")").where(is_first, ""),
            "Parent": facts.parent.where(is_first, ""),
            "Row of Table 2": facts.row,
            "Field": facts.field,
            "Paper scale": list(map(_arrow, facts.paper_before, facts.paper_after)),
        }
    )
    if study.scale not in UNSCALED:
        shown[f"Scale {study.scale}"] = list(map(_arrow, facts.scale_before, facts.scale_after))
    own = study.ladder
    lines = [f"Variants in parentheses are {own.not_kept}: nothing continues them. {own.root.name} is the baseline."]
    if facts.variant.str.contains("@").any():
        lines.append(f"Those with an @ are another reading of {own.published_as} or its code.")
    return Table(
        title=f"Table 2: the modifications ({study.where})",
        shown=shown,
        facts=facts,
        alignment="l" * len(shown.columns),
        notes=tuple(lines),
        rules=frozenset(facts.index[is_first][1:]),
    )


def _arrow(before: str, after: str) -> str:
    return f"{after} (unchanged)" if before == after else f"{before} → {after}"


def table3(study: Study) -> Table:
    """Return the paper's rows, the ladder and external models: scores in points, ± standard deviation over seeds."""
    paper = published.table3(study.ladder)
    rules = {len(paper), len(paper) + len(study.rows)} if study.external else {len(paper)}
    title = f"Table 3: GLUE development scores ({study.where})"
    return _score_table(title, study, paper, study.all_rows, rules, remarks(study, short=True))


def scores(study: Study) -> Table | None:
    """Return the table of all rows with records, also those of designs, budgets and rates, without the columns in which
    none has a value; None without rows."""
    rows = study.recorded_rows
    if not rows:
        return None
    lines = ["± is one standard deviation (sd) over seeds."]
    if any("‡" in cell.marks for row in rows for cell in row.glue.values() if cell.score is not None):
        lines.append("‡ started from pre-training instead of MNLI.")
    title = "GLUE development scores and held-out losses"
    table = _score_table(title, study, (), rows, set(), [*lines, *searches_noted(rows)])
    empty = [name for name in table.header if table.shown[name].isin(("", DASH)).all()]
    lines = [f"No row has: {', '.join(empty)}."] if empty else []
    shown = table.shown.drop(columns=["Source", *empty])
    alignment = "l" + "r" * (len(shown.columns) - 1)
    return replace(table, shown=shown, alignment=alignment, notes=(*table.notes, *lines))


def _score_table(
    title: str,
    study: Study,
    paper: Sequence[published.PublishedScores],
    ours: Sequence[ScoreRow],
    rules: set[int],
    more_notes: Sequence[str],
) -> Table:
    corpora = sorted(set[str]().union(*(row.losses for row in ours)))
    is_complete = all(row.average is not None for row in study.rows if row.scored_tasks)
    shared = () if is_complete else study.shared_tasks
    texts = [*(_published_cells(study.ladder, row) for row in paper), *(_cells(row, shared, corpora) for row in ours)]
    values = [*(_published_facts(study.ladder, row) for row in paper), *(_facts(row, shared, corpora) for row in ours)]
    return Table(
        title=title,
        shown=pd.DataFrame(texts, columns=list(texts[-1]), dtype=object).fillna(""),
        facts=pd.DataFrame(values, columns=list(values[-1]), dtype=object),
        alignment="ll" + "r" * (len(texts[-1]) - 2),
        notes=(*_legend(study, ours, shared, corpora), *more_notes),
        rules=frozenset(rules),
    )


def _published_cells(ladder: Ladder, row: published.PublishedScores) -> dict[str, str]:
    scores = {task_title(task): number(score) for task, score in row.scores.items()}
    average = row.average if len(scores) == len(TASKS) else None
    return {"Source": ladder.published_source, "Model": row.name, **scores, "Average": number(average)}


def _published_facts(ladder: Ladder, row: published.PublishedScores) -> dict[str, str]:
    scores = {task: f"{score:.1f}" for task, score in row.scores.items()}
    return {
        "source": ladder.published_source,
        "model": row.name,
        **scores,
        "average": f"{row.average:.1f}" if len(scores) == len(TASKS) else "",
        "reference": row.source,
    }


def _cells(row: ScoreRow, shared: tuple[str, ...], corpora: Sequence[str]) -> dict[str, str]:
    averages = {
        "Average": print_estimate(row.average),
        "Nested": print_estimate(row.nested),
        "Seeds": str(len(row.average.by_seeds)) if row.average else DASH,
    }
    return {
        "Source": THIS_STUDY,
        "Model": row.label,
        **{
            task_title(task): print_estimate(own.score) + (own.marks if own.score else "")
            for task, own in row.glue.items()
        },
        **(averages if row.glue else {}),
        **({f"Mean of {len(shared)} shared": print_estimate(row.mean_over(shared))} if shared else {}),
        **{f"Loss ({corpus})": print_estimate(row.losses.get(corpus), 3) for corpus in corpora},
    }


def _legend(study: Study, ours: Sequence[ScoreRow], shared: tuple[str, ...], corpora: Sequence[str]) -> list[str]:
    tasks = study.ladder.glue_tasks
    all_tasks = "all eight tasks" if len(tasks) == len(TASKS) else ", ".join(map(task_title, tasks))
    lines = [f"Rows of {study.ladder.published_as} are as printed there; rows of this study come from records alone."]
    if tasks:
        lines[0] += f" Scores are in points; the average is the flat mean of {all_tasks}, {DASH} where one is missing."
        lines.append(
            "Seeds: n, the repetitions behind the average. Nested: the average if each point is chosen on one half of "
            "the development examples and scored on the other, so that it does not gain from the choice."
        )
    if study.external:
        lines.append(
            "Rows below the last rule are models that were pre-trained elsewhere, under this study's protocol and grid."
        )
    if any(row.is_of_incomplete_grid for row in ours):
        lines.append(INCOMPLETE)
    if shared:
        titles = ", ".join(map(task_title, shared))
        lines.append(f"Mean of {len(shared)} shared: over the tasks that all scored rows have ({titles}); no average.")
    if corpora:
        lines.append("Loss: held-out MLM loss in nats per token; not comparable between tokenizers or corpora.")
    return lines


def _facts(row: ScoreRow, shared: tuple[str, ...], corpora: Sequence[str]) -> dict[str, Any]:
    """Return every number, with the chosen points, the spread and the ids of its records."""
    average, shared_mean, cells = row.average, row.mean_over(shared), row.glue.items()
    return {
        "source": THIS_STUDY,
        "model": row.label,
        "variant": row.variant.name if row.variant else "",
        "stage": row.stage,
        "context": row.context,
        **{task: cell.score and cell.score.mean for task, cell in cells},
        "average": average and average.mean,
        "average_sd": average and average.spread,
        "nested": row.nested and row.nested.mean,
        "nested_sd": row.nested and row.nested.spread,
        "seeds": " ".join(map(str, average.by_seeds)) if average else "",
        "shared_mean": shared_mean and shared_mean.mean,
        "shared_tasks": " ".join(shared),
        **{f"{task}_sd": cell.score and cell.score.spread for task, cell in cells},
        **{f"{task}_point": point_name(cell.point) if cell.point else "" for task, cell in cells},
        **{f"heldout_loss_{corpus}": row.losses[corpus].mean if corpus in row.losses else None for corpus in corpora},
        "reference": row.source,
        **{f"{task}_records": " ".join(row.trial_ids([task])) for task in row.glue},
        "loss_records": " ".join(row.run_ids),
    }


FACTS_OF_TABLE_5 = (
    *("source", "model", "task", "batch_size", "learning_rate", "weight_decay", "score", "seeds", "points"),
    *("whole_grid", "reference", "records"),
)


def table5(study: Study) -> Table | None:
    """Return the best grid point for each task, as batch/rate/decay; None if the ladder has none of GLUE's tasks."""
    if not study.ladder.glue_tasks:
        return None
    ladder, ours = study.ladder, [row for row in study.recorded_rows if row.scored_tasks]
    printed = [
        [ladder.published_source, model, *map(point_name, points.values())]
        for model, points in published.table5(ladder).items()
    ]
    source = next(iter(published.read(ladder, "table5").source), "")
    paper = [
        [ladder.published_source, model, task, *_axes_of(point), *[None] * 4, source, ""]
        for model, points in published.table5(ladder).items()
        for task, point in points.items()
    ]
    shown = [[THIS_STUDY, row.label, *(_print_point(cell) for cell in row.glue.values())] for row in ours]
    lines = [
        f"Points as batch size/learning rate/weight decay. {capitalized(ladder.published_as)}'s rows are as printed "
        "there, from its own grid.",
        "Ours is the point with the highest mean over seeds; of equal ones the first in the grid.",
    ]
    if study.scale not in UNSCALED:
        lines.append(
            f"Scale {study.scale} has rates and batch sizes of its own: its points say nothing about "
            f"{ladder.published_as}'s."
        )
    if any(row.is_of_incomplete_grid for row in ours):
        lines.append(INCOMPLETE)
    lines += searches_noted(ours)
    return Table(
        title=f"Table 5: optimal hyper-parameters ({study.where})",
        shown=frame_of([*printed, *shown], ("Source", "Model", *map(task_title, study.ladder.glue_tasks))),
        facts=frame_of([*paper, *(facts for row in ours for facts in _best_points(row))], FACTS_OF_TABLE_5),
        alignment="ll" + "r" * len(ladder.glue_tasks),
        notes=(*warnings(study), *lines),
        rules=frozenset({len(printed)} if ours else ()),
    )


def _print_point(cell: Cell) -> str:
    return DASH if cell.point is None else point_name(cell.point) + cell.choice_mark


def _best_points(row: ScoreRow) -> Iterator[list[Any]]:
    for task, cell in row.glue.items():
        if cell.point is not None and cell.score is not None:
            counts = cell.score.mean, len(cell.score.by_seeds), cell.recorded.point.nunique()
            about = "yes" if cell.is_best_of_whole_grid else "no", row.source, " ".join(row.trial_ids([task]))
            yield [THIS_STUDY, row.label, task, *_axes_of(cell.point), *counts, *about]


def _axes_of(point: Point) -> tuple[int, str, str]:
    return point.batch_size, f"{point.learning_rate:g}", f"{point.weight_decay:g}"


# Tasks that a ladder declares itself


NOTE_ON_OWN_TASKS = (
    "Mean of the metrics on the validation splits, ×100, at the best point of the grid, ± one standard deviation over "
    "seeds († best of an incomplete grid). The table of differences compares arms."
)


@dataclass(frozen=True)
class _OwnTask:
    """A task of a row."""

    ladder: Ladder
    task: str
    row: ScoreRow
    cell: Cell

    @property
    def metrics(self) -> str:
        about = self.ladder.own_tasks[self.task]
        return ", ".join(
            about.metric_on(metric, split) for split in about.validation_splits for metric in about.metrics
        )


COLUMNS_OF_OWN_TASKS: Sequence[Column[_OwnTask]] = (
    Column("Task", "task", lambda line: line.task),
    Column("Arm", "variant", lambda line: line.row.label),
    Column("Metrics", "metrics", lambda line: line.metrics),
    Column(
        "Score",
        "score sd",
        lambda line: None if line.cell.score is None else (line.cell.score.mean, line.cell.score.spread),
        lambda _, line: print_estimate(line.cell.score, 2) + line.cell.choice_mark,
        "r",
    ),
    Column("Seeds", "seeds", lambda line: len(line.cell.ids), side="r"),
    Column("Point", "point", lambda line: "" if line.cell.point is None else point_name(line.cell.point), side="r"),
    Column("", "starts_from", lambda line: line.ladder.tasks[line.task].starts_from or "pretraining"),
    Column("", "records", lambda line: " ".join(line.cell.ids.values())),
)


def own_tasks(study: Study) -> Table | None:
    """Return a table with a line for every task of every row; None without a score."""
    lines: list[_OwnTask] = []
    names: dict[frozenset[str], str] = {}  # an arm of a design may have the trials of a variant
    for task in study.ladder.own_tasks:
        for row in study.recorded_rows:
            cell = row.cells.get(task)
            if cell and cell.score and names.setdefault(frozenset(cell.ids.values()), row.name) == row.name:
                lines.append(_OwnTask(study.ladder, task, row, cell))
    if not lines:
        return None
    about = (*warnings(study), NOTE_ON_OWN_TASKS, *searches_noted(line.row for line in lines))
    return make_table(f"Own tasks ({study.where})", COLUMNS_OF_OWN_TASKS, lines, about, rule_key=lambda line: line.task)
