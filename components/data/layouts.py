"""The field's usual layouts to groups and back, as JSONL (`.jsonl`, `.jsonl.gz`, `.json`) or Parquet, a file or a folder of files.

    groups       our own Parquet layout
    messages     {messages}                        prompt = all before the first assistant message -> a group of one
    preference   {prompt?, chosen, rejected}       texts or message lists; margin, score_chosen, score_rejected optional
                                                   -> a group of two, chosen first, columns `margin`, `score`
    completion   {prompt, completion, label?}      KTO's labels or plain SFT -> a group of one, column `label`
    prompt       {prompt | question, answer?}      -> a group without trajectories

Without `prompt`, the prompt of a preference row is what chosen and rejected have in common at the start.
`id`, `answer`, `source`, `meta` are kept where present. A wrong row raises `DataError` with file and row.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from components.data.groups import ROLES, read_groups, read_parquet, save_table, write_groups
from components.errors import DataError, SourceError, nearest
from components.types import Group, Message, Prompt, Trajectory

Row = Mapping[str, Any]
SUFFIXES = (".jsonl", ".json", ".parquet", ".gz")


def data_files(path: Path) -> list[Path]:
    """The data files an address means: itself, or every JSONL and Parquet file under a folder, sorted."""
    if not path.exists():
        raise SourceError(f"there is no file or folder {path}")
    files = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file()) if path.is_dir() else [path]
    if not files:
        raise SourceError(f"{path} holds no {', '.join(SUFFIXES)} file")
    if files[0].suffix not in SUFFIXES:
        raise SourceError(f"{path} is not a data file; expected one of {', '.join(SUFFIXES)}")
    return files


def read_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(where, row) of every row of a file or folder; `where` says file and row for messages about it."""
    for file in data_files(path):
        if file.suffix == ".parquet":
            for number, row in enumerate(read_parquet(file)):
                yield f"{file}, row {number}", row
        elif file.suffix == ".json":
            rows = _decode(file.read_bytes(), str(file))
            if not isinstance(rows, list):
                raise DataError(f"{file} holds a JSON {type(rows).__name__}, expected a list of rows")
            yield from ((f"{file}, row {number}", row) for number, row in enumerate(rows))
        else:
            for number, line in enumerate(_lines(file)):
                if line.strip():
                    where = f"{file}, row {number}"
                    yield where, _decode(line, where)


def _lines(file: Path) -> Iterator[bytes]:
    if file.suffix != ".gz":
        with file.open("rb") as lines:
            yield from lines
        return
    try:
        with gzip.open(file, "rb") as lines:
            yield from lines
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{file} is not a whole gzip file: {error}") from error


def _decode(raw: bytes, where: str) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{where} is not valid JSON: {error}") from error


def layout_of(row: Row) -> str:
    """The layout a row is in, by its keys. Raises `ValueError`."""
    keys = set(row)
    for layout, needs in (("preference", {"chosen", "rejected"}), ("messages", {"messages"}),
                          ("completion", {"prompt", "completion"}), ("prompt", {"prompt"}), ("prompt", {"question"})):
        if needs <= keys:
            return layout
    raise ValueError(f"keys {sorted(keys)} fit no layout of {', '.join(IMPORTERS)}")


def import_layout(path: Path, layout: str) -> list[Group]:
    """Groups of every row. An empty data set is a `DataError`."""
    if layout not in ("auto", "groups", *IMPORTERS):
        raise DataError(f"no layout {layout!r}{nearest(layout, ['auto', 'groups', *IMPORTERS])}")
    groups: list[Group] = []
    for file in data_files(path):
        for number, (where, row) in enumerate(read_rows(file)):
            if layout == "groups" or (layout == "auto" and {"group", "prompt_id", "completion"} <= set(row)):
                groups.extend(read_groups(file))
                break
            try:
                kind = layout_of(row) if layout == "auto" else layout
                groups.append(IMPORTERS[kind](row, str(row.get("id", f"{file.stem}-{number}"))))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                missing = f"key {error} is missing" if isinstance(error, KeyError) else error
                raise DataError(f"{where}: {missing}") from error
    if not groups:
        raise DataError(f"{path} holds no record")
    return groups


def messages_of(value: Any, role: str) -> tuple[Message, ...]:
    """A text as one message of `role`, or a list of messages checked (`from`/`value`, as ShareGPT writes, is read too)."""
    if isinstance(value, str):
        return ({"role": role, "content": value},)  # type: ignore[return-value]
    if not isinstance(value, list):
        raise ValueError(f"expected a text or a list of messages, got {type(value).__name__}")
    known = {"human": "user", "gpt": "assistant"}
    turns = []
    for message in value:
        said = message.get("role", message.get("from"))
        content = message.get("content", message.get("value"))
        said = known.get(said, said)
        if said not in ROLES or not isinstance(content, str):
            raise ValueError(f"a message needs a role of {ROLES} and a text, got {str(message)[:120]}")
        turns.append({"role": said, "content": content})
    return tuple(turns)


