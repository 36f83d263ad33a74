"""Selectors: which answers are kept, their order, and the recorded origin of pairs."""

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory


def group(rewards, name="p", lengths=None):
    rows = tuple(
        Trajectory(
            (Message(role="assistant", content=f"answer {i}"),),
            mask=[True] * (lengths[i] if lengths else 1),
            weights="w1",
            meta={"temperature": 0.7},
        )
        for i in range(len(rewards))
    )
    return Group(Prompt(name, ()), rows, {"reward.reward_model": rewards})


def select(name, *groups, ctx=None, **options):
    return build("select", {"name": name, **options})(groups, ctx or Context(seed=3, round=2))


def test_best_worst_pairs_and_their_origin():
    (result,) = select("best_worst", group([0.2, 0.9, -0.5, 0.9]), group([1.0, 1.0]))
    assert [t.text for t in result.trajectories] == ["answer 1", "answer 2"]
    assert result.columns["margin"] == pytest.approx([1.4, 1.4])
    assert result.columns["reward.reward_model"] == [0.9, -0.5]
    assert result.prompt.meta["pair"] == {
        "policy": "w1",
        "policy_rejected": "w1",
        "reward": "reward.reward_model",
        "reward_models": {},
        "seed": 3,
        "round": 2,
        "decoding": {"temperature": 0.7},
        "margin": pytest.approx(1.4),
        "responses": 4,
    }
    assert select("best_worst", group([0.2, 0.9]), min_margin=0.8) == []
    (short,) = select("best_worst", group([1.0, 0.9], lengths=[10, 2]), length_penalty=0.1)
    assert short.trajectories[0].text == "answer 1"
    assert short.columns["margin"] == pytest.approx([0.7, 0.7])


def test_identical_answers_make_no_pair():
    twin = group([1.0, 0.0])
    twin = twin.replace([twin.trajectories[0]] * 2)
    assert select("best_worst", twin) == []


def test_all_pairs_best_of_n_threshold_drop_constant():
    assert [
        (p.trajectories[0].text[-1], p.trajectories[1].text[-1])
        for p in select("all_pairs", group([1.0, 2.0, 1.0]))
    ] == [("1", "0"), ("1", "2")]
    (best,) = select("best_of_n", group([1.0, 3.0, 3.0]), keep=2)
    assert [t.text for t in best.trajectories] == ["answer 1", "answer 2"]
    (kept,) = select("threshold", group([1.0, 3.0]), group([0.0]), at_least=2.0)
    assert kept.columns["reward.reward_model"] == [3.0]
    assert [
        len(g.trajectories)
        for g in select("drop_constant", group([1.0, 1.0]), group([0.0, 1.0]), group([1.0]))
    ] == [2]


def counted(name, *groups, **options):
    ctx = Context(seed=3, round=2)
    select(name, *groups, ctx=ctx, **options)
    return dict(+ctx.counts)


def test_skipped_prompts_are_counted_by_reason():
    same = group([1.0, 0.0, 1.0])
    same = same.replace([same.trajectories[0], same.trajectories[0], same.trajectories[1]])
    assert counted("all_pairs", group([1.0, 2.0, 1.0]), group([1.0]), same, min_margin=0.5) == {
        "ties": 2,
        "groups of one answer": 1,
        "identical texts": 1,
    }
    assert counted("best_of_n", group([1.0, 3.0, 3.0]), group([1.0]), keep=2) == {
        "answers that are not the best": 1
    }
    assert counted("threshold", group([1.0, 3.0]), group([0.0]), at_least=2.0) == {
        "answers under at_least": 2
    }
    assert counted("drop_constant", group([1.0, 1.0]), group([0.0, 1.0]), group([1.0])) == {
        "groups of equal rewards": 2
    }


def test_missing_score_is_an_error():
    with pytest.raises(DataError, match="reward"):
        select("best_worst", group([1.0, None]))
    with pytest.raises(DataError, match="no column"):
        select("best_worst", group([1.0, 2.0]), reward="reward.other")


def test_replay_resumes():
    spec = {"name": "replay", "share": 0.5, "capacity": 4}
    rounds = [[group([1.0], f"{r}.{i}") for i in range(4)] for r in range(3)]
    whole, first = build("select", spec), build("select", spec)
    assert whole(rounds[0], Context(round=0)) == rounds[0]
    first(rounds[0], Context(round=0))
    resumed = build("select", spec)
    resumed.restore(first.state())
    for r in (1, 2):
        ctx = Context(round=r)
        got = whole(rounds[r], ctx)
        assert ctx.counts == {"groups replayed": 2}
        assert got == resumed(rounds[r], Context(round=r))
        assert len(got) == 6
        assert all(g in rounds[r - 1] for g in got[4:])


def test_replay_remembers_several_rounds_up_to_its_capacity() -> None:
    replay = build("select", {"name": "replay", "share": 1.0, "capacity": 3})
    rounds = [[group([1.0], f"{r}.{i}") for i in range(2)] for r in range(3)]
    sizes = [len(replay(one, Context(round=r))) for r, one in enumerate(rounds)]
    assert sizes == [2, 4, 4]
    assert [g.prompt.id for g in replay.state()["memory"]] == ["1.1", "2.0", "2.1"]


