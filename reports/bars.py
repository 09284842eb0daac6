"""The numbers behind Figure 1: one bar a variant, its relative change to the parent, the paper's value apart."""

from dataclasses import dataclass

from ablations.variant import Variant
from neobert.glue.tasks import TASKS
from reports import published
from reports.cells import Estimate
from reports.formats import csv_text, raw
from reports.intervals import trial_ids
from reports.remarks import row_change, why_no_average
from reports.scores import Group, Row


@dataclass(frozen=True)
class Bar:
    """One variant at its last checkpoint, in points. `label` says what it changes at the scale of the group, `paper`
    is what the paper prints, for the average only."""

    variant: Variant
    label: str
    row: Row
    score: Estimate | None
    delta_percent: float | None
    paper: published.PublishedBar | None

    @property
    def loss(self) -> tuple[str, Estimate] | None:
        """The held-out MLM loss on the corpus that the variant was trained on, and that corpus."""
        corpora = sorted({run.weights.data.corpus for run in self.row.runs} & set(self.row.losses))
        return (corpora[0], self.row.losses[corpora[0]]) if corpora else None


@dataclass(frozen=True)
class Bars:
    """All bars of a figure over the same tasks: the eight, or the shared ones where no variant has eight."""

    group: Group
    tasks: tuple[str, ...]
    bars: tuple[Bar, ...]

    @property
    def is_average(self) -> bool:
        """Whether the score is GLUE's average over all eight tasks."""
        return self.tasks == tuple(TASKS)

    @property
    def quantity(self) -> str:
        """What the score is the mean of."""
        return "average of 8 tasks" if self.is_average else f"mean of shared tasks: {' '.join(self.tasks)}"

    @property
    def missing(self) -> list[str]:
        """Variants without a bar."""
        return [bar.variant.name for bar in self.bars if bar.score is None]

    @property
    def incomplete(self) -> list[str]:
        """Variants whose bar is the best of an incomplete grid."""
        return [bar.variant.name for bar in self.bars if bar.score and not bar.row.is_best_of_whole_grid]


def bars_of(group: Group) -> Bars:
    """The bars in the order of the ladder, alternatives behind it."""
    rows = group.last_rows()
    eight = tuple(TASKS)
    tasks = eight if not group.shared_tasks or any(row.average for row in rows.values()) else group.shared_tasks
    scores = {name: row.mean_over(tasks) for name, row in rows.items()}
    paper = published.figure1() if tasks == eight else {}
    bars = [
        Bar(
            variant=row.variant,
            label=row_change(row, group),
            row=row,
            score=scores[name],
            delta_percent=_delta_percent(row.variant, scores),
            paper=paper.get(name),
        )
        for name, row in rows.items()
    ]
    return Bars(group, tasks, tuple(bars))


def _delta_percent(variant: Variant, scores: dict[str, Estimate | None]) -> float | None:
    """The relative change to the parent in the tree, in percent, as the paper prints it."""
    score = scores[variant.name]
    parent = scores.get(variant.parent.name) if variant.parent else None
    if score is None or parent is None or parent.mean <= 0:
        return None
    return 100 * (score.mean / parent.mean - 1)


def figure1_csv(bars: Bars) -> str:
    """What the figure shows, unrounded, with the ids of the records behind it; a variant without a bar says why."""
    corpora = sorted({corpus for bar in bars.bars for corpus in bar.row.losses})
    header = ["variant", "title", "parent", "kept", "quantity", "score", "sd", "seeds", "scores_by_seed"]
    header += ["delta_percent", "whole_grid", "paper_score", "paper_printed_delta_percent"]
    places = sorted({place for bar in bars.bars for place in bar.row.bits_per_byte})
    header += [f"heldout_loss_{corpus}" for corpus in corpora]
    header += [f"heldout_bits_per_byte_{corpus}_{context}_tokens" for corpus, context in places]
    header += ["remark", "records", "loss_records"]
    return csv_text(header, [_csv_row(bar, bars, corpora, places) for bar in bars.bars])


def _csv_row(bar: Bar, bars: Bars, corpora: list[str], places: list[tuple[str, int]]) -> list[str]:
    variant, score, paper = bar.variant, bar.score, bar.paper
    cells = [variant.name, bar.label, variant.parent.name if variant.parent else ""]
    cells += ["yes" if variant.kept else "no", bars.quantity]
    cells += [raw(score.mean), raw(score.spread)] if score else ["", ""]
    cells.append(str(len(score.by_seeds)) if score else "0")
    cells.append(" ".join(f"{seeds}:{value:.6f}" for seeds, value in score.by_seeds.items()) if score else "")
    cells += [raw(bar.delta_percent), "yes" if score and bar.row.is_best_of_whole_grid else "no"]
    cells.append("" if paper is None else f"{paper.average:.1f}")
    printed = None if paper is None else paper.printed_delta_percent
    cells.append("" if printed is None else f"{printed:+.1f}")
    losses = [bar.row.losses.get(corpus) for corpus in corpora]
    losses += [bar.row.bits_per_byte.get(place) for place in places]
    return [
        *cells,
        *(raw(loss.mean if loss else None) for loss in losses),
        "" if score else why_no_average(bar.row, bars.group),
        " ".join(trial_ids(bar.row, bars.tasks)),
        " ".join(bar.row.run_ids),
    ]
