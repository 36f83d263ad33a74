"""The gold measure on synthetic data with known preferences and a small random BERT as encoder."""

import json
import shutil

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from transformers import BertConfig, BertModel, BertTokenizerFast

from ratchet.components.errors import ContractError, DataError, SourceError
from ratchet.components.evaluation.encoder import Encoder
from ratchet.components.evaluation.gold import GoldMeasure, examine, train_gold
from ratchet.components.evaluation.linear import bradley_terry
from ratchet.components.types import Group, Prompt, Trajectory

DULL, WARM = ["ok", "fine", "no", "whatever", "bye"], ["lovely", "wonderful", "tell", "story", "curious"]
PLAIN = ["the", "dog", "house", "rain", "music", "today", "walk", "bread"]


def say(role, content):
    return {"role": role, "content": content}


@pytest.fixture(scope="module")
def encoder_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("encoder")
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *DULL,
        *WARM,
        *PLAIN,
        *(f"topic{i}" for i in range(12)),
    ]
    (path / "words.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(str(path / "words.txt")).save_pretrained(path)
    torch.manual_seed(0)
    BertModel(
        BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            initializer_range=0.5,
        )
    ).save_pretrained(path)
    return path


def window(rng, warm, turns=4):
    def text():
        return " ".join(
            rng.choice(PLAIN, 4).tolist() + rng.choice(WARM if rng.random() < warm else DULL, 2).tolist()
        )

    return tuple(say("user" if i % 2 == 0 else "assistant", text()) for i in range(turns))


def pairs(count, topics, seed):
    rng = np.random.default_rng(seed)
    groups = []
    for i in range(count):
        topic = topics[i % len(topics)]
        prompt = Prompt(f"{topic}-{i}", (say("system", topic),), meta={"topic": topic})
        groups.append(Group(prompt, (Trajectory(window(rng, 0.7)), Trajectory(window(rng, 0.3)))))
    return groups


@pytest.fixture(scope="module")
def trained(encoder_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("gold")
    train, held_out = pairs(240, [f"topic{i}" for i in range(8)], 0), pairs(80, ["topic9", "topic10"], 1)
    return out, train_gold(train, held_out, encoder_path, out)


def test_gold_measure_generalises_to_new_topics(trained):
    _, certificate = trained
    assert certificate["accuracy"]["low"] > 0.6 and certificate["length_controlled"]["mean"] > 0.6
    assert certificate["conversations"] == 160 and certificate["accuracy"]["n"] == 80
    assert certificate["cross_validated"] > 0.6 and certificate["topics_fitted"] == 8


def test_gold_measure_scores_one_reply_after_a_fixed_context(trained, encoder_path):
    measure = GoldMeasure.load(trained[0], encoder_path)
    context = [
        say("system", "topic3"),
        say("user", "the dog today walk"),
        say("assistant", "rain music"),
        say("user", "bread house"),
    ]
    better, worse = (
        [*context, say("assistant", "tell lovely story")],
        [*context, say("assistant", "whatever bye no")],
    )
    for controlled in (False, True):
        whole = measure.score([better, worse], length_controlled=controlled)
        alone = measure.score_replies([better, worse], length_controlled=controlled)
        assert whole[0] > whole[1] and alone[0] > alone[1] and all(isinstance(s, float) for s in whole)
        # four turns: the whole is the mean, so the gap of the replies is diluted by exactly that
        assert whole[0] - whole[1] == pytest.approx((alone[0] - alone[1]) / 4)
    assert measure.score([worse, better]) == pytest.approx(measure.score([better, worse])[::-1])


def relevant_pairs(count, topics, seed):
    """The chosen reply names the topic of the prompt, the rejected one another topic; without the prompt
    neither is better.
    """
    rng = np.random.default_rng(seed)
    pairs = []
    for i in range(count):
        topic, other = rng.choice(topics, 2, replace=False)
        filler = " ".join(rng.choice(PLAIN, 2))
        sides = [
            Trajectory((say("user", f"tell {topic} {topic}"), say("assistant", f"{filler} {named} {named}")))
            for named in (topic, other)
        ]
        pairs.append(Group(Prompt(f"{topic}-{i}", (), meta={"topic": str(topic)}), tuple(sides)))
    return pairs


def test_gold_measure_uses_the_prompt(encoder_path, tmp_path):
    topics = [f"topic{i}" for i in range(12)]
    certificate = train_gold(
        relevant_pairs(600, topics, 0), relevant_pairs(200, topics, 1), encoder_path, tmp_path
    )
    assert certificate["passed"] and certificate["accuracy"]["mean"] > 0.6
    measure = GoldMeasure.load(tmp_path, encoder_path)
    scores = {
        (topic, named): measure.score_replies(
            [[say("user", f"tell {topic} {topic}"), say("assistant", f"rain {named} {named}")]]
        )[0]
        for topic in topics[:4]
        for named in topics[:4]
    }
    right = [scores[a, a] > scores[a, b] for a in topics[:4] for b in topics[:4] if a != b]
    assert np.mean(right) > 0.6, "the same replies, ordered by the prompt"


def test_a_measure_at_chance_fails_its_certificate(encoder_path, tmp_path):
    coin = [
        Group(g.prompt, g.trajectories[:: 1 if i % 2 else -1])
        for i, g in enumerate(pairs(200, [f"topic{i}" for i in range(8)], 0))
    ]
    certificate = train_gold(coin[:120], coin[120:], encoder_path, tmp_path)
    assert (
        not certificate["passed"]
        and "expected a lower bound above 50.0% (chance)" in certificate["reasons"][0]
    )


def test_score_is_independent_of_the_batch_and_of_reloading(trained, encoder_path):
    one, two = (GoldMeasure.load(trained[0], encoder_path) for _ in range(2))
    talks = [list(window(np.random.default_rng(i), 0.5, 2 + 2 * (i % 3))) for i in range(9)]
    together = one.score(talks)
    assert [two.score([talk])[0] for talk in talks] == pytest.approx(together, abs=1e-4)
    assert one.certificate == trained[1] == json.loads((trained[0] / "gold.json").read_text())["certificate"]


def test_training_is_deterministic(trained, encoder_path, tmp_path):
    """Also with an encoder downloaded at another time, which differs only in its manifest's timestamp."""
    train, held_out = pairs(240, [f"topic{i}" for i in range(8)], 0), pairs(80, ["topic9", "topic10"], 1)
    fetched = tmp_path / "encoder"
    shutil.copytree(encoder_path, fetched)
    (fetched / "manifest.json").write_text('{"meta": {"seconds": 3.1}}')
    train_gold(train, held_out, fetched, tmp_path)
    assert (tmp_path / "gold.json").read_bytes() == (trained[0] / "gold.json").read_bytes()


def test_length_control_removes_length(encoder_path, tmp_path):
    """On data that prefers longer replies, the raw measure follows length and the controlled one hardly."""
    rng = np.random.default_rng(0)

    def talk(words):
        return (say("user", "the dog"), say("assistant", " ".join(rng.choice(PLAIN, words))))

    groups = [
        Group(
            Prompt(str(i), (say("system", f"topic{i % 8}"),)),
            (Trajectory(talk(int(n) + 4)), Trajectory(talk(int(n)))),
        )
        for i, n in enumerate(rng.integers(2, 12, 200))
    ]
    certificate = train_gold(groups[:150], groups[150:], encoder_path, tmp_path)
    assert certificate["length"]["longer_preferred"]["mean"] == 1 and certificate["accuracy"]["mean"] > 0.8
    assert certificate["length_controlled"]["mean"] < certificate["accuracy"]["mean"] - 0.1


def test_bradley_terry_is_scikit_learns_logistic_regression():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5), loc=[0.5, 0, -0.3, 0, 0])
    ours = bradley_terry(x, penalty=0.1)
    oracle = LogisticRegression(fit_intercept=False, C=1 / (2 * 300 * 0.1), tol=1e-9, max_iter=1000)
    oracle.fit(np.r_[x, -x], np.r_[np.ones(300), np.zeros(300)])
    assert ours == pytest.approx(oracle.coef_[0], abs=1e-4)


