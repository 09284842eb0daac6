"""The study in a few numbers, and which files hold the rest."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ablations.ladder import ladder
from reports.comparison_table import agreement_sentences
from reports.findings import Findings
from reports.page.costs import Costs
from reports.page.numbers import Number
from reports.rank_agreement import rank_agreements
from reports.remarks import remarks

TITLES = {
    "figure1": "Figure 1, the ladder",
    "figure2": "Figure 2, pseudo-perplexity",
    "figure3": "Figure 3, throughput",
    "figure4": "Figure 4, zero-shot embeddings",
    "figure5": "Embeddings by category",
    "table2": "Table 2, modifications",
    "table3": "Table 3, GLUE",
    "table4": "Table 4, embeddings",
    "table5": "Table 5, best points",
    "table9": "Table 9, throughput",
    "deltas": "Deltas",
    "effects": "Effects",
    "comparison": "Beside the paper",
    "remarks": "Remarks",
}


@dataclass(frozen=True)
class Fact:
    """One number of the head of a section, with its name."""

    name: str
    number: Number


@dataclass(frozen=True)
class Files:
    """A figure or table and the files that hold it: (suffix, link)."""

    title: str
    links: tuple[tuple[str, str], ...]


def facts(findings: Findings, costs: Costs) -> tuple[Fact, ...]:
    """What a reader asks first."""
    group, spent = findings.group, costs.total
    scored = [bar for bar in findings.bars.bars if bar.score and bar.variant.name in ladder()]
    rows = {**group.design_rows, **group.last_rows()}
    seeds = sorted(count for count in {len({run.seed for run in row.runs}) for row in rows.values()} if count)
    pretrained = sum(row.has_records for row in rows.values())
    return (
        Fact("variants with scores", Number(f"{len(scored)} of {len(ladder())}"))
        if scored
        else Fact("variants, all without scores", Number(str(pretrained))),
        Fact("seeds a variant", Number("–".join(dict.fromkeys(map(str, seeds[:1] + seeds[-1:]))) or "0")),
        Fact("stages of pre-training", spent.runs),
        Fact("GLUE trials", spent.trials),
        Fact("tokens read", spent.real_tokens),
        Fact("operations", spent.flops),
        Fact("process-hours", spent.hours),
        Fact("GPU-hours", spent.gpu_hours),
    )


def order_in_words(findings: Findings) -> tuple[str, ...]:
    """How far the order of the ladder is the paper's, a sentence a readout; none for too few variants."""
    agreements = rank_agreements(findings.group, findings.bars.tasks)
    return tuple(agreement_sentences(agreements)) if agreements else ()


def remarks_of(findings: Findings) -> tuple[str, ...]:
    """What must be known beside the numbers; long lists are cut, remarks.md has them in full."""
    return remarks(findings.group, short=True)


def listed_files(folder: str, names: Sequence[str]) -> tuple[Files, ...]:
    """Links to the other files, grouped by what they hold."""
    by_stem: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name in names:
        stem, _, suffix = name.partition(".")
        by_stem[stem].append((suffix, f"{folder}/{name}"))
    order = [*TITLES, *sorted(by_stem.keys() - TITLES)]
    return tuple(Files(TITLES.get(stem, stem), tuple(by_stem[stem])) for stem in order if stem in by_stem)
