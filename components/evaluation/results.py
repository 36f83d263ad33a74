"""Contents of results.json: win rates, gains, quality, ratios and transcripts of the arms of an
evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import DataError
from ratchet.components.evaluation.bootstrap import Interval, difference, mean_interval
from ratchet.components.evaluation.diversity import distinct_n_ratio
from ratchet.components.evaluation.kl import sequence_kl
from ratchet.components.evaluation.quality import (
    diversity_against,
    flattened,
    quality,
    quality_against,
    slices,
    tag,
)
from ratchet.components.evaluation.report_format import is_rate
from ratchet.components.evaluation.win_rate import compare
from ratchet.components.recipes.arms import contrasts, final_arm, key_of, title_of
from ratchet.components.types import Group

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine

Ragged = list[list[float]]


@dataclass(frozen=True)
class Scored:
    """The answers of every arm, and their numbers. `splits`: arm -> split of its prompts; `numbers`: arm ->
    name -> value; `scores`, `measured`: arm -> name -> one number per prompt and answer; `own`: whether the
    recipe names its arms. An arm is a model whose answers are evaluated.
    """

    splits: Mapping[str, str]
    answers: Mapping[str, Sequence[Group]]
    numbers: Mapping[str, dict[str, float]]
    scores: Mapping[str, Mapping[str, Ragged]]
    measured: Mapping[str, Mapping[str, Ragged]]
    own: bool = False

    @property
    def final(self) -> str:
        """The arm that the results are about."""
        return final_arm(self.splits)

    @property
    def contrasts(self) -> dict[str, list[str]]:
        """Arm that is compared -> others with the same prompts."""
        return contrasts(self.splits)

    @property
    def same_prompts(self) -> list[str]:
        """Arms with the prompts of the final one."""
        return [arm for arm, split in self.splits.items() if split == self.splits[self.final]]

    def add_means(self) -> None:
        """Add the mean of every score and measure to `numbers`, in place."""
        for arm, numbers in self.numbers.items():
            numbers |= {name: average(row) for name, row in self.by_prompt(arm).items()}

    def by_prompt(self, arm: str) -> dict[str, list[float]]:
        """Score or measure -> its mean over the answers to each prompt."""
        found = {**self.scores[arm], **self.measured[arm]}
        return {name: [average(row) for row in rows] for name, rows in found.items()}

    def paired(self, arms: Sequence[str], name: str) -> list[list[float]]:
        """The rows of `by_prompt` of each arm. `DataError` unless all arms have the same prompts."""
        if len({self.splits[arm] for arm in arms}) > 1:
            raise DataError(f"expected arms on one split of prompts, got {', '.join(arms)} on several")
        return [self.by_prompt(arm)[name] for arm in arms]

    def per_prompt(self) -> dict[str, list[float]]:
        """Scores and measures by prompt: `final.NAME`, and `ARM.NAME` if the recipe names its arms."""
        arms = {"final": self.final, **({arm: arm for arm in self.splits} if self.own else {})}
        return {
            f"{prefix}.{name}": row
            for prefix, arm in arms.items()
            for name, row in self.by_prompt(arm).items()
        }


def describe_quality(
    results: dict[str, Any], scored: Scored, by: Sequence[str], reward_models: Sequence[str]
) -> None:
    """Add quality measures by arm and against other arms, diversity, and the headline metric by prompt
    tag.
    """
    metrics, scores = results["metrics"], scored.scores
    results["measure"] = next(
        (
            name
            for name in scores[scored.final]
            if name != "gold" and name.removeprefix("reward.") not in reward_models
        ),
        None,
    )
    results["quality"] = {
        name: {title_of(arm): row for arm, row in arms.items()}
        for name, arms in quality(scored.measured).items()
    }
    for arm, others in scored.contrasts.items():
        for other in others:
            found = quality_against(scored.measured, arm, other)
            if scored.measured[arm]:
                found["distinct_2_ratio"] = diversity_against(scored.answers, arm, other)
            metrics |= flattened({f"{name}_vs_{key_of(other)}": row for name, row in found.items()})
            results[f"quality_vs_{key_of(other)}"] = found
    if results["measure"]:
        rates = {title_of(arm): rows[results["measure"]] for arm, rows in scores.items()}
        if {value for rows in rates.values() for row in rows for value in row} <= {0.0, 1.0}:
            results["measure_name"] = "verified " + results["measure"].removeprefix("reward.").replace(
                "_", " "
            )
        results["rates"] = {
            title: mean_interval([average(row) for row in rows]) for title, rows in rates.items()
        }
        paired = {title: rates[title] for title in map(title_of, scored.same_prompts)}
        results["slices"] = slices(scored.answers[scored.final], paired, by)
        results["proxy_gold"] = proxy_gold(results["rounds"], reward_models)


def proxy_gold(rounds: Sequence[Mapping[str, float]], reward_models: Sequence[str]) -> list[dict[str, float]]:
    """The reward model's score (without one, the optimised reward) and the gold score by round, with a 95 %
    interval of the gold score.
    """
    found = []
    for row in rounds:
        proxy = next(
            (row[f"reward.{name}"] for name in reward_models if f"reward.{name}" in row), row.get("reward")
        )
        if proxy is not None and "gold" in row:
            reach = 1.96 * row.get("gold.error", 0.0)
            found.append(
                {
                    "round": row["round"],
                    "proxy": proxy,
                    "gold": row["gold"],
                    "gold_low": row["gold"] - reach,
                    "gold_high": row["gold"] + reach,
                }
            )
    return found


def contrast(
    results: dict[str, Any], scored: Scored, arm: str, against: str, reward_models: Sequence[str]
) -> None:
    """Compare an arm with another: win rates with paired intervals, raw and length-controlled, for every
    score.
    """
    key = key_of(against)
    lengths = {
        name: [[float(sum(t.mask)) for t in g.trajectories] for g in scored.answers[name]]
        for name in (arm, against)
    }
    for score, mine in scored.scores[arm].items():
        theirs = scored.scores[against][score]
        name = "win_rate" if score == "gold" else f"win_rate_{score.removeprefix('reward.')}"
        found = compare(mine, theirs, lengths[arm], lengths[against])
        gains = [average(a) - average(b) for a, b in zip(mine, theirs, strict=True)]
        suffix = "" if key == "sft" else f"_{key}"
        results["per_prompt"] |= {f"{name}{suffix}": list(found["wins"]), f"{score}_gain{suffix}": gains}
        measured = {
            f"{name}_vs_{key}": found["raw"],
            f"{name}_lc_vs_{key}": found["length_controlled"],
            f"{score}_gain_vs_{key}": mean_interval(gains),
        }
        results["metrics"] |= {
            f"{label}.{end}": v for label, ends in measured.items() for end, v in ends.items()
        }
    if key == "sft" and (gap := proxy_over_gold(results["per_prompt"], reward_models)) is not None:
        results["metrics"] |= {f"proxy_over_gold.{end}": v for end, v in gap.items()}


def proxy_over_gold(
    per_prompt: Mapping[str, Sequence[float]], reward_models: Sequence[str]
) -> Interval | None:
    """Win rate by the reward models minus win rate by the gold measure (final against SFT), paired by prompt:
    grows with over-optimisation (Gao et al., 2022, arXiv:2210.10760). None without both.
    """
    proxies = [per_prompt[f"win_rate_{name}"] for name in reward_models if f"win_rate_{name}" in per_prompt]
    if not proxies or "win_rate" not in per_prompt:
        return None
    return difference([average(wins) for wins in zip(*proxies, strict=True)], per_prompt["win_rate"])


def has_logprobs(groups: Sequence[Group]) -> bool:
    """Whether the first answer to each prompt has its sampler's log-probs, which `kl_to` needs. Rollouts that
    rewrite or replay answers give none.
    """
    return all(g.trajectories[0].logprobs is not None for g in groups)


def kl_to(reference: Engine, groups: Sequence[Group]) -> float:
    """Monte Carlo KL(policy that sampled `groups` ‖ `reference`) in nats per sequence, on the first answer to
    each prompt.
    """
    firsts = [g.take([0]) for g in groups]
    rows = reference.score(firsts, frozenset({"logprobs"}))
    return sequence_kl(
        [g.trajectories[0].logprobs for g in firsts],
        [row["logprobs"][0] for row in rows],
        [g.trajectories[0].mask for g in firsts],
    )


def summarise(results: dict[str, Any], scored: Scored) -> None:
    """Add the numbers of the final arm (of every arm, if the recipe names them), and ratios to the initial
    policy, which gates read: diversity at equal text length, answer length, embedding spread.
    """
    metrics, numbers, final = results["metrics"], scored.numbers, scored.final
    for prefix, arm in {"final": final, **({a: a for a in numbers} if scored.own else {})}.items():
        metrics |= {f"{prefix}.{name}": value for name, value in numbers[arm].items()}
    if "initial" in scored.contrasts[final]:
        mine, theirs = (
            [t.text for g in scored.answers[arm] for t in g.trajectories] for arm in (final, "initial")
        )
        metrics["distinct_2_ratio"] = distinct_n_ratio(mine, theirs, 2)
        for name in ("length", "embedding_spread"):
            if name in numbers["initial"] and numbers["initial"][name]:
                metrics[f"{name}_ratio"] = numbers[final][name] / numbers["initial"][name]


def transcripts(scored: Scored, count: int, by: Sequence[str], measure: str | None) -> list[dict[str, Any]]:
    """The first prompts with the first answer of every arm that has them; for a 0/1 measure, also whether
    each was correct.
    """
    shown, arms, scores = [], {arm: title_of(arm) for arm in scored.same_prompts}, scored.scores
    for i, group in enumerate(scored.answers[scored.final][:count]):
        right = {title: scores[a][measure][i][0] for a, title in arms.items()} if measure else {}
        shown.append(
            {
                "prompt": [dict(m) for m in group.prompt.messages],
                "human": group.prompt.answer,
                **({"images": dict(images)} if (images := group.prompt.inputs.get("images")) else {}),
                "answers": {title: scored.answers[a][i].trajectories[0].text for a, title in arms.items()},
                "gold": {t: scores[a]["gold"][i][0] for a, t in arms.items() if "gold" in scores[a]},
                **(
                    {"verified": {title: value == 1 for title, value in right.items()}}
                    if right and {*right.values()} <= {0, 1}
                    else {}
                ),
                "tags": {
                    name.rpartition(".")[2]: str(tag(group, name))
                    for name in by
                    if tag(group, name) is not None
                },
            }
        )
    return shown


def headline(results: Mapping[str, Any]) -> str:
    metrics = results["metrics"]
    if "win_rate_vs_sft.mean" in metrics:
        return (
            f"wins {metrics['win_rate_vs_sft.mean']:.1%} against SFT by the gold measure "
            f"[{metrics['win_rate_vs_sft.low']:.1%}, {metrics['win_rate_vs_sft.high']:.1%}]"
        )
    measure, own = results["measure"], results.get("contrasts")
    against = [(one["key"], one["against"]) for one in own] if own else [("base", "base"), ("sft", "SFT")]
    if measure and any(f"{measure}_gain_vs_{key}.mean" in metrics for key, _ in against):
        scale, form, unit = (100, ".1f", " points") if is_rate(results) else (1, ".3f", "")
        final = metrics[f"final.{measure}"]
        parts = [f"{measure.removeprefix('reward.')} {format(final, '.1%' if unit else form)}"]
        for row, name in ((f"{measure}_gain_vs_{key}", name) for key, name in against):
            if f"{row}.mean" in metrics:
                mean, low, high = (scale * metrics[f"{row}.{end}"] for end in ("mean", "low", "high"))
                parts.append(f"{mean:+{form}}{unit} over {name} [{low:{form}}, {high:{form}}]")
        return ", ".join(parts)
    first = next((k for k in metrics if k.startswith("final.reward.")), None)
    return (
        f"{first.removeprefix('final.')} {metrics[first]:.3f}"
        if first
        else f"length {metrics['final.length']:.1f}"
    )


def average(values: Sequence[float]) -> float:
    return sum(values) / len(values)
