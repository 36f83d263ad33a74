"""Measures of label quality on simulated annotators of known error, and the report."""

import dataclasses
import json
import math
import random
from statistics import fmean

import numpy as np
import pytest

from ratchet.components.errors import DataError
from ratchet.components.evaluation.bootstrap import wilson
from ratchet.components.labels.labels import Item, Label
from ratchet.components.labels.quality import (
    SIGNIFICANCE,
    Labels,
    chance_test,
    measure,
)
from ratchet.components.labels.report import findings, report, report_json
from ratchet.components.labels.simulate import Annotator, simulate
from ratchet.components.labels.weights import consensus, label_weights

GOOD = [Annotator(f"good-{i}", error=0.15) for i in range(4)]
CLICKER = Annotator("clicker", error=0.5, seconds=2.0)


def item(name: str, **options) -> Item:
    return Item(
        name, [{"role": "user", "content": "why?"}], options.pop("answers", ["so it is", "no"]), **options
    )


def label(
    name: str, choice: int | None, who: str = "a", verdict: str = "choice", order=(0, 1), time=""
) -> Label:
    return Label(name, who, choice, verdict, list(order), 10.0, time=time)  # pyright: ignore[reportArgumentType]


def test_a_random_clicker_is_found_within_40_items_and_good_annotators_are_not() -> None:
    """100 simulated sessions of four annotators of error 15 % and one who clicks at random, 40 items each, in
    the shares that a queue with 32 common pairs gives: one in eight planted, 5 % repeated, the others
    labelled by all. At least 90 clickers are found (measured: 95 %); of the 400 good annotators no more than
    10 are (the bound of 1 % allows 4; 10 or more have probability 0.8 %).
    """
    people, found, wrong = [*GOOD, CLICKER], 0, 0
    for seed in range(100):
        session = simulate(people, each=40, planted=1 / 8, repeats=0.05, overlap=0.8, seed=seed)
        joined = Labels(session.items, session.labels)
        found += chance_test(joined, "clicker")["verdict"] == "random"
        wrong += sum(chance_test(joined, one.name)["verdict"] == "random" for one in GOOD)
    assert found >= 90
    assert wrong < 10


def test_the_chance_test_keeps_its_bound_over_a_long_session() -> None:
    """The likelihood ratio of an annotator of error 15 % falls to 1 % at any time of 400 planted items with
    probability at most 1 %, however long the session is.
    """
    wrong = 0
    for seed in range(300):
        session = simulate([GOOD[0]], each=400, planted=1.0, overlap=0, repeats=0, seed=seed)
        wrong += chance_test(Labels(session.items, session.labels), "good-0")["verdict"] == "random"
    assert wrong <= 300 * SIGNIFICANCE + 6  # probability of more: 0.2 %


def test_chance_test_is_the_likelihood_ratio() -> None:
    items = [item("known", planted=0), item("twice"), item("again", repeat_of="twice"), item("alone")]
    made = [label("known", 0, time="1"), label("twice", 1, time="2"), label("again", 1, time="3")]
    made.append(label("alone", 0, time="4"))
    found = chance_test(Labels(items, made), "a", good_error=0.2)
    assert found["log_ratio"] == pytest.approx(math.log(0.8 / 0.5) + math.log((0.8**2 + 0.2**2) / 0.5))
    assert (found["verdict"], found["informative"]) == ("undecided", 2)


def test_the_verdict_random_stands_whatever_follows() -> None:
    """Each wrong choice on a planted item divides the ratio by 0.5 / 0.15: it is at 1 % after four."""
    items = [item(f"i{n:03}", planted=0) for n in range(60)]
    wrong = [label(f"i{n:03}", 1, time=f"{n:03}") for n in range(10)]
    later = [label(f"i{n:03}", 0, time=f"{n:03}") for n in range(10, 60)]
    found = chance_test(Labels(items, wrong + later), "a")
    assert found["verdict"] == "random" and found["decided"] == 4


def test_measures_of_hand_made_labels() -> None:
    items = [
        item("p1", planted=0, answers=["a b c", "d"]),
        item("p2", planted=1),
        item("q"),
        item("q2", repeat_of="q"),
        item("r"),
    ]
    labels = [
        label("p1", 0, time="1"),
        label("p2", None, verdict="tie", time="2"),
        label("q", 1, order=(1, 0), time="3"),
        label("q2", 0, order=(1, 0), time="4"),
        label("r", None, verdict="skip", time="5"),
        label("q", 1, "b", time="6"),
        label("r", 0, "b", time="7"),
    ]
    found = measure(items, labels)
    mine = found["annotators"]["a"]
    assert (mine["labels"], mine["choice"], mine["tie"], mine["skip"]) == (5, 3, 1, 1)
    assert mine["planted"] == wilson(1, 2), "a tie on a planted item is not right"
    assert mine["consistent"] == wilson(0, 1)
    assert mine["first"] == wilson(2, 3) and mine["first_chance"] == 0.5
    assert mine["longer"] == wilson(2, 3)
    assert mine["seconds"] == 10.0
    assert found["items"] == 4 and found["agreement"] is None, (
        "one unplanted unit has two ratings, which agree"
    )


def test_biases_of_position_and_length_are_found_and_not_invented() -> None:
    people = [*GOOD, Annotator("left", first=0.6), Annotator("long", longest=0.6)]
    found = measure(*_pair(simulate(people, each=120, seed=1)))["annotators"]
    assert found["left"]["first"]["low"] > 0.5 and found["left"]["effects"]["shown first"]["p"] < 0.001
    assert found["long"]["longer"]["low"] > 0.5 and found["long"]["effects"]["log length"]["p"] < 0.001
    for one in GOOD:
        assert found[one.name]["effects"]["shown first"]["p"] > 0.001
        assert found[one.name]["effects"]["log length"]["p"] > 0.001


