"""The labelling page's HTTP interface: authentication, limits, blindness, idempotence, headers."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from ratchet.components.errors import BusyError, RecipeError, ServiceError
from ratchet.components.labels.labels import Item, read_labels
from ratchet.components.labels.queue import Queue
from ratchet.components.labels.settings import Settings, make_queue
from ratchet.flows.cli import app
from ratchet.tasks.labels.guard import MOST_BYTES
from ratchet.tasks.labels.server import make_app, serving
from ratchet.tasks.labels.tokens import digests, holder, issue, revoke, uses_tokens

BAD = "<script>alert(1)</script><img src=x onerror=alert(2)>"
ANN = {"X-Annotator": "ann"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    items = [
        Item(f"i{i}", [{"role": "user", "content": BAD}], [f"{BAD} {i}", "plain"], policy="secret-policy")
        for i in range(3)
    ]
    return make_queue(tmp_path, items, Settings(aspects=("helpful",), title="T"))


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    with Queue(folder) as queue:
        yield TestClient(make_app(queue), base_url="http://127.0.0.1:8765", raise_server_exceptions=False)


def judgement(client: TestClient, **more: Any) -> dict[str, Any]:
    item = client.get("/api/next", headers=ANN).json()["item"]["id"]
    return {"item": item, "verdict": "choice", "position": 1, "seconds": 2.5, **more}


def test_a_judgement_is_stored_by_the_answers_index_and_the_reply_is_the_next_item(
    client: TestClient, folder: Path
) -> None:
    first = client.get("/api/next", headers=ANN).json()
    body = judgement(client, reason=" shorter ", aspects={"helpful": 0})
    reply = client.post("/api/labels", json=body, headers=ANN)
    assert reply.status_code == 200 and reply.json()["item"]["id"] != body["item"]
    (label,) = read_labels(folder)
    answers = [f"{BAD} {body['item'][1:]}", "plain"]
    assert answers[label.choice or 0] == first["item"]["answers"][1]
    assert answers[label.aspects["helpful"]] == first["item"]["answers"][0]
    assert (label.reason, label.seconds, label.annotator) == ("shorter", 2.5, "ann")
    assert reply.json()["progress"] == {"mine": 1, "judged": 1, "wanted": 3, "pace": 2.5}
    assert reply.json()["last"] == body["item"]


def test_the_view_tells_nothing_that_would_unblind_an_annotator(client: TestClient) -> None:
    view = client.get("/api/next", headers=ANN)
    assert set(view.json()["item"]) == {"id", "messages", "answers"}
    assert "secret-policy" not in view.text and "order" not in view.text


def test_a_repeated_request_is_stored_once_and_undo_is_harmless_twice(
    client: TestClient, folder: Path
) -> None:
    body = judgement(client)
    for _ in range(2):
        assert client.post("/api/labels", json=body, headers=ANN).status_code == 200
    assert len((folder / "labels.jsonl").read_text().splitlines()) == 1
    for _ in range(2):
        undone = client.post("/api/undo", json={"item": body["item"]}, headers=ANN).json()
        assert undone["item"]["id"] == body["item"]
    assert read_labels(folder) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"position": 2}, {"position": -1}, {"position": True}, {"position": None}, {"verdict": "tie"},
        {"verdict": "best"}, {"seconds": -1}, {"item": "nothing"}, {"aspects": {"other": 0}},
        {"aspects": {"helpful": 7}}, {"reason": "x" * 4001}, {"choice": 0}, {"reason": 5},
    ],
    ids=lambda one: str(one)[:30],
)  # fmt: skip
def test_an_invalid_judgement_is_refused_and_not_stored(
    client: TestClient, folder: Path, wrong: dict[str, Any]
) -> None:
    reply = client.post("/api/labels", json=judgement(client, **wrong), headers=ANN)
    assert reply.status_code == 422 and "x" * 100 not in reply.text
    assert read_labels(folder) == []


@pytest.mark.parametrize(
    "raw", [b"{", b'{"item": "i0", "verdict": "skip", "seconds": NaN}', b"[]", b'{"item": "\xff"}'], ids=repr
)
def test_a_malformed_body_is_refused(client: TestClient, folder: Path, raw: bytes) -> None:
    reply = client.post("/api/labels", content=raw, headers={**ANN, "Content-Type": "application/json"})
    assert reply.status_code in (400, 422) and read_labels(folder) == []


def test_half_a_character_in_a_reason_is_refused(client: TestClient, folder: Path) -> None:
    raw = b'{"item": "i0", "verdict": "skip", "seconds": 1, "reason": "\\ud800"}'
    reply = client.post("/api/labels", content=raw, headers={**ANN, "Content-Type": "application/json"})
    assert reply.status_code == 422 and read_labels(folder) == []


def test_a_long_body_is_refused_declared_or_not(client: TestClient) -> None:
    large = b"x" * (MOST_BYTES + 1)
    assert client.post("/api/labels", content=large, headers=ANN).status_code == 413
    chunks = (large[i : i + 4096] for i in range(0, len(large), 4096))
    assert client.post("/api/labels", content=chunks, headers=ANN).status_code == 413


def test_an_item_of_another_annotator_is_a_conflict(client: TestClient) -> None:
    body = judgement(client)
    for path, sent in (("/api/labels", body), ("/api/lease", {"item": body["item"]})):
        assert client.post(path, json=sent, headers={"X-Annotator": "ben"}).status_code == 409
        assert client.post(path, json=sent, headers=ANN).status_code in (200, 204)
        client.post("/api/undo", json={"item": body["item"]}, headers=ANN)


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 41, "<b>"])
def test_without_tokens_a_pseudonym_is_needed(client: TestClient, name: str) -> None:
    assert client.get("/api/next", headers={"X-Annotator": name}).status_code == 401


def test_with_tokens_only_a_right_token_is_served(folder: Path) -> None:
    tokens = issue(folder, ["ann", "ben"])
    assert tokens["ann"] not in (folder / "annotators.json").read_text()
    with Queue(folder) as queue:
        client = TestClient(make_app(queue, host="0.0.0.0"))
        assert client.get("/").status_code == 200
        for headers in (
            {}, ANN, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "},
            {"Authorization": f"Basic {tokens['ann']}"}, {"Authorization": tokens["ann"]},
        ):  # fmt: skip
            assert client.get("/api/next", headers=headers).status_code == 401
            for path in ("labels", "undo", "lease"):
                assert client.post(f"/api/{path}", json={}, headers=headers).status_code == 401
        right = {"Authorization": f"Bearer {tokens['ben']}", "X-Annotator": "ann"}
        assert client.get("/api/next", headers=right).json()["annotator"] == "ben"


def test_a_new_token_replaces_the_old_one_and_revoke_deletes_it(folder: Path) -> None:
    issue(folder, ["ann"])
    first = digests(folder)
    issue(folder, ["ann", "ben"])
    assert digests(folder)["ann"] != first["ann"]
    revoke(folder, "ann")
    assert set(digests(folder)) == {"ben"}
    with pytest.raises(RecipeError):
        issue(folder, ["a b"])


def test_a_queue_whose_last_token_was_revoked_admits_nobody_without_one(folder: Path) -> None:
    issue(folder, ["ann"])
    revoke(folder, "ann")
    with Queue(folder) as queue:
        assert TestClient(make_app(queue), base_url="http://localhost").get(
            "/api/next", headers=ANN
        ).status_code == 401  # fmt: skip
    done = CliRunner().invoke(app, ["label", str(folder), "--port", "0"])
    assert isinstance(done.exception, RecipeError) and "--annotators" in str(done.exception)


def test_without_names_a_queue_uses_no_tokens(folder: Path) -> None:
    assert issue(folder, []) == {} and not uses_tokens(folder)


def test_other_machines_need_a_token_in_any_case(folder: Path) -> None:
    with Queue(folder) as queue:
        assert TestClient(make_app(queue, host="0.0.0.0")).get("/api/next", headers=ANN).status_code == 401


def test_a_command_that_cannot_serve_leaves_the_links_as_they_are(folder: Path) -> None:
    token = issue(folder, ["ann"])["ann"]
    again = ["label", str(folder), "--annotators", "ann", "--port"]
    with Queue(folder):
        assert isinstance(CliRunner().invoke(app, [*again, "0"]).exception, BusyError)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert isinstance(CliRunner().invoke(app, [*again, port]).exception, ServiceError)
    assert holder(token, digests(folder)) == "ann"


def test_another_loopback_address_is_served(folder: Path) -> None:
    with Queue(folder) as queue:
        client = TestClient(make_app(queue, host="127.0.0.2"), base_url="http://127.0.0.2:8765")
        assert client.get("/").status_code == 200


def test_another_host_name_is_refused_on_loopback(folder: Path) -> None:
    with Queue(folder) as queue:
        server = make_app(queue)
        assert TestClient(server, base_url="http://evil.example").get("/").status_code == 400
        assert TestClient(server, base_url="http://[::1]:8765").get("/").status_code == 200


def test_the_page_runs_only_its_own_script_and_escapes_by_construction(client: TestClient) -> None:
    reply = client.get("/")
    policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    for tag in ("style", "script"):
        found = re.search(rf"<{tag}>(.*?)</{tag}>", reply.text, re.DOTALL)
        assert found
        digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|style=|\son\w+=\"", reply.text
    )
    assert not re.search(r"https?://|//cdn", reply.text)
    assert (
        reply.headers["X-Content-Type-Options"] == "nosniff" and reply.headers["Cache-Control"] == "no-store"
    )


def test_a_disk_that_is_full_is_an_error_and_the_item_stays(
    client: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ratchet.components.labels import queue as module

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    body = judgement(client)
    with monkeypatch.context() as patched:
        patched.setattr(module, "append_durably", full)
        reply = client.post("/api/labels", json=body, headers=ANN)
    assert reply.status_code == 507 and "No space left" in reply.json()["detail"]
    assert client.get("/api/next", headers=ANN).json()["item"]["id"] == body["item"]
    assert client.post("/api/labels", json=body, headers=ANN).status_code == 200


def test_a_real_server_answers_on_loopback_and_stops(folder: Path) -> None:
    import httpx2

    with Queue(folder) as queue, serving(make_app(queue)) as base:
        assert base.startswith("http://127.0.0.1:")
        assert httpx2.get(f"{base}/api/next", headers=ANN).json()["title"] == "T"
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(base)