def _prompt(row: Row, key: str, messages: tuple[Message, ...]) -> Prompt:
    meta = row.get("meta") or {}
    answer = row.get("answer")
    return Prompt(key, messages, None if answer is None else str(answer), str(row.get("source") or ""),
                  json.loads(meta) if isinstance(meta, str) else dict(meta))


def _messages(row: Row, key: str) -> Group:
    turns = messages_of(row["messages"], "user")
    first = next((i for i, turn in enumerate(turns) if turn["role"] == "assistant"), None)
    if first is None:
        raise ValueError("the conversation has no assistant turn")
    return Group(_prompt(row, key, turns[:first]), (Trajectory(turns[first:]),))


def _preference(row: Row, key: str) -> Group:
    chosen, rejected = messages_of(row["chosen"], "assistant"), messages_of(row["rejected"], "assistant")
    if row.get("prompt") is not None:
        prompt = messages_of(row["prompt"], "user")
        if chosen[:len(prompt)] == rejected[:len(prompt)] == prompt:  # written with and without the prompt repeated
            chosen, rejected = chosen[len(prompt):], rejected[len(prompt):]
    else:
        common = 0
        for one, other in zip(chosen, rejected, strict=False):
            if one != other:
                break
            common += 1
        common = min(common, len(chosen) - 1, len(rejected) - 1)
        if common == 0:
            raise ValueError("there is no prompt, and chosen and rejected share no first message")
        prompt, chosen, rejected = chosen[:common], chosen[common:], rejected[common:]
    if not chosen or not rejected:
        raise ValueError("chosen or rejected is empty")
    if chosen == rejected:
        raise ValueError("chosen and rejected are the same")
    columns: dict[str, list[Any]] = {}
    if row.get("margin") is not None:
        columns["margin"] = [row["margin"]] * 2
    if row.get("score_chosen") is not None and row.get("score_rejected") is not None:
        columns["score"] = [row["score_chosen"], row["score_rejected"]]
    return Group(_prompt(row, key, prompt), (Trajectory(chosen), Trajectory(rejected)), columns)


def _completion(row: Row, key: str) -> Group:
    columns = {"label": [bool(row["label"])]} if row.get("label") is not None else {}
    completion = messages_of(row["completion"], "assistant")
    if not completion:
        raise ValueError("the completion is empty")
    return Group(_prompt(row, key, messages_of(row["prompt"], "user")), (Trajectory(completion),), columns)


def _prompt_only(row: Row, key: str) -> Group:
    asked = row["prompt"] if row.get("prompt") is not None else row["question"]
    return Group(_prompt(row, key, messages_of(asked, "user")), ())


IMPORTERS = {"messages": _messages, "preference": _preference, "completion": _completion, "prompt": _prompt_only}


def export_layout(groups: list[Group], path: Path, layout: str) -> Path:
    """Write rows of a layout to `.jsonl` or `.parquet`. Groups of the wrong size raise `DataError`."""
    if layout == "groups":
        return write_groups(path, groups)
    if layout not in IMPORTERS:
        raise DataError(f"no layout {layout!r}{nearest(layout, ['groups', *IMPORTERS])}")
    rows = [row for group in groups for row in _rows(group, layout)]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        names = sorted({name for row in rows for name in row})
        save_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)
    elif path.suffix == ".jsonl":
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text("".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows), "utf-8")
        partial.replace(path)
    else:
        raise DataError(f"{path}: write to a .jsonl or a .parquet file")
    return path


def _rows(group: Group, layout: str) -> list[dict[str, Any]]:
    """The rows a group becomes: one a trajectory, or one a pair."""
    head: dict[str, Any] = {"id": group.prompt.id}
    if group.prompt.answer is not None:
        head["answer"] = group.prompt.answer
    if group.prompt.source:
        head["source"] = group.prompt.source
    if group.prompt.meta:
        head["meta"] = json.dumps(dict(group.prompt.meta), ensure_ascii=False, sort_keys=True)
    prompt, columns = [dict(m) for m in group.prompt.messages], group.columns
    if layout == "prompt":
        return [{**head, "prompt": prompt}]
    told = [[dict(m) for m in path.messages] for path in group.trajectories]
    if layout == "messages":
        return [{**head, "messages": prompt + turns} for turns in told]
    if layout == "completion":
        labels = columns.get("label", [None] * len(told))
        return [{**head, "prompt": prompt, "completion": turns, **({} if label is None else {"label": label})}
                for turns, label in zip(told, labels, strict=True)]
    if len(told) != 2:
        raise DataError(f"group {group.prompt.id!r} has {len(told)} trajectories; a preference row needs two, chosen first")
    row = {**head, "prompt": prompt, "chosen": told[0], "rejected": told[1]}
    if "margin" in columns:
        row["margin"] = columns["margin"][0]
    if "score" in columns:
        row["score_chosen"], row["score_rejected"] = columns["score"]
    return [row]
