"""The HTML report and its plots: complete, self-contained, escaped, deterministic."""

import base64
import hashlib
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from ratchet.components.evaluation import plots
from ratchet.components.evaluation.certificate import certify
from ratchet.components.evaluation.certificate_statistics import share
from ratchet.components.evaluation.gates import check_gates
from ratchet.components.evaluation.report import win_rates, write_report
from ratchet.components.evaluation.report_format import number, pictured
from ratchet.components.evaluation.report_headline import headline
from ratchet.components.evaluation.results import headline as summary
from ratchet.components.evaluation.transcripts import prepared


class Wellformed(HTMLParser):
    """HTML parser that fails on unbalanced tags and collects the tags it saw."""

    EMPTY = ("meta", "img", "br", "input")

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data.replace("\u00a0", " "))


def results():
    rng = np.random.default_rng(0)
    delta, lengths = rng.normal(0.6, 1, 200), rng.integers(5, 40, (200, 2))
    scores = np.stack([delta, np.zeros(200)], 1)
    metrics = {"perplexity_ratio.mean": 1.043, "perplexity_ratio.low": 1.01, "perplexity_ratio.high": 1.08}
    for name, mean in (
        ("win_rate_vs_sft", 0.61),
        ("win_rate_lc_vs_sft", 0.58),
        ("win_rate_vs_base", 0.7),
        ("win_rate_reward_model_vs_sft", 0.83),
    ):
        metrics |= {
            f"{name}.mean": mean,
            f"{name}.low": mean - 0.06,
            f"{name}.high": mean + 0.06,
            f"{name}.n": 120,
        }
    arm = {
        "length": 14.2,
        "truncated": 0.03,
        "distinct_2": 0.81,
        "perplexity": 21.4,
        "gold": 0.12,
        "reward.reward_model": 0.4,
    }
    return {
        "recipe": "chat",
        "about": "Online iterative DPO.",
        "metrics": metrics,
        "arms": {"base": arm, "SFT": {**arm, "length": 11.0}, "final": {**arm, "gold": 0.3}},
        "rounds": [
            {
                "round": i,
                "reward.reward_model": 0.2 * i,
                "reward": 0.2 * i,
                "gold": 0.1 * i,
                "kl": 1.5 * (i - 1),
                "length": 11 + i,
                "distinct_2": 0.8 - 0.01 * i,
            }
            for i in (1, 2, 3)
        ],
        "verdict": check_gates(
            metrics, {"win_rate_vs_sft": {"over": 0.5, "interval": True}, "perplexity_ratio": {"below": 1.3}}
        ),
        "certificates": {
            "reward_model": certify(
                scores=scores,
                lengths=lengths,
                trained=scores[:8],
                alone=scores[:8],
                conversations=40,
                padding_side="right",
                padding_difference={"left": 0.5, "right": 3e-7},
                cross_validated=share(0.5028, 208),
            )
        },
        "gold": {
            "pairs": 300,
            "conversations": 200,
            "accuracy": {"mean": 0.58, "low": 0.51, "high": 0.65},
            "matched_length": None,
            "length_controlled": {"mean": 0.57, "low": 0.5, "high": 0.64},
        },
        "lengths": {"SFT": rng.poisson(11, 100).tolist(), "final": rng.poisson(14, 100).tolist()},
        "curves": {
            "sft": [(i, 3 / (i + 1)) for i in range(10)],
            "round 1": [(i, 0.69 - i / 50) for i in range(10)],
        },
        "transcripts": [
            {
                "prompt": [
                    {"role": "system", "content": "What if?"},
                    {"role": "user", "content": "hi <b>there</b>"},
                ],
                "human": "hey",
                "answers": {"SFT": "<script>alert(1)</script>", "final": " "},
                "gold": {"SFT": -0.2, "final": 0.1},
            }
        ],
        "lineage": [{"name": "curated", "digest": "ab" * 32, "rows": 1200}],
        "configuration": {"rounds": 3, "note": "</pre><i>"},
    }


