"""`python -m benchmarks.ifeval --answers FILE... [--sample FILE]`: our checkers of verifiable instructions
against IFEval's own (google-research, as lm-evaluation-harness packages them) on the answers of a run, in an
environment with `requirements-ifeval.txt`.

Prints, by family, how many answers both accept, both refuse, and only one accepts. `--sample` writes a few of
each, shortest first, to a JSON-lines file: the cases of `tests/components/data/test_ifeval.py`. The answers
are read from `--answers`, JSON lines of `family`, `params`, `text` and `ours`, which `--groups FILE...`
writes from files of groups in Ratchet's environment.

IFEval counts sentences with NLTK's punkt model, which no package index has; its own splitting by regular
expressions takes the place of it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import types
from collections import Counter, defaultdict
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

Row = dict[str, Any]
PER_KIND = 5
"""Answers of a family and of a pair of verdicts in the sample."""


def rows_of(files: list[Path]) -> list[Row]:
    """Every different answer in files of groups, with the verdict of our checker."""
    from ratchet.components.data.groups import read_groups
    from ratchet.components.data.instructions.families import FAMILIES

    found: dict[str, Row] = {}
    for group in (group for file in files for group in read_groups(file)):
        asked = group.prompt.meta.get("instruction")
        if not asked or not FAMILIES[asked["family"]].ifeval:
            continue
        family = FAMILIES[asked["family"]]
        for text in (answer.text for answer in group.trajectories if answer.text.strip()):
            row = {"family": family.name, "ifeval": family.ifeval, "params": asked["params"], "text": text}
            found[json.dumps(row)] = {**row, "ours": family.obeys(text, **asked["params"])}
    return list(found.values())


def checkers() -> dict[str, Any]:
    """IFEval's table of checkers, without the rest of lm-evaluation-harness."""
    folder = Path(str(distribution("lm-eval").locate_file("lm_eval/tasks/ifeval")))
    for name in ("lm_eval", "lm_eval.tasks", "lm_eval.tasks.ifeval"):
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [str(folder)]
    nltk = importlib.import_module("nltk")
    nltk.data.find = lambda *_, **__: True  # no download
    util: Any = importlib.import_module("lm_eval.tasks.ifeval.instructions_util")
    util.count_sentences = lambda text: len(util.split_into_sentences(text))
    sys.modules["lm_eval.tasks.ifeval"].__dict__["instructions_util"] = util
    return importlib.import_module("lm_eval.tasks.ifeval.instructions_registry").INSTRUCTION_DICT


def arguments(family: str, params: dict[str, Any]) -> list[dict[str, Any]] | None:
    """IFEval's parameters of our instruction: all of these must be obeyed. None: it has other rules."""
    n = params.get("n")
    return {
        "at_most_words": [{"num_words": (n or 0) + 1, "relation": "less than"}],
        "at_least_words": [{"num_words": n, "relation": "at least"}],
        "words_between": [
            {"num_words": params.get("low"), "relation": "at least"},
            {"num_words": params.get("high", 0) + 1, "relation": "less than"},
        ],
        "exactly_sentences": [
            {"num_sentences": n, "relation": "at least"},
            {"num_sentences": (n or 0) + 1, "relation": "less than"},
        ],
        "at_most_sentences": [{"num_sentences": (n or 0) + 1, "relation": "less than"}],
        "bullets": [{"num_bullets": n}],
        "end_with": [{"end_phrase": params.get("phrase")}],
        "include_word": [{"keywords": [params.get("word")]}],
        "include_two_words": [{"keywords": [params.get("one"), params.get("two")]}],
        "keyword_frequency": [{"keyword": params.get("word"), "frequency": n, "relation": "at least"}],
        "exclude_word": [{"forbidden_words": [params.get("word")]}],
        "letter_frequency": [
            {"letter": params.get("letter"), "let_frequency": n, "let_relation": "at least"}
        ],
        "highlight": [{"num_highlights": 1}],
        "postscript": [{"postscript_marker": "P.S."}],
        "placeholder": [{"num_placeholders": 1}],
        "paragraphs": None,  # separated by *** there, by a blank line here
        "choice": [{}] if "My answer is yes." in params.get("options", ()) else None,
    }.get(family, [{}])


def judged(rows: list[Row]) -> list[Row]:
    """The answers whose instruction IFEval has, with its verdict as `theirs`."""
    table, found = checkers(), []
    for row in rows:
        wanted = arguments(row["family"], row["params"])
        if wanted is None:
            continue
        verdicts = []
        for given in wanted:
            checker = table[row["ifeval"]]("")
            checker.build_description(**given)
            verdicts.append(bool(checker.check_following(row["text"])))
        found.append({**row, "theirs": all(verdicts)})
    return found


def sample(rows: list[Row]) -> list[Row]:
    """The shortest answers of each family and pair of verdicts."""
    kinds = defaultdict[tuple[str, bool, bool], list[Row]](list)
    for row in sorted(rows, key=lambda row: (len(row["text"]), row["text"])):
        kinds[row["family"], row["ours"], row["theirs"]].append(row)
    kept = [row for _, some in sorted(kinds.items()) for row in some[:PER_KIND]]
    return [{name: row[name] for name in ("family", "params", "text", "theirs")} for row in kept]


def table(rows: list[Row]) -> str:
    """Numbers of answers by family as Markdown."""
    counts = defaultdict[str, Counter[tuple[bool, bool]]](Counter)
    for row in rows:
        counts[row["family"]][row["ours"], row["theirs"]] += 1
        counts["all"][row["ours"], row["theirs"]] += 1
    lines = [
        "| family | both accept | both refuse | only IFEval accepts | only we accept |",
        "|---|---|---|---|---|",
    ]
    for family, found in sorted(counts.items(), key=lambda one: (one[0] == "all", one[0])):
        cells = (found[True, True], found[False, False], found[False, True], found[True, False])
        lines.append(f"| `{family}` | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ifeval", description=__doc__)
    parser.add_argument("--groups", type=Path, nargs="*", help="files of groups; writes --answers")
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--sample", type=Path)
    given = parser.parse_args()
    if given.groups:
        given.answers.write_text("".join(json.dumps(row) + "\n" for row in rows_of(given.groups)))
        return
    rows = judged([json.loads(line) for line in given.answers.read_text().splitlines()])
    print(table(rows))
    if given.sample:
        lines = (json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in sample(rows))
        given.sample.write_text("".join(lines))


if __name__ == "__main__":
    main()