def test_ties_do_not_change_error_rates() -> None:
    people = [Annotator("one", 0.1), Annotator("two", 0.1, ties=0.4), Annotator("three", 0.1)]
    session = simulate(people, each=200, overlap=0.8, seed=2)
    found = measure(session.items, session.labels)["annotators"]
    assert 50 < found["two"]["tie"] < 110
    for one in people:
        assert found[one.name]["error"]["low"] <= 0.1 <= found[one.name]["error"]["high"]


def test_consensus_probabilities_are_calibrated_and_weights_follow_them() -> None:
    people = [Annotator("a", 0.05), Annotator("b", 0.2), Annotator("c", 0.3), CLICKER]
    session = simulate(people, each=600, planted=0.1, overlap=0.9, repeats=0.0, seed=3)
    made = consensus(session.items, session.labels)
    assert made and not {one.item for one in made} & {i.id for i in session.items if i.planted is not None}
    right = [session.better[one.item] == one.chosen for one in made]
    assert fmean(right) == pytest.approx(fmean(one.probability for one in made), abs=0.03)
    assert all(one.weight == pytest.approx(2 * one.probability - 1) for one in made)
    weights = label_weights(session.items, session.labels)
    by = {
        p.name: fmean(w for w, m in zip(weights, session.labels, strict=True) if m.annotator == p.name)
        for p in people
    }
    planted = {one.id for one in session.items if one.planted is not None}
    trained = [w for w, m in zip(weights, session.labels, strict=True) if m.item not in planted]
    assert fmean(trained) == pytest.approx(1)
    assert by["a"] > by["b"] > by["c"] > by["clicker"]


def test_weight_is_the_gradient_of_the_expected_loss_and_ties_lower_it() -> None:
    items = [item("x"), item("known", planted=0)]
    labels = [label("x", 1), label("x", None, "b", "tie"), label("known", 0)]
    (found,) = consensus(items, labels)
    p = found.probability
    gradient = p * 0.5 - (1 - p) * 0.5  # of p log sigmoid(d) + (1 - p) log sigmoid(-d) at d = 0
    assert found.weight == pytest.approx(2 * gradient / 2) and found.log_odds == pytest.approx(
        math.log(p / (1 - p))
    )
    assert (found.chosen, found.choices, found.ties) == (1, 1, 1)
    assert label_weights(items, labels)[1] == 0.0


def test_labels_of_unknown_items_and_answers_are_refused() -> None:
    with pytest.raises(DataError, match="no such item"):
        measure([item("x")], [label("y", 0)])
    with pytest.raises(DataError, match="order"):
        measure([item("x")], [label("x", 2, order=(0, 1, 2))])


def test_no_labels_give_an_empty_report() -> None:
    assert measure([], [])["annotators"] == {}
    assert "0 labels" in report([], [])


def test_an_annotator_between_good_and_random_is_called_poor() -> None:
    session = simulate([*GOOD, Annotator("weak", error=0.35)], each=300, planted=0.2, overlap=0.7, seed=6)
    found = measure(session.items, session.labels)
    assert found["annotators"]["weak"]["chance"]["verdict"] == "poor"
    assert "weak errs more often than 15%" in findings(found)[0]


def test_labels_without_times_have_no_pace() -> None:
    untimed = dataclasses.replace(label("x", 0), seconds=0.0)
    assert measure([item("x")], [untimed])["annotators"]["a"]["words_per_second"] is None
    assert "–" in report([item("x")], [untimed])


def test_report_names_the_clicker_escapes_text_and_is_pure() -> None:
    people = [*GOOD, Annotator("<b>evil</b>", error=0.5)]
    session = simulate(people, each=60, planted=0.3, overlap=0.6, seed=4)
    page = report(session.items, session.labels)
    assert page == report(session.items, session.labels)
    assert "<b>evil" not in page and "&lt;b&gt;evil&lt;/b&gt; is not distinguishable" in page
    found = json.loads(report_json(session.items, session.labels))
    assert found["findings"] == findings(found) and found["findings"][0].startswith("<b>evil</b>")
    assert found["agreement"]["low"] < found["agreement"]["mean"] < found["agreement"]["high"]


def test_simulated_annotators_have_their_error_rate() -> None:
    rng, one = random.Random(0), Annotator("a", error=0.3, ties=0.1)
    triple = item("t", answers=["a", "b", "c"])
    made = [one.label(triple, 1, (2, 0, 1), rng) for _ in range(4000)]
    chosen = [m.choice for m in made if m.choice is not None]
    assert len(chosen) == pytest.approx(3600, abs=80)
    assert np.mean(np.array(chosen) != 1) == pytest.approx(0.3, abs=0.03)
    assert {0, 2} <= set(chosen)


def _pair(session) -> tuple[list[Item], list[Label]]:
    return session.items, session.labels


def test_simulated_annotators_call_equal_answers_a_tie_but_for_their_errors() -> None:
    item, rng = Item("i", [{"role": "user", "content": "question"}], ["one", "two"]), random.Random(0)
    given = [Annotator("ann", error=0.2).label(item, None, [0, 1], rng) for _ in range(2000)]
    chosen = [label for label in given if label.verdict == "choice"]
    assert all(label.choice is None for label in given if label.verdict == "tie")
    assert len(chosen) / len(given) == pytest.approx(0.2, abs=0.03)
    assert fmean(label.choice or 0 for label in chosen) == pytest.approx(0.5, abs=0.08)