def test_report_is_self_contained_and_escaped(tmp_path):
    path = write_report(tmp_path, results())
    page = path.read_text()
    parser = Wellformed()
    parser.feed(page)
    assert parser.open == []
    images = [attrs["src"] for tag, attrs in parser.seen if tag == "img"]
    assert len(images) == 6 and all(src.startswith("data:image/png;base64,") for src in images)
    assert not any(tag in ("link", "iframe") for tag, _ in parser.seen) and not re.search(r"https?://", page)
    assert [attrs for tag, attrs in parser.seen if tag == "script"] == [{}], "the page's own script alone"
    digest = base64.b64encode(
        hashlib.sha256(re.search(r"<script>(.*?)</script>", page, re.S)[1].encode()).digest()
    ).decode()
    assert (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    ), "a browser runs no other"
    assert "&lt;script&gt;alert(1)" in page and "hi &lt;b&gt;there" in page and "&lt;/pre&gt;" in page
    text = " ".join(parser.text)
    for shown in (
        "61.0% of cases",
        "55.0% to 67.0%, 120 prompts",
        "rose by 4.3%",
        "win_rate_vs_sft: passed",
        "ab" * 32,
        "(empty)",
        "the reply in the data",
        "The certificate of the reward model",
        "from 40 conversations",
        "50.3% [43.5%, 57.0%]",
        "padded on the left",
        "5.0e-01",
        "3.0e-07",
        "not safe to pad on the left, while its tokenizer pads on the right",
    ):
        assert shown in text
    assert {p.name for p in (tmp_path / "plots").iterdir()} == {
        f"{n}.png" for n in ("win_rates", "rounds", "lengths", "calibration", "length_bias", "training")
    }


def test_every_member_of_an_ensemble_shows_its_certificate(tmp_path):
    whole = results()
    one = whole["certificates"]["reward_model"]
    failed = {
        **one,
        "passed": False,
        "reasons": ["held-out pairs is 2, expected at least 9"],
        "padding_difference": None,
    }
    page = write_report(
        tmp_path, {"certificates": {"reward_model_1": one, "reward_model_2": failed}}
    ).read_text()
    for shown in (
        "The certificate of reward model 1",
        "The certificate of reward model 2",
        "held-out pairs is 2",
    ):
        assert page.count(shown) == 1
    assert page.count("padded on the left by transformers") == 1 and page.count("data:image/png") == 4
    assert {p.name for p in (tmp_path / "plots").iterdir()} == {
        f"{n}_reward_model_{i}.png" for n in ("calibration", "length_bias") for i in (1, 2)
    }


def test_a_certificate_without_a_required_accuracy_is_not_called_passed(tmp_path):
    whole = results()
    one = whole["certificates"]["reward_model"] | {"limits": {"min_accuracy": None}, "notes": ["a caveat"]}
    page = write_report(tmp_path, {"certificates": {"reward_model": one}}).read_text()
    assert '<span class="badge ">accuracy not required</span>' in page and "a caveat" in page
    one["limits"] = {"min_accuracy": 0.5}
    page = write_report(tmp_path, {"certificates": {"reward_model": one}}).read_text()
    assert '<span class="badge passed">passed</span>' in page


def test_same_results_same_bytes(tmp_path):
    assert (
        write_report(tmp_path / "a", results()).read_bytes()
        == write_report(tmp_path / "b", results()).read_bytes()
    )