def test_answers_with_personal_data_are_left_out() -> None:
    texts = [
        "Write to jane.doe@mail.com.",
        "I like tea.",
        "[Place](https://www.place.com/there)",
        "Ask @jane",
    ]
    rows = tuple(Trajectory((Message(role="assistant", content=text),)) for text in texts)
    ctx = Context()
    (kept,) = select(
        "without_personal_data",
        Group(Prompt("p", ()), rows, {"reward.reward_model": [0.0, 1.0, 2.0, 3.0]}),
        Group(Prompt("q", ()), rows[:1]),
        ctx=ctx,
    )
    assert [t.text for t in kept.trajectories] == ["I like tea."] and kept.columns["reward.reward_model"] == [
        1.0
    ]
    assert ctx.counts["answers with personal data"] == 4


def test_answers_that_repeat_their_question_or_instruction_are_left_out() -> None:
    prompt = Prompt(
        "p",
        (
            Message(
                role="user", content='Have you seen the new album? Say "I would rather not say." at the end.'
            ),
        ),
        meta={"instruction": {"params": {"phrase": "I would rather not say."}}},
    )
    own = [
        "I have seen a new film. I would rather not say.",  # the phrase is demanded
        "The new album? Yes.",
        "Have you?",
        "I have seen it.",
    ]
    repeated = [
        '"Have you seen the new album?"',
        "Yes! have you seen THE new album",
        "- Have you seen a new album?",  # 26 of 27 letters
        "Have you seen\nHave you seen the new album, I ask?\nNo.",
    ]
    rows = tuple(Trajectory((Message(role="assistant", content=text),)) for text in own + repeated)
    ctx = Context()
    (kept,) = select(
        "without_restatements",
        Group(prompt, rows, {"reward.r": [float(i) for i in range(8)]}),
        Group(prompt, rows[4:5]),
        ctx=ctx,
    )
    assert [t.text for t in kept.trajectories] == own and kept.columns["reward.r"] == [0.0, 1.0, 2.0, 3.0]
    assert ctx.counts == {"answers that repeat their prompt": 5}
    (stricter,) = select("without_restatements", Group(prompt, rows), ctx=Context(), similarity=1.0)
    assert [t.text for t in stricter.trajectories] == [*own, *repeated[2:]]


def test_new_labels_confirm_reverse_or_drop_a_proposed_pair() -> None:
    def proposed(name, chosen, rejected):
        instruction = {
            "family": "no_comma",
            "wording": 0,
            "params": {},
            "text": "Do not use any commas.",
            "kind": "seen",
        }
        rows = tuple(
            Trajectory((Message(role="assistant", content=text),), mask=[True], weights="w1", stop="end")
            for text in (chosen, rejected)
        )
        prompt = Prompt(
            name,
            ({"role": "user", "content": "What do you like to eat? Do not use any commas."},),
            meta={"question": name, "instruction": instruction},
        )
        return Group(prompt, rows, {"reward.reward_model": [2.0, 1.0], "margin": [1.0, 1.0]})

    good, bad = "I like rice and hot tea.", "I like rice, beans and tea."
    ctx = Context(seed=3, round=2)
    result = select(
        "labelled",
        proposed("a", good, bad),
        proposed("b", bad, good),
        proposed("c", good, "I like tea and hot rice."),
        ctx=ctx,
    )
    assert [(g.prompt.id, *(t.text for t in g.trajectories)) for g in result] == [
        ("a", good, bad),
        ("b", good, bad),
    ]
    assert [g.columns["margin"] for g in result] == [[1.0, 1.0]] * 2 and result[1].columns[
        "reward.reward_model"
    ] == [1.0, 2.0]
    assert result[0].prompt.meta["pair"]["reward"] == "reward.instructions"
    assert (ctx.counts["pairs confirmed"], ctx.counts["pairs reversed"], ctx.counts["ties"]) == (1, 1, 1)


def test_by_actor_keeps_the_answers_of_one_actor():
    rows = tuple(Trajectory((), actor=actor) for actor in ("policy", "mixture", "policy"))
    mixed = Group(Prompt("p", ()), rows, {"reward.r": [1.0, 2.0, 3.0]})
    ctx = Context()
    (kept,) = select("by_actor", mixed, Group(Prompt("q", ()), rows[1:2]), ctx=ctx)
    assert kept.trajectories == (rows[0], rows[2]) and kept.columns["reward.r"] == [1.0, 3.0]
    assert ctx.counts["answers of other actors"] == 2


def test_a_share_is_no_rounding_error_more_or_less() -> None:
    """7 % of 100 are 7.000000000000001 in floating point, and 29 % are 28.999999999999996."""
    rows = (Trajectory(({"role": "assistant", "content": "a"},)),) * 2
    groups = [
        Group(Prompt(str(i), ()), rows, {"margin": [1.0] * 2, "reward.ensemble": [0.0, 1.0]})
        for i in range(100)
    ]
    for name in ("largest_margins", "small_margins", "diverse"):
        assert len(build("select", {"name": name, "share": 0.07})(groups, Context())) == 7, name
    ctx = Context()
    build("select", {"name": "preference_strength", "flip": 0.29})(groups, ctx)
    assert ctx.counts["labels corrected"] == 29
