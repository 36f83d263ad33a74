"""Errors in a user's own file of a piece, as one line."""

from __future__ import annotations

import traceback
from pathlib import Path

from ratchet.components import piece


def piece_error(error: BaseException) -> str | None:
    """File, line and message of an error in a piece's file that is read or imported: of its syntax, or of
    what it does when it is imported. None for any other error.
    """
    if isinstance(error, SyntaxError) and error.filename and _is_piece(error.filename):
        code = f": `{error.text.strip()}`" if error.text and error.text.strip() else ""
        return f"{error.filename}, line {error.lineno or '?'}: {error.msg}{code}; correct the file"
    steps = [step for step in traceback.extract_tb(error.__traceback__) if _is_piece(step.filename)]
    if not steps or steps[-1].name != "<module>":
        return None
    fix = "install what it imports, or correct the file" if isinstance(error, ImportError) else "correct it"
    return f"{steps[-1].filename}, line {steps[-1].lineno}: {type(error).__name__}: {error}; {fix}"


def _is_piece(file: str) -> bool:
    return (piece.ROOT / "pieces").resolve() in Path(file).resolve().parents
