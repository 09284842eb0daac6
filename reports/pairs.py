"""Two rows → differences over paired seeds: of GLUE scores, and of held-out losses where these can be compared."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ablations.scales import scaled
from ablations.variant import Recipe, Variant
from neobert.glue.tasks import TASKS
from reports.cells import Estimate, Seeds
from reports.remarks import why_no_average
from reports.scores import Group, Row

BITS = "bits per byte"

MARGINS: Mapping[str, tuple[float, str]] = {
    "GLUE": (0.5, "points: the smallest change between neighbours in the paper's Figure 1 (M2 → M4)"),
    "loss": (0.01, "nats: one percent of perplexity"),
    BITS: (0.003, "bits: the 0.01 nats of a token of 4.5 bytes"),
}


@dataclass(frozen=True)
class Pair:
    """A variant against what it is compared with, in one `quantity` (a key of `MARGINS`), by seed of pre-training.

    `corpus` is what a loss was measured on; empty for GLUE, and where no corpus was measured on both sides. `context`
    is the common one, in tokens, of bits per byte.
    `differences` are empty where `reason` says why there is nothing to compare. `notes` name seeds that only one side
    has, `seeds` are those that both have, `ids` are the records behind the numbers.
    """

    quantity: str
    differences: Mapping[int, float]
    seeds: tuple[Seeds, ...]
    reason: str
    notes: tuple[str, ...]
    ids: tuple[str, ...]
    corpus: str = ""
    context: int | None = None

    @property
    def measured(self) -> str:
        """The quantity, with the corpus of a loss."""
        return measured_name(self.quantity, self.corpus, self.context)


def measured_name(quantity: str, corpus: str, context: int | None = None) -> str:
    """GLUE, or loss with the corpus that it was measured on, and with the context if that is none of their own."""
    place = f" on {corpus}" if corpus else ""
    return f"{quantity}{place}" + (f", {context} tokens" if context else "")


def glue_pair(variant: Row, base: Row, tasks: Sequence[str], group: Group) -> Pair:
    """Mean scores over the tasks, in points. A side that lacks a task has no mean: nothing is filled in."""
    scores = [row.mean_over(tasks) for row in (variant, base)]
    lacking = [_why_no_mean(row, tasks, group) for row, score in zip((variant, base), scores, strict=True) if not score]
    if scores[0] is None or scores[1] is None:
        return Pair("GLUE", {}, (), "; ".join(lacking), (), ())
    pair = _paired("GLUE", variant, base, scores[0], scores[1])
    ids = {row.cells[task].ids[seeds] for row in (variant, base) for task in tasks for seeds in pair.seeds}
    return replace(pair, ids=tuple(sorted(ids)))


def loss_pairs(variant: Row, base: Row, group: Group) -> tuple[Pair, ...]:
    """Held-out losses in nats a token on every corpus that both were measured on, the variant's own first; only of
    models that read it in the same tokens and lengths. Where nothing can be compared, one pair that says why, and
    behind it the losses in bits per byte where both were measured in a common context."""
    first, second = (recipe_at(row.variant, group) for row in (variant, base))
    shared = shared_corpora([variant, base])
    reason = why_losses_differ(first, second) or ("" if shared else _why_no_shared_loss(variant, base, first, second))
    if reason:
        is_same = first.pretraining == second.pretraining
        return Pair("loss", {}, (), reason, (), ()), *(() if is_same else _bits_pairs(variant, base))
    return tuple(_loss_pair(variant, base, corpus) for corpus in shared)


def shared_corpora(rows: Sequence[Row]) -> list[str]:
    """The corpora that all rows were measured on: the one that the first was trained on, then the others by name."""
    shared = set.intersection(*(set(row.losses) for row in rows)) if rows else set()
    return sorted(shared, key=lambda corpus: (corpus != rows[0].variant.recipe.pretraining.data.corpus, corpus))


def _loss_pair(variant: Row, base: Row, corpus: str) -> Pair:
    pair = _paired("loss", variant, base, variant.losses[corpus], base.losses[corpus])
    return _on_same_texts(replace(pair, corpus=corpus), variant, base)


def _bits_pairs(variant: Row, base: Row) -> Iterator[Pair]:
    """Bits per byte on every corpus in the longest context that both were measured in, the variant's own first."""
    first, second = variant.bits_per_byte, base.bits_per_byte
    longest = dict(sorted(first.keys() & second.keys()))
    own = variant.variant.recipe.pretraining.data.corpus
    for corpus in sorted(longest, key=lambda corpus: (corpus != own, corpus)):
        place = corpus, longest[corpus]
        pair = _paired(BITS, variant, base, first[place], second[place])
        yield _on_same_texts(replace(pair, corpus=corpus, context=longest[corpus]), variant, base)


