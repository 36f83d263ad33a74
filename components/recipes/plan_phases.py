"""Stages of each kind of phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ratchet.components.piece import describe
from ratchet.components.recipes.changed_rounds import for_round
from ratchet.components.recipes.people import plan_asking
from ratchet.components.recipes.phases import Phase, asks_people, initial_phase, selectors
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.planner import Planner, pick
from ratchet.components.recipes.reward_models import certified
from ratchet.components.recipes.schema import (
    Demonstrate,
    Groups,
    Learn,
    Offline,
    Online,
    Preferences,
    Reward,
    Spec,
)
from ratchet.components.training.reward_columns import optimised_rewards


def plan_phase(planner: Planner, phase: Phase) -> None:
    """Add the stages of a phase, and make its products known to later ones."""
    section = phase.section
    match section:
        case Demonstrate() | Preferences():
            _samples(planner, phase, section)
        case Groups():
            _groups(planner, phase, section)
        case Reward():
            _reward(planner, phase, section)
        case Online():
            _trained(planner, phase, _online(planner, phase, section))
        case Learn():
            _trained(planner, phase, _learn(planner, phase, section))


def _trained(planner: Planner, phase: Phase, stage: str) -> None:
    """A trained policy: a model that later phases name and, if the phase advances, the policy so far."""
    planner.models[phase.known_as] = stage
    planner.policies.add(phase.known_as)
    if phase.advances:
        planner.policy = stage
        planner.stages[stage] = dataclasses.replace(planner.stages[stage], policy=True)
    if phase == initial_phase(planner.recipe):
        planner.initial = stage


def _samples(planner: Planner, phase: Phase, section: Demonstrate | Preferences) -> None:
    """Data sets from the model's own answers, validated as curated ones."""
    recipe = planner.recipe
    answered, name = (
        ("demonstrated", "demonstrations") if phase.name == "demonstrate" else ("compared", "preferences")
    )
    held_out = recipe.reward and not (phase.name == "demonstrate" and recipe.preferences)
    unread = [] if held_out or certified(recipe) else ["reward_validation"]
    sets = {kind: plain(specs) for kind, specs in selectors(section).items() if specs}
    options = {
        **pick(section, "rollout", "annotate", "data", "validation", "max_failed"),
        "sets": sets,
        "unread": unread,
    }
    inputs = {"policy": planner.start(phase), "data": planner.curated}
    inputs |= planner.named(section.annotate)
    made = planner.add(answered, "demonstrate", "groups", options, inputs, phase=phase)
    splits = {f"{kind}{end}": 1.0 for kind in sets for end in ("", "_validation")}
    kept = {split: 1.0 for split in splits if split not in unread}
    validated = planner.add(
        name,
        "validate",
        "groups",
        {"section": {**plain(recipe.data), "splits": kept}},
        {"drafts": made},
        heavy=False,
        phase=phase,
    )
    for split in splits:
        planner.data[split] = (validated, split)
        planner.answers[split] = (answered, section.annotate)


def _groups(planner: Planner, phase: Phase, section: Groups) -> None:
    """Groups sampled or read, scored and selected."""
    stage, file = planner.source(section.data)
    held_out, other = planner.source(section.validation) if section.validation else (stage, None)
    options = {
        **pick(section, "rollout", "annotate", "max_failed"),
        "data": file,
        "validation": other,
        "sets": {"groups": plain(section.select)},
        "unread": [],
        "round": phase.turn,
    }
    inputs = {"policy": planner.start(phase), "data": stage}
    inputs |= {"validation_data": held_out} if held_out != stage else {}
    inputs |= planner.named(section.annotate, initial=planner.initial, reference=inputs["policy"])
    inputs |= planner.named([section.rollout] if section.rollout else (), slot="rollout")
    made = planner.add(phase.name, "demonstrate", "groups", options, inputs, phase=phase)
    for name in phase.makes:
        planner.data[name] = (made, "groups" + name.removeprefix(phase.known_as))
        if section.rollout:
            planner.answers[name] = (made, section.annotate)