def test_rounds_are_columns(tmp_path):
    page = " ".join(write_report(tmp_path, results()).read_text().split())
    assert "<table> <tr><th>round</th><th>1</th><th>2</th><th>3</th></tr>" in page
    assert (
        '<tr><td>length, tokens</td><td data-th="round 1">12.0</td><td data-th="round 2">13.0</td><td '
        'data-th="round 3">14.0</td></tr>' in page
    )
    assert "human" not in page, "the data may be anybody's"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_no_table_or_picture_is_wider_than_the_screen(tmp_path, width):
    whole = verified_results()
    more = dict.fromkeys(
        (
            "responses",
            "truncated",
            "entropy",
            "distinct_1",
            "equal_rewards",
            "gold.error",
            "reward.length_controlled",
        ),
        0.123,
    )
    whole["rounds"] = [row | more for row in whole["rounds"]]
    page = re.sub(
        r"<meta http-equiv[^>]*>", "", write_report(tmp_path, whole).read_text()
    )  # which refuses the script that measures
    (tmp_path / "page.html").write_text(
        page.replace(
            "</body>",
            """<script>addEventListener("load", () => { parent.document.title = "wide: " +
        [...document.querySelectorAll("html, .scroll, .picture, pre")].filter(e => e.scrollWidth > e.clientWidth).map(e => e.closest("section")?.textContent.slice(0, 80)) + ";" })</script></body>""",  # noqa: E501
        )
    )
    (tmp_path / "frame.html").write_text(
        f'<title></title><iframe src="page.html" style="border: 0; width: {width}px; height: 900px"></iframe>'
    )
    shown = subprocess.run(
        [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--allow-file-access-from-files",
            "--dump-dom",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"file://{tmp_path}/frame.html",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    assert "<title>wide: ;</title>" in shown, re.findall("<title>.*?</title>", shown, re.S)


def test_differences_are_shown_with_their_intervals_and_prompts(tmp_path):
    def ends(name, mean, low, high):
        return {f"{name}.mean": mean, f"{name}.low": low, f"{name}.high": high, f"{name}.n": 18}

    metrics = {
        **ends("win_rate_reward_model_vs_base", 0.6, 0.4, 0.8),
        **ends("reward.reward_model_gain_vs_base", 0.1, -0.076, 0.366),
        **ends("reward.instructions_gain_vs_sft", 0.2, 0.1, 0.3),
    }
    arms = {arm: {"reward.instructions": 0.5} for arm in ("base", "SFT", "final")}
    whole = {"arms": arms, "metrics": metrics, "measure": "reward.instructions"}
    page = write_report(tmp_path, whole).read_text().replace("\xa0", " ")
    for shown in (
        "on the same 18 held-out prompts",
        "<td>reward (reward_model), final − base</td><td>+0.100 [-0.076, +0.366]</td>",
        "final − SFT</td><td>+20.0 points [+10.0, +30.0]</td>",
        "Without a gold measure",
    ):
        assert shown in page
    judged = write_report(tmp_path, results()).read_text()
    assert "The gold measure shares neither" in judged and "Without a gold measure" not in judged


def test_missing_parts_omit_their_sections(tmp_path):
    page = write_report(
        tmp_path, {"recipe": "dpo", "arms": {"final": {"length": 3.0, "odd": None}}, "metrics": {}}
    ).read_text()
    assert (
        "Win rates" not in page
        and "<script>" not in page
        and "certificate" not in page
        and "Round by round" not in page
    )
    assert "by no gold or verified measure" in page and "–" in page
    write_report(tmp_path, {})


def around(mean, width=0.05, **more):
    return {"mean": mean, "low": mean - width, "high": mean + width, **more}


def verified_results():
    """Evaluation results of a run with a verifier."""
    whole = results()
    arms = {"base": around(0.3, n=60), "SFT": around(0.4, n=60), "final": around(0.55, n=60)}
    whole["metrics"] |= {
        f"reward.instructions_gain_vs_{against}.{end}": value
        for against, mean in (("sft", 0.15), ("base", 0.25))
        for end, value in around(mean, n=256).items()
    }
    whole["certificates"]["reward_model"] |= {
        "by_kind": {"new_family": around(0.61)},
        "best_of_n": {"1": around(0.38), "2": around(0.43), "16": around(0.58), "rises": around(0.2)},
    }
    return {
        **whole,
        "measure": "reward.instructions",
        "measure_name": "verified instructions",
        "pairs_from": "verifier",
        "slices": {
            "family": {"at_most_words": arms, "<b>": {"final": around(0.5)}},
            "instruction.kind": {"seen": arms},
        },
        "proxy_gold": [
            {"round": i, "proxy": 0.4 * i, "gold": 0.3 + 0.05 * i, "gold_low": 0.2, "gold_high": 0.6}
            for i in (1, 2, 3)
        ],
        "quality": {"perplexity": {"base": around(19.0, 0.5), "final": around(21.4, 0.5)}},
        "quality_vs_base": {"perplexity": around(2.4, 1.0)},
        "transcripts": [
            talk("10110"[i], "00111"[i], f"answer {i}", family=f)
            for i, f in enumerate(("a_b", "a_b", "c", "<i>", '"x'))
        ],
    }


def talk(sft, final, text, **tags):
    return {
        "prompt": [{"role": "user", "content": "<q>"}],
        "answers": {"SFT": text, "final": text},
        "tags": tags,
        "verified": {"SFT": sft == "1", "final": final == "1"},
    }


def test_verified_run_shows_slices_proxy_quality_and_best_of_n(tmp_path):
    page = write_report(tmp_path, verified_results()).read_text()
    parser = Wellformed()
    parser.feed(page)
    assert parser.open == [] and "<td>&lt;b&gt;</td>" in page
    text = " ".join(" ".join(parser.text).split())
    for shown in (
        "Verified instructions by family",
        "at most words 60",
        "55.0% [50.0%, 60.0%]",
        "Verified instructions by instruction kind",
        "Reward model against the truth",
        "35.0% [20.0%, 60.0%]",
        "21.40 [20.90, 21.90]",
        "+2.40 [+1.40, +3.40]",
        "accuracy on new family pairs",
        "61.0% [56.0%, 66.0%]",
        "+20.0 points [+15.0, +25.0]",
        "pairs, each ordered by the verifier",
        "the verifier's choice is the longer one",
    ):
        assert shown in text, shown
    assert "200 held-out preference pairs" not in text and "preferred answer" not in text
    assert {p.stem for p in (tmp_path / "plots").iterdir()} >= {
        "slices_family",
        "slices_instruction.kind",
        "proxy_gold",
        "best_of_n",
    }


def test_a_recipe_without_gates_has_failed_none(tmp_path):
    none = {"passed": False, "reasons": ["the recipe defines no gates"], "gates": {}}
    page = write_report(tmp_path, {"recipe": "mine", "verdict": none}).read_text()
    assert '<span class="badge">no gates</span>' in page and "not passed" not in page


def test_transcripts_state_whether_the_answer_passes(tmp_path):
    parser = Wellformed()
    parser.feed(write_report(tmp_path, verified_results()).read_text())
    assert parser.text.count("✓ passes") == 3 + 3 and parser.text.count("✗ fails") == 2 + 2


def test_transcripts_carry_what_the_filters_need_with_counts(tmp_path):
    page = write_report(tmp_path, verified_results()).read_text()
    parser = Wellformed()
    parser.feed(page)
    talks = [attrs for tag, attrs in parser.seen if tag == "article"]
    assert [t["data-fits"] for t in talks] == ["1", "2", "3", "3", "0"] and [
        t["data-tag-0"] for t in talks
    ] == ["a_b", "a_b", "c", "<i>", '"x']
    options = " ".join(" ".join(parser.text).split())
    for shown in (
        "all (5)",
        "final passes where SFT fails (1)",
        "final fails where SFT passes (1)",
        "all fail (1)",
        "all pass (2)",
        "a b (2)",
        "c (1)",
        "<i> (1)",
    ):
        assert shown in options, shown
    [form] = [attrs for tag, attrs in parser.seen if tag == "form"]
    assert "hidden" in form, "the script shows it"
    assert "the first ones, not chosen by anybody" in options


def test_filter_patterns_without_a_transcript_are_omitted():
    plain = {"prompt": [], "answers": {"final": "x"}}
    assert prepared([plain])["patterns"] == [] and prepared([])["talks"] == []
    assert prepared([plain, {**plain, "verified": {"final": False}}])["patterns"] == [("final fails", 1)]
    partly = prepared(
        [{**plain, "verified": {"SFT": True}}, {**plain, "verified": {"SFT": False, "final": True}}]
    )
    assert partly["patterns"] == [("final passes where SFT fails", 1), ("all pass", 1)]


@pytest.mark.parametrize(
    ("sft", "base", "words"),
    [
        (
            0.1,
            0.2,
            "better than the SFT policy (+10.0 points [+5.0, +15.0]) and better than the base model "
            "(+20.0 points",
        ),
        (
            -0.1,
            0.01,
            "worse than the SFT policy (-10.0 points [-15.0, -5.0]) and not distinguishable from the "
            "base model (+1.0 points",
        ),
        (None, 0.1, "final policy is better than the base model (+10.0 points"),
        (0.05, None, "not distinguishable from the SFT policy (+5.0 points"),
    ],
)
def test_headline_of_a_measure_follows_its_intervals(sft, base, words):
    gains = {
        f"reward.x_gain_vs_{against}.{end}": value
        for against, mean in (("sft", sft), ("base", base))
        if mean is not None
        for end, value in around(mean).items()
    }
    line = headline(
        {
            "metrics": {**gains, "win_rate_vs_sft.mean": 0.6},
            "measure": "reward.x",
            "arms": {"final": {"reward.x": 0.5}},
        }
    )
    assert (
        words in line.replace("\u00a0", " ")
        and line.startswith("By reward (x) the final policy")
        and line.endswith("Rates: final 50.0%.")
    )


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0.52, 0.6, "better than"), (0.4, 0.49, "worse than"), (0.45, 0.55, "not distinguishable")],
)
def test_headline_follows_the_win_rate_interval(low, high, words):
    metrics = {
        "win_rate_vs_sft.mean": (low + high) / 2,
        "win_rate_vs_sft.low": low,
        "win_rate_vs_sft.high": high,
    }
    assert words in headline({"metrics": metrics})