def _on_same_texts(pair: Pair, variant: Row, base: Row) -> Pair:
    """The pair with the ids of its runs, and without seeds that were measured on other held-out documents."""
    runs = [run for row in (variant, base) for run in row.runs if run.seed in pair.differences]
    texts: dict[int, set[str]] = defaultdict(set)
    for run in runs:
        # Runs from before there were names of texts had all the same rule.
        texts[run.seed].add(next((score.texts for score in run.heldout if score.corpus == pair.corpus), ""))
    odd = {seed for seed, names in texts.items() if len(names) > 1}
    if not odd:
        return replace(pair, ids=tuple(sorted(run.id for run in runs)))
    differences = {seed: value for seed, value in pair.differences.items() if seed not in odd}
    why = f"seed {', '.join(map(str, sorted(odd)))} was measured on other held-out texts of {pair.corpus} on each side"
    return replace(
        pair,
        differences=differences,
        seeds=tuple(each for each in pair.seeds if each.pretraining not in odd),
        reason="" if differences else why,
        notes=(*pair.notes, f"{why} and is left out"),
        ids=tuple(sorted(run.id for run in runs if run.seed not in odd)),
    )


def _why_no_shared_loss(variant: Row, base: Row, first: Recipe, second: Recipe) -> str:
    missing = [row.variant.name for row in (variant, base) if not row.losses]
    if missing:
        return f"{' and '.join(missing)}: no record"
    return f"losses on other text: {first.pretraining.data.corpus} and {second.pretraining.data.corpus}"


def recipe_at(variant: Variant, group: Group) -> Recipe:
    return scaled(variant.recipe, group.scale, group.vocabulary)


def why_losses_differ(first: Recipe, second: Recipe) -> str:
    """Why two losses on one text are of different things; empty where they are of the same."""
    ours, theirs = first.pretraining, second.pretraining
    if ours == theirs:
        return "both have the same weights"
    if (ours.data.tokenizer, ours.model.vocabulary_size) != (theirs.data.tokenizer, theirs.model.vocabulary_size):
        return f"losses on other tokens: {ours.data.tokenizer} and {theirs.data.tokenizer}"
    contexts = [pretraining.stages[-1].context for pretraining in (ours, theirs)]
    return "" if contexts[0] == contexts[1] else f"losses in other contexts: {contexts[0]} and {contexts[1]} tokens"


def _why_no_mean(row: Row, tasks: Sequence[str], group: Group) -> str:
    absent = [TASKS[task].title for task in tasks if row.cells[task].score is None]
    if row.is_started and absent:
        return f"{row.variant.name} has no score on {', '.join(absent)}"
    return f"{row.variant.name}: {why_no_average(row, group) or 'no seed has all tasks'}"


def _paired(quantity: str, variant: Row, base: Row, ours: Estimate, theirs: Estimate) -> Pair:
    common = sorted(ours.by_seeds.keys() & theirs.by_seeds.keys())
    notes = _left_out(variant, base, set(ours.by_seeds), set(theirs.by_seeds))
    differences = by_pretraining_seed({seeds: ours.by_seeds[seeds] - theirs.by_seeds[seeds] for seeds in common})
    if len(common) > len(differences):
        notes.append("fine-tuning seeds of one pre-training seed are averaged and count as one seed")
    reason = "" if differences else f"{variant.variant.name} and {base.variant.name} have no seed in common"
    return Pair(quantity, differences, tuple(common), reason, tuple(notes), ())


def by_pretraining_seed(values: Mapping[Seeds, float]) -> dict[int, float]:
    """The mean over the fine-tuning seeds of each pre-training: they tell nothing about other pre-trainings."""
    grouped: dict[int, list[float]] = defaultdict(list)
    for seeds, value in sorted(values.items()):
        grouped[seeds.pretraining].append(value)
    return {seed: statistics.fmean(own) for seed, own in grouped.items()}


def _left_out(variant: Row, base: Row, ours: set[Seeds], theirs: set[Seeds]) -> list[str]:
    alone = ((variant, ours - theirs), (base, theirs - ours))
    return [
        f"seed {', '.join(map(str, sorted(seeds)))} of {row.variant.name} has no partner and is left out"
        for row, seeds in alone
        if seeds
    ]