def _learn(planner: Planner, phase: Phase, section: Learn) -> str:
    """One stage; two if pieces score, select or prepare the groups first."""
    start = planner.start(phase)
    stage, file = planner.source(section.data)
    options = {**pick(section, "max_tokens", "max_dropped", "limit"), "data": file, "where": phase.where}
    pieces = (section.annotate, section.select, section.prepare)
    if not (any(pieces) or isinstance(section, Offline)):
        held_out, other = planner.source(section.validation) if section.validation else (stage, None)
        inputs = {"policy": start, "data": stage}
        inputs |= {"validation_data": held_out} if held_out != stage else {}
        options |= {**pick(section, "fit", "limit_validation"), "validation": other}
        return planner.add(phase.name, "sft", "weights", options, inputs, phase=phase)
    options |= pick(section, "annotate", "select", "prepare", "max_failed")
    named = planner.named(section.annotate, section.prepare, initial=planner.initial, reference=start)
    groups = planner.add(
        "pairs" if phase.short and phase.name == "offline" else f"{phase.name}_groups",
        "prepare_offline",
        "groups",
        options,
        {"policy": start, "data": stage, **named, **planner.named(section.select, slot="select")},
        phase=phase,
    )
    inputs = {"policy": start, "groups": groups}
    return planner.add(phase.name, "optimise", "weights", pick(section, "fit"), inputs, phase=phase)


def _reward(planner: Planner, phase: Phase, section: Reward) -> None:
    """One stage a member. Pairs of `preferences` come with those of `demonstrate`, others with `also`."""
    stage, file = planner.source(section.data)
    held_out, other = planner.source(section.validation)
    inputs = {"policy": planner.start(phase), "data": stage}
    inputs |= {"validation_data": held_out} if held_out != stage else {}
    left_out, recipe = ("also", "of", "seed", "does"), planner.recipe
    options = {key: value for key, value in plain(section).items() if key not in left_out}
    options |= {"data": file, "validation": other, "where": phase.where}
    if section.also:
        inputs["also"], options["also"] = planner.source(section.also)
    elif stage == "preferences" and recipe.demonstrate and recipe.demonstrate.reward:
        inputs["also"], options["also"] = "demonstrations", file
    if answered := planner.answers.get(section.validation):
        inputs["answers"], options["verified_by"] = answered[0], plain(answered[1])
    for member, model in enumerate(phase.models):
        name = f"{phase.name}_{member + 1}" if section.members > 1 else phase.name
        more = {**options, "member": member}
        planner.models[model] = planner.add(
            name, "reward", "weights", more, inputs, phase=phase, certifies=model
        )


def _online(planner: Planner, phase: Phase, section: Online) -> str:
    """The stage with the last weights."""
    if section.cadence == "round":
        return _rounds(planner, phase, section)
    start = planner.start(phase)
    stage, file = planner.source(section.data)
    options = {
        key: value for key, value in plain(section).items() if key not in ("of", "seed", "advance", "does")
    }
    begin = {"initial": start, "reference": start}
    inputs = {"policy": start, "reference": start, "data": stage}
    inputs |= {name: planner.models[role.of] if role.of else start for name, role in section.roles.items()}
    for one in (section, *section.roles.values()):
        inputs |= planner.named(getattr(one, "annotate", ()), one.prepare, one.fresh, **begin)
        inputs |= planner.named(one.select, slot="select", **begin)
    inputs |= planner.named([section.rollout], slot="rollout", **begin)
    name = "improve" if phase.short else phase.name
    made = planner.add(name, "improve", "weights", {**options, "data": file}, inputs, phase=phase)
    planner.rounds.append((made, ""))
    return made


def _rounds(planner: Planner, phase: Phase, whole: Online) -> str:
    """Four stages a round; the last of them has the weights."""
    state = _Rounds(planner, phase, planner.start(phase))
    for i in range(1, whole.rounds + 1):
        state.add_round(for_round(whole, i, phase.where), i, whole.data)
    return state.policy


