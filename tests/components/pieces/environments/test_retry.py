"""Environment `retry`, its rewards worked by hand, and the laws of every environment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ratchet.components.environments.episode import Episode, step_all
from ratchet.components.errors import ContractError
from ratchet.components.piece import build, catalogue
from ratchet.components.types import Context, Group, Observation, Prompt, Span, Step, Trajectory

PROMPT = Prompt(
    "p",
    ({"role": "user", "content": "Guess."},),
    answer="3",
    meta={"state": {"a": "1"}, "wanted": {"a": "2"}},
)


def retry(**options: Any) -> Any:
    return build("environment", {"name": "retry", **options})


def scored(name: str, attempts: Sequence[str], right: str = "3", **options: Any) -> float | None:
    """A reward of the episode with these attempts; an empty one is invalid."""
    spans = tuple(
        Span(i, i + 1, float(text.strip() == right), valid=bool(text)) for i, text in enumerate(attempts)
    )
    messages = tuple(
        m
        for text in attempts
        for m in ({"role": "assistant", "content": text}, {"role": "user", "content": "No."})
    )[:-1]
    annotator = build("annotate", {"name": name, **options})
    columns = annotator([Group(PROMPT, (Trajectory(messages, spans=spans),))], Context())  # pyright: ignore[reportArgumentType]
    return columns[f"reward.{name.rpartition('.')[2]}"][0][0]


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        (["3"], 1.0),
        (["1", "3"], 0.5),
        (["1", "1", "3"], 0.25 - 0.5 * (1 - 2 / 3)),
        (["1", " 1 ", "1"], -0.5 * (1 - 1 / 3)),
        (["1", "2"], 0.0),
        (["", "3"], 1.0 - 0.1),
        (["", ""], -0.2),
    ],
    ids=[
        "first",
        "second",
        "third after a repeat",
        "spaces do not count",
        "none",
        "after invalid",
        "invalid",
    ],
)
def test_attempts_reward_by_hand(attempts: list[str], expected: float) -> None:
    assert scored("rewards.attempts", attempts) == pytest.approx(expected)


def test_attempts_skips_a_trajectory_that_is_no_episode() -> None:
    columns = build("annotate", {"name": "rewards.attempts"})([Group(PROMPT, (Trajectory(()),))], Context())
    assert columns["reward.attempts"] == [[None]]
    assert columns["reward.attempts.status"][0][0].startswith("skipped")


@pytest.mark.parametrize(("numbers", "turns"), [(3, 2), (4, 3), (3, 3)])
def test_optimum_of_the_reward_is_distinct_attempts_and_equals_the_closed_form(
    numbers: int, turns: int
) -> None:
    """Every deterministic policy of the testbed `guess` is a sequence of attempts: the best of all are those
    without a repeat, with the sum of decay^k / K over k < T.
    """
    values = {}
    for plan in itertools.product(range(numbers), repeat=turns):
        found = []
        for hidden in range(numbers):
            made = list(map(str, plan[: plan.index(hidden) + 1] if hidden in plan else plan))
            found.append(scored("rewards.attempts", made, right=str(hidden)))
        values[plan] = sum(v for v in found if v is not None) / numbers
    best = max(values.values())
    assert best == pytest.approx(sum(0.5**k for k in range(turns)) / numbers)
    assert {len(set(plan)) for plan, value in values.items() if math.isclose(value, best)} == {turns}


def test_retry_ends_at_the_right_attempt_or_the_last_one() -> None:
    world = retry(attempts=3, feedback="No.")
    assert world.begin(PROMPT) == Observation()
    assert world.step("2") == Step(Observation(({"role": "user", "content": "No."},)), 0.0, False)
    assert world.step("3").done and world.score()["solved"] == 1.0 and world.score()["first"] == 0.0
    lost = retry(attempts=2)
    lost.begin(PROMPT)
    assert [lost.step(a).done for a in ("1", " 1")] == [False, True]
    assert lost.score() == {"solved": 0.0, "first": 0.0, "last": 0.0, "attempts": 2.0, "distinct": 0.5}


def test_retry_that_always_asks_again_says_nothing_about_the_attempt() -> None:
    world = retry(attempts=2, always=True)
    world.begin(PROMPT)
    right, wrong = world.step("3"), retry(attempts=2, always=True)
    wrong.begin(PROMPT)
    assert right.observation == wrong.step("1").observation and not right.done
    assert world.step("1").done and (world.score()["first"], world.score()["last"]) == (1.0, 0.0)


def test_the_last_attempt_is_not_right_if_the_episode_was_cut_before_it() -> None:
    """A turn that is too long is not taken: the first attempt of two is not the last one."""
    world = retry(attempts=2, always=True)
    world.begin(PROMPT)
    world.step("3")
    assert (world.score()["first"], world.score()["last"], world.score()["solved"]) == (1.0, 0.0, 1.0)
    ended = retry(attempts=5)
    ended.begin(PROMPT)
    assert ended.step("3").done and ended.score()["last"] == 1.0


@pytest.mark.parametrize("name", list(catalogue("environment")))
@pytest.mark.parametrize("actions", [["1"], ["1", "", "2"], ["x", "x", "x"]])
def test_replaying_the_actions_gives_the_same_results(name: str, actions: list[str]) -> None:
    """A fork, then a step, is a step, then a fork."""
    episode = Episode(lambda: build("environment", {"name": name}), PROMPT)
    for action in actions:
        step_all([episode], [action], {})
    copy = episode.fork()
    assert (copy.actions, copy.steps) == (episode.actions, episode.steps)
    if not episode.steps[-1].done:
        step_all([episode, copy], ["3", "3"], {})
        assert (
            episode.steps[-1] == copy.steps[-1] and episode.score() == copy.score() == episode.fork().score()
        )


class Counting:
    """An environment that depends on how often it was made: it cannot be replayed."""

    made = 0

    def __init__(self) -> None:
        Counting.made += 1
        self.number = Counting.made

    def begin(self, prompt: Prompt) -> Observation:
        return Observation()

    def step(self, action: str) -> Step:
        return Step(Observation(({"role": "user", "content": str(self.number)},)))

    def score(self) -> Mapping[str, float]:
        return {}


class Together(Counting):
    """An environment that asks a model, for all episodes at once."""

    calls = 0

    @staticmethod
    def step_many(
        environments: Sequence[Any], actions: Sequence[str], models: Mapping[str, Any]
    ) -> list[Step]:
        Together.calls += 1
        return [Step(Observation(({"role": "user", "content": text},))) for text in models["user"](actions)]


def test_an_environment_that_cannot_be_replayed_is_refused() -> None:
    episode = Episode(Counting, PROMPT)
    step_all([episode], ["a"], {})
    with pytest.raises(ContractError, match="replaying the actions"):
        episode.fork()


def test_environments_that_ask_models_are_stepped_together_and_a_failure_is_an_error() -> None:
    episodes = [Episode(Together, PROMPT) for _ in range(3)]
    Together.calls = 0
    found = step_all(episodes, ["a", "b", "c"], {"user": lambda texts: [t * 2 for t in texts]})
    assert Together.calls == 1
    assert [s and s.observation.messages[0]["content"] for s in found] == ["aa", "bb", "cc"]
    assert step_all(episodes, ["a", "b", "c"], {}) == [None] * 3
    assert all("KeyError" in e.error and not e.score() for e in episodes)


class Numbered(Counting):
    """An environment whose first observation depends on how often it was made."""

    def begin(self, prompt: Prompt) -> Observation:
        return Observation(({"role": "user", "content": str(self.number)},))


class Once(Counting):
    """An environment that begins once only."""

    def begin(self, prompt: Prompt) -> Observation:
        if self.number > 1:
            raise OSError("the port is taken")
        return Observation()


@pytest.mark.parametrize(
    ("environment", "says"), [(Numbered, r"made again began with .*'2'.*'1'"), (Once, "the port is taken")]
)
def test_a_copy_that_begins_otherwise_is_refused_before_any_action(
    environment: type, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "made", 0)
    with pytest.raises(ContractError, match=says):
        Episode(environment, PROMPT).fork()


def test_an_environment_that_cannot_be_made_is_an_error_and_takes_no_action() -> None:
    def make() -> Any:
        raise OSError("no licence")

    episode = Episode(make, PROMPT)
    assert step_all([episode], ["a"], {}) == [None] and episode.score() == {}
    assert episode.error == "environment: OSError: no licence" and episode.fork().error == episode.error
    assert (episode.actions, episode.steps) == ([], [])


@pytest.mark.parametrize("returned", [None, (Observation(), 0.0, False, {})])
def test_what_is_no_step_is_named(returned: Any) -> None:
    class Gym(Counting):
        def step(self, action: str) -> Any:
            return returned

    episode = Episode(Gym, PROMPT)
    assert step_all([episode], ["a"], {}) == [None]
    assert f"step() must return a Step, not {type(returned).__name__}" in episode.error


def test_an_episode_whose_environment_broke_takes_no_further_action() -> None:
    class Breaks(Counting):
        def step(self, action: str) -> Step:
            raise OSError(action)

    episode = Episode(Breaks, PROMPT)
    assert [step_all([episode], [action], {}) for action in "ab"] == [[None], [None]]
    assert episode.actions == ["a"] and episode.error == "environment: OSError: a"


def test_a_wrong_number_of_steps_is_an_error_that_names_both() -> None:
    class Few(Together):
        @staticmethod
        def step_many(*_: Any) -> list[Step]:
            return [Step(done=True)]

    episodes = [Episode(Few, PROMPT) for _ in range(2)]
    assert step_all(episodes, ["a", "b"], {}) == [None, None]
    assert all("step_many() returned 1 steps for 2 environments" in one.error for one in episodes)


def test_a_step_that_neither_ends_nor_shows_anything_is_an_error() -> None:
    class Silent(Counting):
        def step(self, action: str) -> Step:
            return Step()

    episode = Episode(Silent, PROMPT)
    assert step_all([episode], ["a"], {}) == [None] and "returned no message" in episode.error
