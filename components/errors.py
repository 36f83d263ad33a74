"""All errors that Ratchet raises deliberately, as subclasses of `RatchetError`.

    RatchetError
    ├── RecipeError        invalid recipe: unknown key or piece, missing column, impossible combination
    ├── SourceError        data or a model cannot be downloaded, read or verified
    ├── DataError          invalid records: schema, too many quarantined, empty data set
    │   └── GateError      a data check that stops the run failed
    ├── ContractError      a model does not fit its use: tokenizer, template, EOS, context length, layers;
    │                      or a stage lacks what it builds on
    ├── TrainingError      non-finite loss, or nothing to train on
    ├── HealthError        a health rule with action `stop` tripped
    ├── StoreError         disk full, damaged or incomplete artifact
    │   └── DamageError    bytes differ from those written; recomputed if possible
    ├── SandboxError       this machine cannot sandbox model-written code, so none is run
    ├── BusyError          another process holds the lock of a run or of a labelling queue
    ├── ServiceError       a server (tracking, orchestration, engine) cannot be reached   [retryable]
    └── StageError         a stage's process died or failed; contains the cause   [retryable if it died]

A message says what is wrong, where, what was expected, what was found, and how to fix it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable

SECRET_NAME = re.compile(
    r"TOKEN(?!IZER)|PASSWORD|PASSWD|SECRET|API_KEY|ACCESS_KEY|CREDENTIAL|AUTH_STRING",
    re.IGNORECASE,
)
HARMLESS = re.compile(r".{,7}|[A-Za-z]{,15}|[\d.,+-]{,15}|\w+://[^?@]*")


def _is_secret(name: str, value: str) -> bool:
    """Whether an environment variable's name says that its value is a secret. MAX_TOKENS=131072 is none."""
    return bool(SECRET_NAME.search(name)) and not ("TOKENS" in name.upper() and value.isdigit())


def redacted(text: str) -> str:
    """`text` without URL credentials and without values of environment variables whose names indicate secrets
    (six characters or more).
    """
    text = re.sub(r"(?<=://)[^/\s@\"']+@", "***@", text)
    for name, value in os.environ.items():
        if len(value) >= 6 and _is_secret(name, value):
            text = text.replace(value, "***")
    return text


def secret_in(text: str) -> str:
    """Description of a secret contained in `text`, or "". Finds fewer than `redacted`, since the caller
    rejects the text: values under eight characters, words and numbers of at most 15 characters, addresses and
    existing files are not secrets.
    """
    if re.search(r"://[^/\s@\"':]*:[^/\s@\"']+@", text):
        return "an address with a password"
    for name, value in os.environ.items():
        if (
            value in text
            and _is_secret(name, value)
            and not HARMLESS.fullmatch(value)
            and not os.path.exists(value)
        ):
            return f"the value of the environment variable {name}"
    return ""


class RatchetError(Exception):
    """Base class. Messages are redacted."""

    retryable = False

    def __init__(self, *args: object) -> None:
        super().__init__(*(redacted(a) if isinstance(a, str) else a for a in args))


class RecipeError(RatchetError, ValueError):
    pass


class SourceError(RatchetError):
    pass


class DataError(RatchetError, ValueError):
    pass


class GateError(DataError):
    pass


class ContractError(RatchetError):
    pass


class TrainingError(RatchetError):
    pass


class HealthError(RatchetError):
    pass


class StoreError(RatchetError, OSError):
    pass


class DamageError(StoreError):
    pass


class SandboxError(RatchetError):
    pass


class BusyError(RatchetError):
    pass


class ServiceError(RatchetError, ConnectionError):
    retryable = True


class StageError(RatchetError):
    def __init__(self, message: str, *, died: bool = False) -> None:
        super().__init__(message)
        self.retryable = died

    def __reduce__(self):  # keeps `retryable` when pickled between processes
        return _stage_error, (str(self), self.retryable)


def _stage_error(message: str, died: bool) -> StageError:
    return StageError(message, died=died)


FATAL = {
    name
    for name, kind in globals().items()
    if isinstance(kind, type) and issubclass(kind, RatchetError) and not issubclass(kind, DataError)
}
"""Errors of ours that end a stage, so that their messages are in no output. `DataError` may also end one row,
whose reason the output names.
"""

RENAMED = {
    "sampler_rows": "max_num_seqs",
    "tokens_per_batch": "tokens_per_microbatch",
    "times": "weight_column",
    "discount": "gamma",
    "trace": "gae_lambda",
    "follow": "decay (1 - follow)",
    "judge": "reward_model",
}
"""Old names of keys, options and models of recipes and profiles."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint: `; did you mean 'clip'?`, the new name of a renamed word, or the known words (at most forty) if
    none is similar.
    """
    known = sorted(known)
    new = RENAMED.get(word, "")
    if new.partition(" ")[0] in known:
        return f"; it was renamed to {new}"
    lower = {name.lower(): name for name in known}
    alike = [name for name in lower if name[:1] == word[:1].lower() or word.lower() in name]
    close = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.65)
    close = close or difflib.get_close_matches(word.lower(), alike, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {lower[close[0]]!r}?"
    more = f", ... ({len(known)} in all)" if len(known) > 40 else ""
    return f"; known: {', '.join(known[:40])}{more}" if known else ""