def test_returns_are_numbers_and_no_rates(tmp_path):
    """A maze's return of 1.9 is not 190 per cent; a rate in every arm and prompt is."""
    gain = {"mean": 1.2, "low": 1.0, "high": 1.4, "n": 64}
    found = {
        "measure": "reward.environment",
        "metrics": {"final.reward.environment": 1.9}
        | {f"reward.environment_gain_vs_base.{end}": value for end, value in gain.items()},
        "arms": {"base": {"reward.environment": 0.7}, "final": {"reward.environment": 1.9}},
        "slices": {"size": {"3": {"final": {"mean": 1.9, "low": 1.7, "high": 2.1, "n": 64}}}},
    }
    page = write_report(tmp_path, found).read_text().replace("\u00a0", " ")
    assert "better than the base model (+1.200 [+1.000, +1.400])" in page
    assert "Means: base 0.700, final 1.900" in page and "1.900 [1.700, 2.100]" in page
    assert "190" not in headline(found) and "190.0%" not in page
    assert summary(found) == "environment 1.900, +1.200 over base [1.000, 1.400]"
    rate = {**found, "arms": {"final": {"reward.environment": 0.9}}}
    assert "Rates: final 90.0%" in headline(rate)
    assert "Means: final 0.900" in headline({**rate, "per_prompt": {"final.reward.environment": [-0.1, 1.9]}})


