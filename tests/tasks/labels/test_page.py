"""The labelling page in a real browser: keys, escaping, double clicks, a dead server, phone and zoom."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.labels.labels import Item, read_history, read_labels
from ratchet.components.labels.queue import Queue
from ratchet.components.labels.settings import Settings, make_queue
from ratchet.tasks.labels.server import links, make_app, serving
from ratchet.tasks.labels.tokens import issue

pytestmark = pytest.mark.slow
SHOTS = os.environ.get("RATCHET_SCREENSHOTS")
"""A folder for pictures of the page, to look at."""
EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
SIZES = {"desk": (1280, 800, 1), "phone": (390, 844, 2), "zoom": (640, 400, 2)}
"""Width and height in CSS pixels, device pixels each; 1280 pixels at a zoom of 200 % are 640."""
QUESTION = "How do I get my cat to drink more water? The vet says her kidneys need it."
ANSWERS = (
    "Put several bowls around the house, away from her food, and change the water every day. Many cats like "
    "running water, so a small fountain helps.\n\nYou can also:\n- mix a spoon of water into wet food\n"
    "- use a wide, shallow bowl that does not touch her whiskers\n- offer ice cubes of unsalted broth",
    f"Cats drink when they are thirsty. {EVIL}",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    items = [
        Item(
            f"i{i}",
            [
                {"role": "user", "content": "My cat is twelve. Any advice?"},
                {"role": "assistant", "content": "Happy to help! What would you like to know?"},
                {"role": "user", "content": QUESTION if i % 2 == 0 else f"{EVIL} {i}"},
            ],
            ANSWERS if i % 2 == 0 else [f"{EVIL} a", "w" * 300],
        )
        for i in range(5)
    ]
    settings = Settings(
        title="Which answer helps more?",
        guidelines="Prefer the answer that you would rather get yourself. Length is no merit.",
        aspects=("helpful", "honest"),
    )
    return make_queue(tmp_path, items, settings)


def page_of(browser: Any, base: str, size: str = "desk", link: str = "") -> Any:
    width, height, pixels = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, device_scale_factor=pixels, has_touch=size == "phone"
    )
    page = context.new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.goto(link or f"{base}/#name=ann")
    page.wait_for_selector("#task:not([hidden])")
    return page


def wait(condition: Any, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def test_keys_label_undo_and_end_the_queue(browser: Any, folder: Path) -> None:
    with Queue(folder) as queue, serving(make_app(queue)) as base:
        page = page_of(browser, base)
        for number, key in enumerate(("1", "2", "t", "b"), start=1):
            page.keyboard.press(key)
            wait(lambda number=number: len(read_labels(folder)) == number)
            page.wait_for_function(
                "n => document.querySelector('#count').textContent.includes(`${n} yours`)", arg=number
            )
        assert [label.verdict for label in read_labels(folder)] == ["choice", "choice", "tie", "both_bad"]
        for place, label in enumerate(read_labels(folder)[:2]):
            assert label.choice == label.order[place]
        page.keyboard.press("u")
        wait(lambda: len(read_labels(folder)) == 3)
        page.wait_for_function("() => document.querySelector('#status').textContent.startsWith('Undone')")
        page.keyboard.press("r")
        page.keyboard.type("12tbsu: keys are words here")
        page.get_by_role("radio", name="2", exact=True).first.check()
        page.keyboard.press("Escape")
        page.keyboard.press("2")
        wait(lambda: len(read_labels(folder)) == 4)
        label = read_labels(folder)[-1]
        assert label.reason == "12tbsu: keys are words here"
        assert label.aspects == {"helpful": label.order[1]} and label.choice == label.order[1]
        page.wait_for_function("() => document.querySelector('#count').textContent.includes('4 yours')")
        page.keyboard.press("s")
        page.wait_for_selector("#empty:not([hidden])")
        assert page.problems == []


@pytest.mark.parametrize("size", ["desk", "phone"])
def test_the_reason_opens_above_the_buttons(browser: Any, folder: Path, size: str) -> None:
    """Focus is not hidden by the sticky footer (WCAG 2.4.11)."""
    with Queue(folder) as queue, serving(make_app(queue)) as base:
        page = page_of(browser, base, size)
        page.keyboard.press("r")
        page.wait_for_function("() => document.activeElement.id === 'reason'")
        field, footer = (page.query_selector(one).bounding_box() for one in ("#reason", "footer"))
        assert field["y"] >= 0 and field["y"] + field["height"] <= footer["y"]


def test_model_output_is_text(browser: Any, folder: Path) -> None:
    with Queue(folder) as queue, serving(make_app(queue)) as base:
        page = page_of(browser, base)
        page.keyboard.press("1")
        page.wait_for_function("() => document.querySelector('#count').textContent.includes('1 yours')")
        assert EVIL in page.inner_text("#conversation") and EVIL in page.inner_text("#answers")
        assert page.query_selector("#task img, #task script") is None
        assert page.evaluate("window.hacked") is None
        injected = "() => { document.body.innerHTML += %r; const made = document.createElement('script');"
        injected += " made.textContent = 'window.hacked = 1'; document.body.append(made); }"
        page.evaluate(injected % EVIL)
        page.wait_for_timeout(100)
        assert page.evaluate("window.hacked") is None, "the policy stops even markup that got in"


def test_a_double_click_stores_one_label(browser: Any, folder: Path) -> None:
    with Queue(folder) as queue, serving(make_app(queue)) as base:
        page = page_of(browser, base)
        page.evaluate(
            "() => { for (let i = 0; i < 5; i++) document.querySelector('#choices button').click(); }"
        )
        wait(lambda: read_labels(folder))
        page.wait_for_timeout(300)
        assert len(read_history(folder / "labels.jsonl")) == 1


def test_a_click_survives_a_server_that_is_stopped_and_started_again(browser: Any, folder: Path) -> None:
    with Queue(folder) as queue, serving(make_app(queue)) as base:
        page = page_of(browser, base)
        text = page.inner_text("#answers")
    page.keyboard.press("1")
    page.wait_for_selector("#status.bad")
    assert page.inner_text("#answers") == text and read_labels(folder) == [], "it does not move on"
    with Queue(folder) as queue, serving(make_app(queue), port=int(base.rpartition(":")[2])):
        wait(lambda: len(read_labels(folder)) == 1)
        page.wait_for_function("() => document.querySelector('#count').textContent.includes('1 yours')")


def test_a_label_that_was_not_confirmed_is_sent_again_after_the_page_is_loaded_anew(
    browser: Any, folder: Path
) -> None:
    with Queue(folder) as queue, serving(make_app(queue)) as base:
        page = page_of(browser, base)
        item = queue.next("ann")
        assert item
        second = queue.order(item.id, "ann")[1]
        page.route("**/api/labels", lambda route: route.abort())
        page.keyboard.press("r")
        page.keyboard.type("shorter")
        page.keyboard.press("Escape")
        page.keyboard.press("2")
        page.wait_for_selector("#status.bad")
        page.unroute("**/api/labels")
        page.goto(f"{base}/#name=ben")
        page.wait_for_function("() => document.querySelector('#count').textContent.includes('0 yours')")
        page.keyboard.press("1")
        wait(lambda: [label.annotator for label in read_labels(folder)] == ["ben"])
        page.goto(f"{base}/#name=ann")
        wait(lambda: len(read_labels(folder)) == 2)
        label = read_labels(folder)[-1]
        assert (label.item, label.annotator, label.choice) == (item.id, "ann", second)
        assert label.reason == "shorter"
        page.wait_for_function("() => document.querySelector('#count').textContent.includes('1 yours')")
        page.reload()
        page.wait_for_selector("#task:not([hidden])")
        page.wait_for_timeout(300)
        assert len(read_history(folder / "labels.jsonl")) == 2, "it is sent no third time"
        assert page.problems == []


def test_a_label_is_sent_after_signing_in_again(browser: Any, folder: Path) -> None:
    """The annotator got a new link, which replaces the old one, while the page was open."""
    with Queue(folder) as queue, serving(make_app(queue)) as base:
        page = page_of(browser, base, link=links(base, issue(folder, ["ann"]))["ann"])
        tokens = issue(folder, ["ann"])
        page.keyboard.press("1")
        page.wait_for_selector("#signin:not([hidden])")
        assert read_labels(folder) == []
        page.goto(links(base, tokens)["ann"])
        wait(lambda: [label.annotator for label in read_labels(folder)] == ["ann"])
        page.wait_for_function("() => document.querySelector('#count').textContent.includes('1 yours')")


def test_a_link_signs_in_and_its_token_leaves_the_address(browser: Any, folder: Path) -> None:
    tokens = issue(folder, ["ann"])
    with Queue(folder) as queue, serving(make_app(queue)) as base:
        page = page_of(browser, base, link=links(base, tokens)["ann"])
        assert tokens["ann"] not in page.url
        page.keyboard.press("1")
        wait(lambda: len(read_labels(folder)) == 1)
        wrong = browser.new_context().new_page()
        wrong.goto(f"{base}/#token=wrong")
        wrong.wait_for_selector("#signin:not([hidden])")
        assert "not valid" in wrong.inner_text("#signin-why")


@pytest.mark.parametrize("size", SIZES)
def test_everything_is_in_reach_at_every_size(browser: Any, folder: Path, size: str) -> None:
    """No sideways scrolling; every button within the window and at least 24 pixels high (WCAG 2.5.8)."""
    with Queue(folder) as queue, serving(make_app(queue)) as base:
        page = page_of(browser, base, size)
        for number in range(2):
            wide, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert wide <= window
            for button in page.query_selector_all("#actions button"):
                box = button.bounding_box()
                assert box["x"] >= 0 and box["x"] + box["width"] <= window + 0.5 and box["height"] >= 24
                assert box["y"] + box["height"] <= page.viewport_size["height"] + 0.5
            share = page.evaluate("document.querySelector('footer').offsetHeight / innerHeight")
            assert share < 0.4, "the buttons leave room to read"
            if SHOTS:
                page.screenshot(path=f"{SHOTS}/{size}-{number}.png")
                page.screenshot(path=f"{SHOTS}/{size}-{number}-whole.png", full_page=True)
            page.click("#choices button")
            page.wait_for_function(
                "n => document.querySelector('#count').textContent.includes(`${n} yours`)", arg=number + 1
            )
