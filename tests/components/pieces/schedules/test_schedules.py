"""Schedules of numbers: their values per step, and resume."""

import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.piece import build, catalogue

SPECS = {
    "anneal": {"start": 1.0, "end": 0.0, "steps": 4},
    "adaptive_kl": {"target": 2.0, "initial": 0.1, "gain": 0.5},
}


def path(schedule, kls):
    values = []
    for kl in kls:
        schedule.update({"policy/kl/kl": kl})
        values.append(schedule.value())
    return values


def test_schedule_values_by_hand():
    schedules = {name: build("schedule", {"name": name, **options}) for name, options in SPECS.items()}
    cosine = build("schedule", {"name": "anneal", **SPECS["anneal"], "shape": "cosine"})
    assert path(schedules["anneal"], [0] * 6) == [0.75, 0.5, 0.25, 0.0, 0.0, 0.0]
    assert path(cosine, [0] * 5) == pytest.approx([0.853553, 0.5, 0.146447, 0, 0], abs=1e-6)
    assert path(schedules["adaptive_kl"], [200.0, 2.0, 1.8]) == pytest.approx([0.11, 0.11, 0.11 * 0.95])
    with pytest.raises(RecipeError, match="policy/kl/kl"):
        schedules["adaptive_kl"].update({"policy/kl/k": 1.0})
    assert path(schedules["adaptive_kl"], [float("nan")]) == pytest.approx([0.11 * 0.95]), "no row of it"
    with pytest.raises(RecipeError, match="above 0"):
        build("schedule", {"name": "adaptive_kl", "target": 0.1, "initial": 0.0})


@pytest.mark.parametrize("name", sorted(catalogue("schedule")))
def test_schedules_resume_from_their_state(name):
    spec, kls = {"name": name, **SPECS.get(name, {})}, [1.0, 5.0, 1.9, 2.2]
    whole = path(build("schedule", spec), kls)
    first, second = build("schedule", spec), build("schedule", spec)
    path(first, kls[:2])
    second.restore(first.state())
    assert path(second, kls[2:]) == whole[2:]
