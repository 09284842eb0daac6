"""Tables 2, 3 and 5: modifications, GLUE development scores and best grid points, next to the paper's."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

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
from reports.tables import DASH, PAPER, THIS_STUDY, Table, frame_of, number, print_estimate

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
        lines.append("Those with an @ are another reading of the paper or its code.")
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
    """Return the paper's rows, the ladder, other variants with records and external models: scores in points, ±
    standard deviation over seeds."""
    paper, ours = published.table3(study.ladder), study.table_rows
    corpora = sorted(set[str]().union(*(row.losses for row in ours)))
    texts = [*map(_published_cells, paper), *(_cells(row, corpora) for row in ours)]
    values = [*map(_published_facts, paper), *(_facts(row, corpora) for row in ours)]
    return Table(
        title=f"Table 3: GLUE development scores ({study.where})",
        shown=pd.DataFrame(texts, columns=list(texts[-1]), dtype=object).fillna(""),
        facts=pd.DataFrame(values, columns=list(values[-1]), dtype=object),
        alignment="ll" + "r" * (len(texts[-1]) - 2),
        notes=(*_legend(study, ours, corpora), *remarks(study)),
        rules=frozenset({len(paper), len(paper) + len(ours) - len(study.external)} - {len(texts)}),
    )


def _published_cells(row: published.PublishedScores) -> dict[str, str]:
    scores = {task_title(task): number(score) for task, score in row.scores.items()}
    average = row.average if len(scores) == len(TASKS) else None
    return {"Source": PAPER, "Model": row.name, **scores, "Average": number(average)}


def _published_facts(row: published.PublishedScores) -> dict[str, str]:
    scores = {task: f"{score:.1f}" for task, score in row.scores.items()}
    return {
        "source": PAPER,
        "model": row.name,
        **scores,
        "average": f"{row.average:.1f}" if len(scores) == len(TASKS) else "",
        "reference": row.source,
    }


def _cells(row: ScoreRow, corpora: Sequence[str]) -> dict[str, str]:
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
            for task, own in row.cells.items()
        },
        **(averages if row.glue else {}),
        **{f"Loss ({corpus})": print_estimate(row.losses.get(corpus), 3) for corpus in corpora},
    }


def _legend(study: Study, ours: Sequence[ScoreRow], corpora: Sequence[str]) -> list[str]:
    tasks = study.ladder.glue_tasks
    all_tasks = "all eight tasks" if len(tasks) == len(TASKS) else ", ".join(map(task_title, tasks))
    lines = ["Rows of the paper are as printed there; rows of this study come from records alone."]
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
    if corpora:
        lines.append("Loss: held-out MLM loss in nats per token; not comparable between tokenizers or corpora.")
    return lines


def _facts(row: ScoreRow, corpora: Sequence[str]) -> dict[str, Any]:
    """Return every number, with the chosen points, the spread and the ids of its records, also of own tasks."""
    average, cells = row.average, row.cells.items()
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
        **{f"{task}_sd": cell.score and cell.score.spread for task, cell in cells},
        **{f"{task}_point": point_name(cell.point) if cell.point else "" for task, cell in cells},
        **{f"heldout_loss_{corpus}": row.losses[corpus].mean if corpus in row.losses else None for corpus in corpora},
        "reference": row.source,
        **{f"{task}_records": " ".join(row.trial_ids([task])) for task in row.cells},
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
    ladder, ours = study.ladder, [row for row in study.table_rows if row.scored_tasks]
    printed = [[PAPER, model, *map(point_name, points.values())] for model, points in published.table5(ladder).items()]
    source = next(iter(published.read(ladder, "table5").source), "")
    paper = [
        [PAPER, model, task, *_axes_of(point), *[None] * 4, source, ""]
        for model, points in published.table5(ladder).items()
        for task, point in points.items()
    ]
    shown = [[THIS_STUDY, row.label, *(_print_point(cell) for cell in row.glue.values())] for row in ours]
    lines = [
        "Points as batch size/learning rate/weight decay. The paper's rows are as printed there, from its own grid.",
        "Ours is the point with the highest mean over seeds; of equal ones the first in the grid.",
    ]
    if study.scale not in UNSCALED:
        lines.append(
            f"Scale {study.scale} has rates and batch sizes of its own: its points say nothing about the paper's."
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