def test_names_and_numbers_for_readers():
    assert list(win_rates(results()["metrics"])) == [
        "final vs SFT, gold measure",
        "final vs SFT, gold measure, equal length",
        "final vs SFT, reward model",
        "final vs base, gold measure",
    ]
    assert (
        number(0.031, "truncated"),
        number(21.44, "perplexity"),
        number(None),
        number("ok"),
        number(0.0004),
    ) == ("3.1%", "21.44", "–", "ok", "0.0004")


def test_figures_are_valid_images_of_their_numbers(tmp_path):
    rows = {"final vs SFT": {"mean": 0.61, "low": 0.55, "high": 0.67}}
    vector = plots.win_rates(rows, tmp_path / "w.svg")
    assert "<svg" in vector.read_text()
    assert plots.win_rates(rows, tmp_path / "w.png").read_bytes()[:4] == b"\x89PNG"
    assert (
        plots.win_rates({"x": {"mean": 0.2, "low": 0.1, "high": 0.3}}, tmp_path / "v.svg").read_bytes()
        != vector.read_bytes()
    )


def test_the_lengths_of_more_arms_than_colours_are_all_drawn(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: drawn.append(figure) or path)
    plots.lengths({f"arm {i}": [5.0, 6.0 + i] for i in range(7)}, tmp_path / "lengths.png")
    assert len(drawn[0].axes[0].get_legend().get_texts()) == 7


def test_report_lists_sources_with_their_counts(tmp_path):
    sources = {
        "<b>chat": {"source": "path:chat.jsonl", "records": 120, "groups": {"sft": 90, "evaluate": 30}},
        "code": {"source": "path:code.jsonl", "records": 7, "groups": {}},
    }
    page = write_report(tmp_path, {"sources": sources}).read_text()
    assert (
        "The sources of its data" in page
        and "&lt;b&gt;chat" in page
        and ">120</td>" in page
        and "sft 90, evaluate 30" in page
        and ">none</td>" in page
    )
    assert "The sources of its data" not in write_report(tmp_path, {"sources": None}).read_text()


def test_analyses_show_their_intervals_or_why_they_have_none(tmp_path):
    page = write_report(
        tmp_path,
        results()
        | {
            "reports": {"gap": {"mean": -0.25, "low": -0.5, "high": 0.0, "n": 4}},
            "undefined": {"recovered": "nothing was lost <b>"},
            "configuration": {"evaluate": {"reports": [{"name": "gap", "arm": "policy", "other": "base"}]}},
        },
    ).read_text()
    assert "gap: arm policy, other base" in page
    assert "-0.250 [-0.500," in page and "not defined: nothing was lost &lt;b&gt;" in page


def test_marks_of_images_become_pictures_and_nothing_else_does() -> None:
    png, name = "data:image/png;base64,iVBORw0KGgo=", "0123456789abcdef"
    text = f"<b>Look</b> <image:{name}>"
    assert pictured(text, {name: png}) == f'&lt;b&gt;Look&lt;/b&gt; <img src="{png}" alt="image {name}">'
    for url in (
        "https://example.org/a.png",
        'data:image/png;base64,AA" onerror="x',
        "data:text/html;base64,AAAA",
    ):
        assert "<img" not in pictured(text, {name: url}) and "&lt;image:" in pictured(text, {name: url})
    assert pictured(text, None) == f"&lt;b&gt;Look&lt;/b&gt; &lt;image:{name}&gt;"
