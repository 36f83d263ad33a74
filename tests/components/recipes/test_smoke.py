"""`--limit N` makes any recipe a smoke test without registration."""

import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.recipe import load, names
from ratchet.components.recipes.schema import Online
from tests.shipped import shipped_recipe


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("count", [1, 24])
def test_every_shipped_recipe_loads_with_a_limit(name, count):
    whole, profile = shipped_recipe(name)
    recipe, _ = load(name, limit=count)
    assert recipe.name == f"{name}-limited" and recipe.register is None and len(plan(recipe, profile)) > 3
    for split in ("sft", "prompts", "labelled", "evaluate", "demonstrate", "preferences_validation"):
        assert recipe.data.of(split).limit <= count
    for section in (recipe.sft, recipe.reward, recipe.offline, recipe.online):
        assert section is None or (
            section.fit.epochs <= 1
            and (
                section.fit.max_steps is None
                if section is recipe.online and section.cadence == "step"
                else section.fit.batch * section.fit.max_steps <= count
            )
            and section.fit.min_ended == 0
        )
    if recipe.online:
        assert recipe.online.rounds * recipe.online.prompts_per_round <= min(
            count, whole.online.rounds * whole.online.prompts_per_round
        )
        assert (
            all(rule.action == "warn" for rule in recipe.online.health.values())
            and recipe.online.annotate == whole.online.annotate
        )
    if recipe.reward:
        assert (
            recipe.reward.certificate.min_accuracy is None
            and recipe.reward.certificate.reload_tolerance == whole.reward.certificate.reload_tolerance
        )
    assert recipe.evaluate is None or recipe.evaluate.prompts <= count


def test_smoke_test_reports_the_same_recipe_errors():
    with pytest.raises(RecipeError, match=r"register\.gates\.win_rate_vs_sftt"):
        load("chat", overrides=["register.gates.win_rate_vs_sftt={over: 0.5}"], limit=8)
    with pytest.raises(RecipeError, match=r"--limit.*0"):
        load("chat", limit=0)
    changed = load(
        "chat",
        overrides=[
            "online.prompts={name: uniform}",
            "online.by_round={2: {prompts_per_round: 9, fit: {learning_rate: 1.0e-5}}, 3: {sample_from: "
            "initial}}",
        ],
        limit=8,
    )[0]
    assert changed.online.by_round == {"2": {"fit": {"learning_rate": 1e-5}}}


def test_changes_of_a_round_and_further_roles_are_reduced_too():
    changes = [
        "online.by_round.2.fit={batch: 64, epochs: 4, learning_rate: 1.0e-5}",
        "online.by_round.2.health={kl: {action: stop}}",
        "online.by_round.2.watch={kl_prompts: 40}",
    ]
    recipe, _ = load("chat", overrides=changes, limit=8)
    assert recipe.online and recipe.online.by_round == {"2": {"fit": {"learning_rate": 1e-5}, "watch": {}}}
    main = (load("wsrl", limit=8)[0].phases or {})["main"]
    assert isinstance(main, Online)
    (critic,) = main.roles.values()
    assert critic.fit.batch <= 8 and critic.fit.max_steps is None


def test_the_longest_name_has_room_for_its_ending():
    recipe, _ = load("sft", overrides=[f"name={'n' * 100}"], limit=8)
    assert recipe.name == "n" * 92 + "-limited"