class _Rounds:
    """Stages of the rounds so far: `policy` and `previous` weights, `scored` answers, `kept` selections that
    together contain each earlier round's choice once, and by kind of stage the last one (`before`).
    """

    def __init__(self, planner: Planner, phase: Phase, start: str) -> None:
        self.planner, self.phase, self.prefix = planner, phase, "" if phase.short else f"{phase.name}_"
        self.initial = self.policy = self.previous = start
        self.scored: list[str] = []
        self.kept: list[str] = []
        self.before: dict[str, str] = {}

    def add_round(self, online: Online, round_number: int, data: str) -> None:
        current = self.initial if online.sample_from == "initial" else self.policy
        reference = self.initial if online.reference == "initial" else current
        answers = self._rollout(online, round_number, data, current, reference)
        marked = self._annotate(online, round_number, answers, current, reference)
        chosen = self._select(online, round_number, marked, current, reference)
        update = self._add(
            "optimise",
            round_number,
            {"fit": plain(online.fit)},
            {"policy": self.policy, "groups": chosen, "annotated": marked, "previous": self.previous},
            kind="weights",
        )
        self.planner.rounds.append((update, marked))
        self.previous, self.policy = self.policy, update

    def _add(
        self, does: str, round_number: int, options: Any, inputs: Any, kind: str = "groups", **more: Any
    ) -> str:
        return self.planner.add(
            f"{self.prefix}{does}_{round_number}",
            does,
            kind,
            {**options, "round": round_number},
            inputs,
            phase=self.phase,
            round=round_number,
            **more,
        )

    def _state(self, does: str, **slots: Sequence[Spec]) -> dict[str, str]:
        """The input with the state of a stage's pieces: the same stage of the round before."""
        return {"before": self.before[does]} if does in self.before and _memory(**slots) else {}

    def _rollout(self, online: Online, round_number: int, data: str, current: str, reference: str) -> str:
        """The stage with the answers, and with the scores of people if they give some."""
        stage, file = self.planner.source(data)
        named = self.planner.named(
            [online.rollout], slot="rollout", reference=reference, policy=current, initial=self.initial
        )
        adaptive = self.scored and _memory(prompts=[online.prompts])
        inputs = {
            **{"policy": current, "data": stage, **named},
            **self._state("rollout", prompts=[online.prompts], rollout=[online.rollout]),
            **({"answered": self.scored[-1]} if adaptive else {}),
        }
        options = pick(online, "rollout", "prompts", "prompts_per_round", "rounds")
        answers = self._add("rollout", round_number, {**options, "data": file}, inputs)
        self.before["rollout"] = answers
        if (people := asks_people(online)) is None:
            return answers
        inputs = {"groups": answers, "policy": current}
        own = {"initial": self.initial, "reference": reference}
        return plan_asking(online, people, round_number, inputs, self._add, self.planner.named, own)

    def _annotate(self, online: Online, round_number: int, answers: str, current: str, reference: str) -> str:
        options = {
            **pick(online, "annotate", "max_failed", "watch", "health"),
            "optimised": optimised_rewards(online.annotate, online.select, online.fit.updates),
        }
        inputs = {
            **{"groups": answers, "policy": current, "initial": self.initial},
            **(self.planner.gold if online.watch.gold is True else {}),
            **self.planner.named(online.annotate, _watched(online), reference=reference),
            **{f"scored_{j}": earlier for j, earlier in enumerate(self.scored, 1)},
            **self._state("annotate", annotate=online.annotate),
        }
        marked = self._add("annotate", round_number, options, inputs)
        self.scored.append(marked)
        self.before["annotate"] = marked
        return marked

    def _select(self, online: Online, round_number: int, marked: str, current: str, reference: str) -> str:
        own, named = {"initial": self.initial, "reference": reference}, self.planner.named
        inputs = {
            **{"groups": marked, "policy": current, "reference": reference},
            **named(online.prepare, **own),
            **named(online.select, slot="select", **own),
            **({f"earlier_{j}": s for j, s in enumerate(self.kept, 1)} if online.keep_earlier else {}),
            **self._state("select", select=online.select, annotate=online.prepare),
        }
        chosen = self._add("select", round_number, pick(online, "select", "prepare"), inputs)
        self.kept = [chosen] if online.keep_earlier else [*self.kept, chosen]
        self.before["select"] = chosen
        return chosen


def _memory(**slots: Sequence[Spec]) -> bool:
    """Whether one of these pieces has state."""
    return any(describe(slot, spec["name"]).memory for slot, specs in slots.items() for spec in specs)


def _watched(online: Online) -> Sequence[dict]:
    """The annotator in `watch.gold`, if any."""
    return [] if isinstance(online.watch.gold, bool) else [dict(online.watch.gold)]