def test_embeddings_are_mean_pooled_unit_vectors_whatever_the_batch(encoder_path):
    encoder = Encoder(encoder_path)
    texts = ["the dog", "rain music today walk bread house", ""]
    vectors = encoder(texts)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(3), abs=1e-5)
    assert vectors[:1] == pytest.approx(Encoder(encoder_path)(texts[:1]), abs=1e-5)
    model = BertModel.from_pretrained(encoder_path).eval()
    with torch.no_grad():
        hidden = (
            model(**BertTokenizerFast.from_pretrained(encoder_path)(texts[0], return_tensors="pt"))
            .last_hidden_state[0]
            .mean(0)
        )
    assert vectors[0] == pytest.approx((hidden / hidden.norm()).numpy(), abs=1e-5)


def test_wrong_inputs_are_named(trained, encoder_path, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(encoder_path, other)
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    with pytest.raises(ContractError, match="encoder"):
        GoldMeasure.load(trained[0], other)
    with pytest.raises(SourceError, match="gold"):
        GoldMeasure.load(tmp_path, encoder_path)
    with pytest.raises(SourceError, match="sentence encoder"):
        Encoder(tmp_path)
    single = [Group(Prompt("lonely", ()), (Trajectory((say("assistant", "ok"),)),))]
    for wrong, name in (([], "there are none"), (single, "lonely")):
        with pytest.raises(DataError, match=name):
            train_gold(wrong, wrong, encoder_path, tmp_path)
    with pytest.raises(DataError, match="at least one"):
        GoldMeasure.load(trained[0], encoder_path).score([[say("system", "topic1")]])


def test_alike_pairs_of_a_prompt_count_less():
    """The twelve prompts of `test_pairs_of_a_prompt_that_are_alike_count_less` in test_certificate.py."""

    class Words:
        def score(self, conversations, *, length_controlled=False):
            return [float(messages[-1]["content"].split()[0]) for messages in conversations]

    def pair(i):
        answers = (f"{float(i < 18)} a {i}", f"0.5 b {i}")
        sides = tuple(Trajectory((say("assistant", text),)) for text in answers)
        return Group(Prompt("p", (say("user", f"question {i // 2}"),)), sides)

    found = examine(Words(), [pair(i) for i in range(24)])
    assert found["accuracy"]["n"] == found["matched_length"]["n"] == found["length_controlled"]["n"] == 8
