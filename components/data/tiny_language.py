"""Grammar of the tiny language: questions on colours, sounds, places and sums, with a right and a wrong
answer.
"""

from __future__ import annotations

import random

COLOURS = {
    "sky": "blue",
    "grass": "green",
    "snow": "white",
    "coal": "black",
    "a lemon": "yellow",
    "a rose": "red",
}
SOUNDS = {
    "a dog": "barks",
    "a cat": "meows",
    "a cow": "moos",
    "a duck": "quacks",
    "a lion": "roars",
    "a bee": "buzzes",
}
PLACES = {
    "fish": "in water",
    "birds": "in trees",
    "bears": "in woods",
    "camels": "in deserts",
    "kings": "in castles",
}
NAMES = ("Ann", "Bob", "Cleo", "Dan", "Eve", "Finn")
OPENERS = (
    "what about {}?",
    "do you know {}?",
    "i am tired of {}",
    "is there {} today?",
    "we talked about {}",
    "{} again?",
    "my friend has {}",
    "say something of {}",
    "who likes {}?",
    "it is time for {}",
)
SUBJECTS = (
    *["music", "films", "books", "football", "cooking", "travel", "games", "dogs", "cats", "rain", "coffee"],
    *["the sea", "snow", "tea", "work", "school", "trains", "birds", "art", "bread", "wine", "money"],
    *["winter", "the city"],
)
RUDE = ("I do not know.", "Go away.", "Who cares?", "No.")


def question(rng: random.Random) -> tuple[str, str, str, str]:
    """Topic, question, right answer and wrong answer from the grammar."""
    kind = rng.choice(("colours", "sounds", "places", "sums"))
    if kind == "sums":
        a, b = rng.randrange(10), rng.randrange(10)
        return kind, f"What is {a} + {b}?", f"{a + b}.", f"{a + b + rng.choice((-2, -1, 1, 2))}."
    table, ask, say = {
        "colours": (COLOURS, "What colour is {}?", "{} is {}."),
        "sounds": (SOUNDS, "What does {} do?", "{} {}."),
        "places": (PLACES, "Where do {} live?", "{} live {}."),
    }[kind]
    thing = rng.choice(sorted(table))
    wrong = rng.choice(sorted(set(table.values()) - {table[thing]}))
    subject = thing[0].upper() + thing[1:]
    return kind, ask.format(thing), say.format(subject, table[thing]), say.format(subject, wrong)
