"""Table 3: GLUE development scores of this study beside the paper's rows, each row saying which it is."""

from neobert.glue.tasks import TASKS
from reports import published
from reports.baselines import BaselineRow
from reports.cells import Cell, Estimate, point_name
from reports.formats import DASH, Table, csv_text, number, raw, with_deviation
from reports.remarks import remarks, row_label
from reports.scores import Group, Row

PAPER = "paper"
THIS_STUDY = "this study"


def table3(group: Group) -> Table:
    """The printed table: scores in points, ± standard deviation where there are several seeds."""
    corpora, shared = _corpora(group), _shared_if_needed(group)
    titles = [task.title for task in TASKS.values()]
    header = ["Source", "Model", *titles, "Average", "Seeds"]
    header += [f"Mean of {len(shared)} shared"] if shared else []
    header += [f"Loss ({corpus})" for corpus in corpora]
    paper = [_paper_cells(row, len(header)) for row in published.table3()]
    ours = [_our_cells(row, shared, corpora) for row in group.rows]
    others = [_our_cells(row, shared, corpora) for row in group.baselines]
    return Table(
        title=f"Table 3: GLUE development scores (scale {group.scale}, data {group.data})",
        header=tuple(header),
        alignment="ll" + "r" * (len(header) - 2),
        rows=tuple(paper + ours + others),
        notes=(*_legend(group, shared, corpora), *remarks(group, short=True)),
        rules=frozenset({len(paper), len(paper) + len(ours)} if others else {len(paper)}),
    )


def table3_csv(group: Group) -> str:
    """Every number of the table unrounded, with the chosen points, the spread and the ids of the records behind it."""
    corpora, shared = _corpora(group), _shared_if_needed(group)
    header = ["source", "model", "variant", "stage", "context", *TASKS, "average", "average_sd", "seeds", "shared_mean"]
    header += ["shared_tasks", *(f"{task}_sd" for task in TASKS), *(f"{task}_point" for task in TASKS)]
    header += [f"heldout_loss_{corpus}" for corpus in corpora] + ["reference"]
    header += [*(f"{task}_records" for task in TASKS), "loss_records"]
    rows = [_paper_csv(row, header) for row in published.table3()]
    rows += [_our_csv(row, shared, corpora) for row in group.all_rows]
    return csv_text(header, rows)


def _corpora(group: Group) -> list[str]:
    return sorted({corpus for row in group.rows for corpus in row.losses})


def _shared_if_needed(group: Group) -> tuple[str, ...]:
    """The shared tasks where some row with scores lacks the average; empty where every such row has it."""
    complete = all(row.average is not None for row in group.rows if row.scored_tasks)
    return () if complete else group.shared_tasks


def _paper_cells(row: published.PublishedRow, columns: int) -> tuple[str, ...]:
    name = f"{row.model} ({row.size})"
    cells = [PAPER, name, *(number(row.scores[task]) for task in TASKS), number(row.average)]
    return tuple(cells + [""] * (columns - len(cells)))


def _our_cells(row: Row | BaselineRow, shared: tuple[str, ...], corpora: list[str]) -> tuple[str, ...]:
    average = row.average
    cells = [THIS_STUDY, row_label(row), *(_score(row.cells[task]) for task in TASKS), _estimate(average)]
    cells.append(DASH if average is None else str(len(average.by_seeds)))
    cells += [_estimate(row.mean_over(shared))] if shared else []
    return tuple(cells + [_estimate(row.losses.get(corpus), 3) for corpus in corpora])


def _estimate(estimate: Estimate | None, digits: int = 1) -> str:
    return with_deviation(estimate.mean, estimate.spread, digits) if estimate else DASH


def _score(cell: Cell) -> str:
    if cell.score is None:
        return DASH
    marks = ("" if cell.is_best_of_whole_grid else "†") + ("‡" if cell.fallback else "")
    return f"{_estimate(cell.score)}{marks}"


def _legend(group: Group, shared: tuple[str, ...], corpora: list[str]) -> list[str]:
    lines = [
        "Rows of the paper are as printed there; rows of this study come from records alone. "
        f"Scores are in points; the average is the flat mean of all eight tasks, {DASH} where one is missing."
    ]
    if group.baselines:
        lines.append(
            "Rows below the last rule are models that were pre-trained elsewhere, under this study's protocol and grid."
        )
    marked = [cell for row in group.all_rows for cell in row.cells.values() if cell.score is not None]
    if any(not cell.is_best_of_whole_grid for cell in marked):
        lines.append("† best of an incomplete grid: some points failed or are not recorded yet.")
    if shared:
        titles = ", ".join(TASKS[task].title for task in shared)
        lines.append(f"Mean of {len(shared)} shared: over the tasks that all scored rows have ({titles}); no average.")
    if corpora:
        lines.append("Loss: held-out MLM loss in nats a token; not comparable between tokenizers or corpora.")
    return lines


def _paper_csv(row: published.PublishedRow, header: list[str]) -> list[str]:
    values = {task: f"{score:.1f}" for task, score in row.scores.items()}
    values |= {"source": PAPER, "model": f"{row.model} ({row.size})", "average": f"{row.average:.1f}"}
    values["reference"] = row.source
    return [values.get(column, "") for column in header]


def _our_csv(row: Row | BaselineRow, shared: tuple[str, ...], corpora: list[str]) -> list[str]:
    average, shared_mean = row.average, row.mean_over(shared)
    scores = [row.cells[task].score for task in TASKS]
    cells = [THIS_STUDY, row_label(row)]
    cells += ["", "", ""] if isinstance(row, BaselineRow) else [row.variant.name, str(row.stage), str(row.context)]
    cells += [raw(score.mean if score else None) for score in scores]
    cells += [raw(average.mean), raw(average.spread)] if average else ["", ""]
    cells += [" ".join(map(str, average.by_seeds)) if average else "", raw(shared_mean.mean if shared_mean else None)]
    cells += [" ".join(shared), *(raw(score.spread if score else None) for score in scores)]
    cells += [_point(row.cells[task]) for task in TASKS]
    losses = [row.losses.get(corpus) for corpus in corpora]
    reference = row.id if isinstance(row, BaselineRow) else row.variant.source
    ids = [" ".join(sorted(row.cells[task].ids.values())) for task in TASKS] + [" ".join(row.run_ids)]
    return [*cells, *(raw(loss.mean if loss else None) for loss in losses), reference, *ids]


def _point(cell: Cell) -> str:
    return "" if cell.point is None else point_name(cell.point)
