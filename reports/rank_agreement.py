"""Does the ladder come out in the paper's order? Kendall's τ, and how many decisions would have been the same."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from neobert.identity import identity
from reports import published
from reports.pairs import by_pretraining_seed, recipe_at
from reports.scores import Group

DRAWS = 1000
LEAST_VARIANTS = 3
LEAST_SEEDS = 2


@dataclass(frozen=True)
class RankAgreement:
    """Our order of variants in one `readout` beside the paper's order. `interval` is the 95 % interval of τ by
    `method`; `pairs` and `decisions` are (alike, all): pairs ordered as in the paper, and steps that help or hurt as in
    the paper."""

    readout: str
    variants: tuple[str, ...]
    seeds: int
    tau: float
    interval: tuple[float, float]
    method: str
    pairs: tuple[float, int]
    decisions: tuple[int, int]

    @property
    def pairwise_accuracy(self) -> float:
        """The share of pairs that are ordered as in the paper; a tie of ours counts half."""
        return self.pairs[0] / self.pairs[1]


def rank_agreements(group: Group, tasks: Sequence[str]) -> tuple[RankAgreement, ...]:
    """In GLUE means over `tasks`, then in the held-out loss on each corpus; only where three variants or more have
    numbers that can be compared with each other."""
    corpora = sorted({corpus for row in group.last_rows().values() for corpus in row.losses})
    found = [rank_agreement(group, tasks), *(_loss_agreement(group, corpus) for corpus in corpora)]
    return tuple(each for each in found if each is not None)


def rank_agreement(group: Group, tasks: Sequence[str]) -> RankAgreement | None:
    """The agreement over the variants that have a mean over `tasks`; None where they are fewer than three."""
    means = {name: group.last_rows()[name].mean_over(tasks) for name in published.figure1()}
    scores = {name: by_pretraining_seed(mean.by_seeds) for name, mean in means.items() if mean is not None}
    return _agreement("GLUE", scores, group)


def _loss_agreement(group: Group, corpus: str) -> RankAgreement | None:
    """The same by held-out loss, a lower one for a better variant, over the most variants that read the corpus in the
    same tokens and lengths; of variants with the same weights the first."""
    rows = group.last_rows()
    alike: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    for name in published.figure1():
        pretraining = recipe_at(rows[name].variant, group).pretraining
        tokens = pretraining.data.tokenizer, pretraining.model.vocabulary_size, pretraining.stages[-1].context
        known = {run for other in alike[tokens] for run in rows[other].run_ids}
        if corpus in rows[name].losses and known.isdisjoint(rows[name].run_ids):
            alike[tokens].append(name)
    most = max(alike.values(), key=len, default=[])
    losses = {name: by_pretraining_seed(rows[name].losses[corpus].by_seeds) for name in most}
    scores = {name: {seed: -loss for seed, loss in by_seed.items()} for name, by_seed in losses.items()}
    return _agreement(f"held-out loss on {corpus}", scores, group)


def _agreement(readout: str, scores: Mapping[str, Mapping[int, float]], group: Group) -> RankAgreement | None:
    """The agreement of numbers of which the higher is the better, by variant and seed of pre-training."""
    if len(scores) < LEAST_VARIANTS:
        return None
    printed = {name: bar.average for name, bar in published.figure1().items()}
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in scores.values())))
    ours = {name: float(np.mean([by_seed[seed] for seed in seeds or by_seed])) for name, by_seed in scores.items()}
    paper = [printed[name] for name in scores]
    tau = kendall_tau(list(ours.values()), paper)
    if len(seeds) >= LEAST_SEEDS:
        ids = sorted(run.id for name in scores for run in group.last_rows()[name].runs)
        interval, method = _over_seeds(scores, seeds, paper, ids), f"bootstrap over {len(seeds)} seeds"
    else:
        interval, method = _asymptotic(tau, len(scores)), "asymptotic, one seed: noise between seeds is not in it"
    count = math.comb(len(scores), 2)
    return RankAgreement(
        readout=readout,
        variants=tuple(scores),
        seeds=max(1, len(seeds)),
        tau=tau,
        interval=interval,
        method=method,
        pairs=((tau + 1) / 2 * count, count),
        decisions=_decisions(ours, printed),
    )


def kendall_tau(ours: Sequence[float], paper: Sequence[float]) -> float:
    """Concordant less discordant pairs over all pairs; a tie counts as neither (τ-a). The paper's bars have no ties."""
    products = [np.sign(a - b) * np.sign(x - y) for (a, x), (b, y) in combinations(zip(ours, paper, strict=True), 2)]
    return float(np.mean(products))


def _over_seeds(
    scores: Mapping[str, Mapping[int, float]], seeds: Sequence[int], paper: Sequence[float], ids: Sequence[str]
) -> tuple[float, float]:
    """Percentiles of τ where seeds are drawn with replacement, the same ones for all variants."""
    random = np.random.default_rng(int(identity(ids), 16))
    values = np.array([[by_seed[seed] for seed in seeds] for by_seed in scores.values()])
    drawn = values[:, random.integers(0, len(seeds), (DRAWS, len(seeds)))].mean(axis=2)
    first, second = np.triu_indices(len(values), 1)
    order = np.sign(np.asarray(paper)[first] - np.asarray(paper)[second])
    taus = (np.sign(drawn[first] - drawn[second]) * order[:, None]).mean(axis=0)
    low, high = np.percentile(taus, (2.5, 97.5))
    return float(low), float(high)


def _asymptotic(tau: float, variants: int) -> tuple[float, float]:
    """τ ± 1.96 of its standard deviation without any association, cut to −1 … 1."""
    half = 1.96 * math.sqrt(2 * (2 * variants + 5) / (9 * variants * (variants - 1)))
    return max(-1.0, tau - half), min(1.0, tau + half)


def _decisions(ours: Mapping[str, float], printed: Mapping[str, float]) -> tuple[int, int]:
    """Steps from parent to child whose sign is the paper's."""
    parents = {name: bar.parent for name, bar in published.figure1().items()}
    steps = [(name, parents[name]) for name in ours if parents[name] in ours]
    alike = [
        (ours[name] - ours[parent]) * (printed[name] - printed[parent]) > 0
        for name, parent in steps
        if parent is not None
    ]
    return sum(alike), len(alike)
