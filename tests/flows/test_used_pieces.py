"""Every piece has a recipe that uses it, but for those of slots that users name."""

from ratchet.components.piece import SLOTS, catalogue
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.recipe import names
from ratchet.flows.recipe_pieces import pieces_in
from tests.shipped import shipped_recipe

FOR_USERS = {
    "parser": "layouts of users' files; shipped recipes read a few of them",
    "health": "rules of `online.health`, by their name as a key",
}
"""Slot whose pieces need no recipe -> why."""


def test_every_piece_is_used_by_a_recipe_or_its_slot_is_for_users() -> None:
    used = {
        (one.slot, name) for recipe in names() for name, one, _ in pieces_in(plain(shipped_recipe(recipe)[0]))
    }
    unused = {
        name
        for slot in SLOTS
        if slot not in FOR_USERS
        for name in catalogue(slot)
        if (slot, name) not in used
    }
    assert unused == set()
