"""Words of a text, also in scripts without spaces: Chinese, Japanese, Thai, Lao, Burmese, Khmer."""

from __future__ import annotations

import re

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
"""Characters of these scripts, as a set of a regular expression."""
BREAK = re.compile(rf"(?<=\S)(?=\w)(?=[{UNSPACED}])|(?<=[{UNSPACED}])(?=\w)")


def spaced(text: str) -> str:
    """The text with spaces around every letter of a script without spaces, so that each is a word; all other
    texts are unchanged.
    """
    return text if text.isascii() else BREAK.sub(" ", text)


def words_of(text: str) -> list[str]:
    """The parts of a text between spaces; in a script without spaces, its letters."""
    return spaced(text).split()
