"""Evidence: e-values whose mean is 1 without a gain, distributions like scipy's, and control of a family."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad
from scipy.special import stdtr

from neobert.referee.evidence import (
    PRIOR_SPREADS,
    boost,
    critical_t,
    e_bh,
    e_value,
    online_threshold,
    power,
    seeds_needed,
    share_of_level,
    student_cdf,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("degrees", [1, 2, 5, 8, 49, 51, 1000])
def test_the_distribution_of_t_is_scipys(degrees: float) -> None:
    t = np.linspace(-30, 30, 121)
    assert np.abs(student_cdf(t, np.array(degrees)) - stdtr(degrees, t)).max() < 1e-9


@pytest.mark.parametrize("variance", [2.0, 0.2])
@pytest.mark.parametrize("degrees", [1, 4, 8])
def test_the_mean_of_an_e_value_without_a_gain_is_one(degrees: float, variance: float) -> None:
    t = np.concatenate([-np.geomspace(1e6, 1e-3, 3000), np.geomspace(1e-3, 1e6, 6000)])
    evidence = e_value(t, degrees, variance)

    def mean(noise: Any) -> float:
        return float(np.trapezoid(evidence * noise.pdf(t), t))

    assert mean(stats.t(degrees)) == pytest.approx(1, abs=1e-3)
    assert mean(stats.t(50)) < 1, "a spread that is known better than assumed adds no evidence"
    assert mean(stats.t(degrees, loc=-0.5)) < 1, "nor does a loss"


def test_the_e_value_is_the_ratio_of_densities_of_t() -> None:
    """One component of the mixture, by integration over the noncentral t."""
    t, degrees, variance, scales = 3.1, 6, 2.0, np.array([0.5, 2.0, 8.0, 32.0, 128.0])

    def factor(scale: float) -> float:
        def density(gain: float) -> float:
            return float(stats.nct(degrees, gain / math.sqrt(variance)).pdf(t) * 2 * stats.norm(0, scale).pdf(gain))

        return float(quad(density, 1e-9, 30, limit=60, epsrel=1e-4)[0] / stats.t(degrees).pdf(t))

    assert float(e_value(t, degrees, variance)) == pytest.approx(np.mean([factor(s) for s in scales]), rel=1e-3)


@given(st.lists(st.floats(-3, 5), min_size=2, max_size=10).filter(lambda values: np.std(values) > 1e-3))
def test_both_sides_of_paired_differences_are_the_published_martingale(values: list[float]) -> None:
    """The t martingale with a normal mixture of Wang and Ramdas (arXiv 2310.03722), in the form that the package
    expectation states for its TtestGaussianMixtureMartingale: the mean, in standard deviations, has a normal prior with
    precision c². Ours is one side of it, averaged over five priors."""
    own, n = np.array(values), len(values)
    t = own.mean() / own.std(ddof=1) * math.sqrt(n)
    s, v, c = own.sum(), (own**2).sum(), 1 / np.array(PRIOR_SPREADS)
    published = np.sqrt(c**2 / (n + c**2)) * ((n + c**2) * v / ((n + c**2) * v - s**2)) ** (n / 2)
    both = (e_value(t, n - 1, 1 / n) + e_value(-t, n - 1, 1 / n)) / 2
    assert float(both) == pytest.approx(published.mean(), rel=1e-6)


def test_shares_of_the_level_sum_to_one() -> None:
    assert math.fsum(share_of_level(number, 20) for number in range(1, 200_000)) == pytest.approx(1, abs=1e-5)
    assert online_threshold(1, 0, 0.1, 100) == pytest.approx(2000)
    assert online_threshold(1, 3, 0.1, 100) == pytest.approx(500), "each keep makes the next one cheaper"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_e_bh_is_the_largest_set_that_its_own_size_allows(values: list[float]) -> None:
    chosen = e_bh(values, 0.1)
    limits = [k for k in range(1, len(values) + 1) if sum(v * k >= len(values) / 0.1 for v in values) >= k]
    assert chosen.sum() == (sum(v * max(limits) >= len(values) / 0.1 for v in values) if limits else 0)


@pytest.mark.parametrize(("degrees", "family"), [(4, 20), (8, 40)])
def test_a_boosted_family_of_noise_is_below_its_level(degrees: int, family: int) -> None:
    draws = np.random.default_rng(0)
    factor = boost(float(degrees), 2.0, family, 0.1)
    assert factor > 2
    noise, spread = draws.normal(size=(1500, family)), np.sqrt(draws.chisquare(degrees, (1500, 1)) / degrees)
    t = (draws.normal(size=(1500, 1)) - noise) / spread / math.sqrt(2)  # one parent and one spread for all
    false = e_bh(e_value(t, degrees, 2.0) * factor, 0.1).any(axis=1).mean()
    assert false < 0.1


def test_power_and_seeds_are_those_of_simulated_retests() -> None:
    threshold, gain, degrees = 100.0, 2.5, 8.0
    seeds = seeds_needed(gain, threshold, degrees, 20)
    assert seeds is not None
    draws = np.random.default_rng(1)

    def share(runs: int) -> float:
        total = degrees + 2 * runs - 2
        t = (draws.normal(size=20_000) + gain / math.sqrt(2 / runs)) / np.sqrt(draws.chisquare(total, 20_000) / total)
        return float((t >= critical_t(threshold, total, 2 / runs)).mean())

    assert share(seeds) > 0.75 and share(seeds - 1) < 0.82
    assert power(gain, threshold, degrees + 2 * seeds - 2, 2 / seeds) == pytest.approx(share(seeds), abs=0.04)
    assert seeds_needed(0.05, threshold, degrees, 20) is None


def test_it_starts_with_numpy_alone() -> None:
    heavy = "{'torch', 'scipy', 'pandas', 'pydantic', 'matplotlib', 'transformers'}"
    code = f"import neobert.referee, sys; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
