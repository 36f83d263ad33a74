"""Every error Ratchet raises on purpose. Catch `RatchetError` to catch them all.

    RatchetError
    ├── RecipeError        the recipe is wrong: unknown key or piece, missing column, impossible combination
    ├── SourceError        data or a model cannot be fetched, read or verified
    ├── DataError          records are wrong: schema, quarantine over its limit, empty data set
    │   └── GateError      an expectation that stops the run failed
    ├── ContractError      two stages disagree: tokenizer, template, EOS, sampler against learner
    ├── TrainingError      a loss is not finite, nothing to train on
    ├── HealthError        a health rule of the recipe said `stop`
    ├── StoreError         disk full, damaged or half-written artifact
    │   └── DamageError    bytes are no longer those that were written: what can be made again, is
    ├── SandboxError       this machine cannot confine model-written code, so none is run
    ├── BusyError          another process holds the run, and this one was told not to wait
    ├── ServiceError       a server (tracking, orchestration, engine) cannot be reached   [retryable]
    └── StageError         a stage's process died or failed; carries the cause            [retryable when it died]

A message says what is wrong, where, what was expected, what was found, and what to do.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable

SECRET_NAME = re.compile(r"TOKEN(?!IZER)|PASSWORD|PASSWD|SECRET|API_KEY|ACCESS_KEY|CREDENTIAL|AUTH_STRING", re.IGNORECASE)
HARMLESS = re.compile(r".{,7}|[A-Za-z]{,15}|[\d.,+-]{,15}|\w+://[^?@]*")


def redacted(text: str) -> str:
    """`text` as it may be shown and kept: without the user and password of a URL, and without the value of any
    environment variable whose name says that it is a secret (of six characters or more)."""
    text = re.sub(r"(?<=://)[^/\s@\"']+@", "***@", text)
    for name, value in os.environ.items():
        if len(value) >= 6 and SECRET_NAME.search(name):
            text = text.replace(value, "***")
    return text


def secret_in(text: str) -> str:
    """The secret that `text` holds, in words that do not say it; empty when there is none. Stricter than `redacted`, as who
    asks refuses the text: a value under eight characters, a word, a number, an address or an existing file is no secret."""
    if re.search(r"://[^/\s@\"':]*:[^/\s@\"']+@", text):
        return "an address with a password"
    for name, value in os.environ.items():
        if SECRET_NAME.search(name) and value in text and not HARMLESS.fullmatch(value) and not os.path.exists(value):
            return f"the value of the environment variable {name}"
    return ""


class RatchetError(Exception):
    """Base of all errors of this project. Its message holds no secret, wherever it is shown or kept."""

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

    def __reduce__(self):  # keeps `retryable` through the process border
        return _stage_error, (str(self), self.retryable)


def _stage_error(message: str, died: bool) -> StageError:
    return StageError(message, died=died)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint: `; did you mean 'clip'?`, or the known words when none is near, the first forty of them."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    more = f", ... ({len(known)} in all)" if len(known) > 40 else ""
    return f"; known: {', '.join(known[:40])}{more}" if known else "; nothing is allowed here"
