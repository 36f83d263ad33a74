"""The Dawid-Skene model: closed forms, the monotone objective of EM, recovery of simulated error rates."""

import itertools
import math

import numpy as np
import pytest

from ratchet.components.errors import DataError
from ratchet.components.labels.dawid_skene import collect, fit, unit_posterior


def votes(rows: list[tuple[str, str, int]], answers: int = 2, known: dict[str, int] | None = None):
    return collect(rows, {unit: answers for _, unit, _ in rows}, known or {})


def simulated(errors: list[float], units: int, seed: int, *, answers: int = 2, planted: int = 0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, answers, units)
    rows = [
        (
            f"a{a}",
            f"u{u}",
            int(truth[u] if rng.random() >= e else (truth[u] + rng.integers(1, answers)) % answers),
        )
        for a, e in enumerate(errors)
        for u in range(units)
    ]
    return votes(rows, answers, {f"u{u}": int(truth[u]) for u in range(planted)}), truth


def test_error_on_known_answers_is_the_share_of_wrong_choices() -> None:
    rows = [("a", f"u{i}", int(i < 3)) for i in range(10)] + [("b", f"u{i}", 0) for i in range(10)]
    found = fit(votes(rows, known={f"u{i}": 0 for i in range(10)}), prior=(0, 0))
    assert found.accuracy == pytest.approx([0.7, 1.0])


def test_two_annotators_share_the_error_that_explains_their_agreement() -> None:
    """They agree with probability 1 - 2e(1 - e), so e = (1 - sqrt(2 agreement - 1)) / 2."""
    rows = [("a", f"u{i}", 0) for i in range(50)] + [("b", f"u{i}", int(i < 9)) for i in range(50)]
    error = (1 - math.sqrt(2 * 41 / 50 - 1)) / 2
    found = fit(votes(rows), prior=(0, 0), tolerance=1e-12, steps=5000)
    assert 1 - found.accuracy == pytest.approx([error, error], abs=1e-6)


def test_posterior_is_bayes_rule() -> None:
    three = votes([("a", "u", 0), ("b", "u", 0), ("c", "u", 1)], answers=3)
    posterior, evidence = unit_posterior(three, np.array([[0.9, 0.6, 0.7]]))
    joint = np.array([0.9 * 0.6 * 0.15, 0.05 * 0.2 * 0.7, 0.05 * 0.2 * 0.15]) / 3
    assert posterior[0, 0] == pytest.approx(joint / joint.sum())
    assert evidence[0, 0] == pytest.approx(math.log(joint.sum()))
    without, _ = unit_posterior(three, np.array([[0.9, 0.6, 0.7]]), without=2)
    assert without[0, 0, 1] == pytest.approx(without[0, 0, 2])


def test_mode_is_the_maximum_of_the_objective() -> None:
    """A grid over both accuracies finds no higher posterior density (planted units make it identifiable)."""
    data, _ = simulated([0.1, 0.3], 40, seed=3, planted=20)
    best = fit(data, tolerance=1e-10)

    def density(p: np.ndarray) -> float:
        _, evidence = unit_posterior(data, p[None])
        return float(evidence.sum() + 2 * np.log(p).sum() + np.log1p(-p).sum())

    grid = np.linspace(0.51, 0.99, 49)
    highest = max(density(np.array(point)) for point in itertools.product(grid, grid))
    assert highest - 1e-9 <= density(best.accuracy) <= highest + 0.05


@pytest.mark.parametrize("seed", range(5))
def test_em_never_lowers_its_objective(seed: int) -> None:
    data, _ = simulated([0.05, 0.2, 0.35, 0.5], 30, seed, answers=2 + seed % 3)
    objective = np.array(fit(data, tolerance=1e-10).objective)
    assert len(objective) > 5 and (np.diff(objective) >= -1e-9).all()


def test_intervals_contain_the_simulated_error_rates() -> None:
    errors = [0.05, 0.15, 0.25, 0.4, 0.5]
    inside = total = 0
    for seed in range(12):
        found = fit(simulated(errors, 60, seed)[0], seed=seed)
        for a, error in enumerate(errors):
            mode, low, high = found.error(f"a{a}")
            assert low <= mode <= high
            inside, total = inside + (low <= error <= high), total + 1
    assert inside >= 0.87 * total, f"{inside} of {total} at a level of 95 %"
    assert np.abs(1 - fit(simulated(errors, 3000, 1)[0]).accuracy - errors).max() < 0.03


def test_the_weighted_vote_is_better_than_the_majority() -> None:
    data, truth = simulated([0.05, 0.45, 0.45, 0.45, 0.45], 800, seed=5)
    posterior = fit(data).posterior.argmax(1)
    majority = data.table.sum(0).argmax(1)
    assert (posterior == truth).mean() > (majority == truth).mean() + 0.05


def test_choices_of_unknown_answers_are_refused() -> None:
    with pytest.raises(DataError):
        votes([("a", "u", 2)])
    with pytest.raises(DataError):
        votes([("a", "u", 1)], known={"u": 2})
