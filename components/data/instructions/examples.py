"""One hand-written example answer per trained instruction family, for prompts with examples."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ratchet.components.data.instructions.families import OPEN, Params

EXAMPLE_QUESTION = "What do you like to eat?"
EXAMPLES: Mapping[str, tuple[Params, str]] = MappingProxyType(
    {
        "at_most_words": ({"n": 8}, "Mostly pasta with tomatoes."),
        "at_least_words": (
            {"n": 18},
            "I like pasta with tomatoes most of all, but on cold days I cook a big pot of soup with beans.",
        ),
        "exactly_sentences": ({"n": 2}, "I like pasta. My sister prefers rice."),
        "at_most_sentences": ({"n": 1}, "I like pasta with tomatoes."),
        "quotation": ({}, '"I like pasta with tomatoes."'),
        "bullets": ({"n": 2}, "* Pasta with tomatoes\n* Bread with cheese"),
        "no_comma": ({}, "I like pasta and bread and cheese."),
        "begin_with": ({"phrase": "Honestly"}, "Honestly, I could eat pasta every day."),
        "end_with": ({"phrase": "Have a nice day."}, "I like pasta with tomatoes. Have a nice day."),
        "end_question": ({}, "I like pasta with tomatoes. What do you like?"),
        "include_word": ({"word": "family"}, "I like the pasta that my family makes."),
        "include_two_words": (
            {"one": "music", "two": "happy"},
            "Pasta makes me happy, above all with music on.",
        ),
        "exclude_word": ({"word": "the"}, "I like pasta with tomatoes."),
        "letter_frequency": ({"letter": "k", "n": 2}, "I like to cook pasta and cake."),
        "include_number": ({}, "I eat pasta 3 times a week."),
        "title": ({}, "<<Pasta First>>\nI like pasta with tomatoes."),
        "highlight": ({}, "I like *pasta* with tomatoes."),
        "postscript": ({}, "I like pasta with tomatoes.\nP.S. Bread is good too."),
        "placeholder": ({}, "I like the pasta that [name] makes."),
        "two_responses": ({}, "I like pasta with tomatoes.\n******\nBread with cheese is my favorite."),
        "json": ({}, '{"answer": "I like pasta with tomatoes."}'),
        "choice": ({"options": list(OPEN)}, "It depends."),
    }
)
"""Instruction family -> (parameters, answer), used by `rollouts.by_example` until a sampled answer is
verified. Not trained on.
"""
