"""Rounds that ask people: checks of the annotator `rewards.people`, and the stages of a round that ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ratchet.components.errors import RecipeError
from ratchet.components.piece import describe, resolve
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.schema import Online, Spec

Annotator = Mapping[str, Any]


class Groups(Protocol):
    """Static description of groups (`check_sections.Flow`)."""

    answers: int

    def through(self, slot: str, specs: Sequence[Spec], models: set[str], where: str) -> None: ...


def check_people(online: Online, people: Annotator, where: str, answers: Groups, models: set[str]) -> None:
    """People are asked once a round, compare two answers to a prompt, and are either real or simulated; the
    selectors of their pairs read columns of the rollout and of the annotators before. `answers`: the groups
    as the rollout returns them.
    """
    name = people["name"]
    if online.cadence == "step":
        raise RecipeError(
            f"{where}: {name!r} asks people, who answer once a round; expected `cadence: round`"
        )
    if online.rollout.get("responses_per_prompt", 1) < 2:
        raise RecipeError(
            f"{where}: {name!r} needs two answers to compare; expected responses_per_prompt of 2 or more"
        )
    simulated, verifier = people.get("simulated") or (), people.get("verifier", "")
    if bool(simulated) != bool(verifier):
        raise RecipeError(
            f"{where}: got simulated {list(simulated)} with verifier {verifier!r}; simulated annotators need "
            "both their error rates and the reward piece that knows the better answer"
        )
    if simulated and people.get("overlap", 0) > 0 and len(simulated) < 2:
        raise RecipeError(f"{where}: overlap {people['overlap']} needs two simulated annotators, got one")
    if verifier and not describe("annotate", verifier, where=f"{where}.verifier").writes:
        raise RecipeError(f"{where}.verifier: {verifier!r} writes no reward")
    if people.get("select"):
        _check_selection(online, people, where, answers, models)


def _check_selection(
    online: Online, people: Annotator, where: str, answers: Groups, models: set[str]
) -> None:
    first, selectors = scored_before(online, people), selectors_of(people, f"{where}.select")
    for slot, spec in [*(("annotate", one) for one in first), *(("select", one) for one in selectors)]:
        if describe(slot, spec["name"]).memory:
            raise RecipeError(
                f"{where}: {spec['name']!r} keeps a state from round to round, and cannot choose the pairs "
                f"that people compare; move it behind {people['name']!r}"
            )
    answers.through("annotate", first, models, where)
    answers.through("select", selectors, models, f"{where}.select")
    if answers.answers < 2:
        raise RecipeError(f"{where}.select: expected two answers to compare, but one a prompt is left")


def scored_before(online: Online, people: Annotator) -> list[Spec]:
    """The annotators that stand before the one of people; selectors of pairs read their columns."""
    names = [spec["name"] for spec in online.annotate]
    return list(online.annotate[: names.index(people["name"])])


def selectors_of(people: Annotator, where: str = "") -> list[dict[str, Any]]:
    """The selectors of the pairs that people compare, with their defaults."""
    return [
        resolve("select", spec, where=f"{where}[{i}]") for i, spec in enumerate(people.get("select") or ())
    ]


def plan_asking(
    online: Online,
    people: Annotator,
    round_number: int,
    inputs: Mapping[str, str],
    add: Callable[..., str],
    named: Callable[..., dict[str, str]],
    own: Mapping[str, str],
) -> str:
    """Plan the stage `ask`, and before it `propose` if selectors choose the pairs. `inputs`: stages of the
    answers and their policy; `add` plans a stage of a round, `named` finds the models of pieces, of which
    `own` have a meaning in this phase only.
    """
    first, selectors = scored_before(online, people), selectors_of(people)
    asked = {key: value for key, value in plain(people).items() if key != "select"}
    if selectors:
        options = {"annotate": plain(first), "select": selectors, "max_failed": online.max_failed}
        models = {**named(first, **own), **named(selectors, slot="select", **own)}
        inputs = {**inputs, "pairs": add("propose", round_number, options, {**inputs, **models})}
    return add("ask", round_number, {"people": asked}, inputs, heavy=False)
