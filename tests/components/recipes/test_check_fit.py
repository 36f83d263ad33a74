"""Hints of the checks of a section `fit`."""

from __future__ import annotations

from ratchet.components.recipes.check_fit import objectives_of_labels, objectives_of_pairs


def test_hints_name_the_objectives_that_fit_the_data() -> None:
    pairs, labels = objectives_of_pairs().split(", "), objectives_of_labels().split(", ")
    assert "preference.dpo" in pairs and "kto" in labels
    assert not set(pairs) & set(labels) and "likelihood" not in pairs + labels
