"""Warnings on a recipe that is valid but hardly meant: what it trains and nothing uses, labels that teach
nothing, settings of another model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from ratchet.components.piece import describe
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.reward_models import not_required
from ratchet.components.recipes.schema import Learn, Online, Recipe, Reward
from ratchet.components.recipes.smoke import LIMITED
from ratchet.components.recipes.splits import kind_of
from ratchet.components.types import Group

SIZED = ("learning_rate", "max_tokens")
"""Settings whose values depend on the size of the model and on the data."""


def unused_reward_models(recipe: Recipe) -> list[str]:
    """A warning for each phase that trains a reward model which no piece of an online recipe reads."""
    phases = sections(recipe)
    if not any(isinstance(one.section, Online) for one in phases):
        return []
    read = set(_texts([one.section for one in phases if not isinstance(one.section, Reward)]))
    read |= set(_texts(recipe.evaluate))
    return [
        f"{one.where}: trains {' and '.join(map(repr, one.models))}, which no piece reads; write "
        + (f"`{one.where}: null`" if one.short else f"`{one.known_as}: null` in phases")
        + " to leave it out"
        for one in phases
        if isinstance(one.section, Reward) and not read & set(one.models)
    ]


def not_required_accuracy(recipe: Recipe) -> list[str]:
    """A sentence if a reward model is optimised against whose accuracy is not required. None for a smoke
    test, which requires nothing and registers nothing.
    """
    if not (names := not_required(recipe)) or recipe.name.endswith(LIMITED):
        return []
    return [
        f"this recipe optimises {' and '.join(names)} without requiring a certificate of accuracy "
        "(`certificate.min_accuracy: null`): a reward model no better than chance is used too, and the "
        "policy cannot become champion"
    ]


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value of a recipe, but for the names of keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)
    elif is_dataclass(value):
        for one in fields(value):
            yield from _texts(getattr(value, one.name))


def equal_labels(recipe: Recipe, splits: Mapping[str, Sequence[Group]]) -> list[str]:
    """A warning for each split with one label only, from which an objective on single answers learns."""
    warnings = []
    for phase in sections(recipe):
        groups = splits.get(getattr(phase.section, "data", None) or "", ())
        if not isinstance(phase.section, Learn) or not groups:
            continue
        for spec in [spec for parts in phase.section.fit.updates.values() for spec in parts]:
            labels = {label for group in groups for label in group.columns.get("label", ())}
            if "label" in describe("objective", spec["name"]).reads and len(labels) == 1:
                warnings.append(
                    f"data.{phase.section.data}: all {len(groups):,} answers have label "
                    f"{str(bool(labels.pop())).lower()}; {spec['name']!r} compares answers of both labels"
                )
    return warnings


def gates_of_few(recipe: Recipe) -> list[str]:
    """A warning for each gate on an interval that the evaluation has too few prompts or replies to pass."""
    from ratchet.components.evaluation.bootstrap import enough

    section, warnings = recipe.evaluate, list[str]()
    for name, gate in (recipe.register.gates if recipe.register and section else {}).items():
        key = "perplexity_rows" if name == "perplexity_ratio" else "prompts"
        if gate.interval and not enough(count := getattr(section, key)):
            warnings.append(
                f"register.gates.{name}: cannot pass, since an interval of {count} may be chance; raise "
                f"evaluate.{key}, or remove `interval`"
            )
    return warnings


def of_the_tiny_model(raw: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    """A warning if a recipe for another model inherits sizes that its base set for the tiny model. `raw`: the
    recipe with its overrides, as written; `base`: what it is merged over.
    """
    policy = (raw.get("models") or {}).get("policy") or {}
    if not _is_tiny(base) or not policy or _is_tiny(raw) or policy.get("format") == "new":
        return []
    kept = list(_inherited(raw, base, ""))
    if not kept:
        return []
    return [
        f"models.policy is not the tiny model, for which the base {raw.get('base')!r} sets "
        f"{', '.join(kept)}; write values for your model into the recipe (`ratchet init` proposes some)"
    ]


def _is_tiny(raw: Mapping[str, Any]) -> bool:
    policy = (raw.get("models") or {}).get("policy") or {}
    return str(policy.get("source", "")).startswith("generate:tiny")


def _inherited(raw: Any, base: Any, where: str) -> Iterator[str]:
    """Settings of `SIZED` in `base` that `raw` neither changes nor removes."""
    for key, value in base.items():
        at, own = f"{where}.{key}".lstrip("."), raw.get(key) if isinstance(raw, Mapping) else None
        if key in raw and own is None:
            continue
        if isinstance(value, Mapping):
            yield from _inherited(own if isinstance(own, Mapping) else {}, value, at)
        elif key in SIZED and key not in raw and not isinstance(value, Mapping):
            yield f"{at} {value:g}" if isinstance(value, int | float) else f"{at} {value}"


MARKUP = re.compile(
    r"<\|(?:im_start|im_end|endoftext|begin_of_text|start_header_id|end_header_id|eot_id|end|system|user"
    r"|assistant)\|>|<(?:start|end)_of_turn>|\[/?INST\]|</s>"
)
"""Special tokens of chat templates in use."""


def markup(splits: Mapping[str, Sequence[Group]]) -> list[str]:
    """A warning if texts contain special tokens: only the template of the model opens and closes turns."""
    groups = [group for part in splits.values() for group in part]
    marked = [
        marks
        for group in groups
        if (
            marks := MARKUP.findall(
                "\n".join(
                    m["content"]
                    for messages in (group.prompt.messages, *(path.messages for path in group.trajectories))
                    for m in messages
                )
            )
        )
    ]
    if not marked:
        return []
    counts = Counter(mark for marks in marked for mark in marks)
    names = ", ".join(repr(name) for name, _ in counts.most_common(3))
    return [
        f"data: {len(marked):,} of {len(groups):,} groups contain special tokens of a chat template, "
        f"{names}, which are encoded as text and open or close no turn; where they are left over from a "
        "rendered conversation, take them out, or read the column with the parser `text`"
    ]


def one_conversation(splits: Mapping[str, Sequence[Group]]) -> list[str]:
    """A warning for each split of the evaluation with several prompts from one conversation, of which a later
    one contains the earlier: intervals, gates and champions count each as a prompt of its own.
    """
    warnings = list[str]()
    for name, groups in splits.items():
        conversations = {group.prompt.meta.get("conversation", group.prompt.id) for group in groups}
        if kind_of(name) == "evaluate" and len(conversations) < len(groups):
            warnings.append(
                f"data.{name}: {len(groups):,} prompts are from {len(conversations):,} conversations, and "
                "intervals count them as independent, which makes them too narrow; set "
                f"data.{name}.per_conversation: 1"
            )
    return warnings


def repeated_prompts(splits: Mapping[str, Sequence[Group]]) -> list[str]:
    """A warning for each split in which answers begin with the last message of their prompt, as in data whose
    `chosen` and `rejected` are whole texts.
    """
    warnings = list[str]()
    for name, groups in splits.items():
        repeated = sum(_repeats_prompt(group) for group in groups)
        if repeated > len(groups) / 2:
            warnings.append(
                f"data.{name}: in {repeated:,} of {len(groups):,} groups every answer begins with its "
                "prompt, which would be trained and sampled as a part of the answer; cut it off in the rows"
            )
    return warnings


def _repeats_prompt(group: Group) -> bool:
    """Whether all answers begin with the last message of the prompt."""
    asked = group.prompt.messages[-1]["content"].strip() if group.prompt.messages else ""
    answers = [path.messages[0]["content"].strip() for path in group.trajectories if path.messages]
    return bool(asked and answers) and all(answer.startswith(asked) for answer in answers)
