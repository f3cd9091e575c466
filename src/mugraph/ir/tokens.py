"""The words that the text of a muGraph is made of."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from mugraph.errors import InvalidInput

_KINDS = {
    "space": r"[ \t\r]+",
    "newline": r"\n",
    "comment": r"//[^\n]*",
    "value": r"%\w+",
    "operand": r"\#\d{1,9}",
    "name": r"[A-Za-z_][\w.]*",
    "string": r'"(?:[^"\\\n]|\\.)*"',
    "number": r"-?\d{1,999}",  # bounded, for converting decimal digits takes quadratic time
    "arrow": r"<->",
    "mark": r"[-{}()\[\],:=|/.]",
}
_TOKEN = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()), re.ASCII)


@dataclass(frozen=True, slots=True)
class Token:
    """A word with where it stands (lines and columns count from 1); the last token has kind `end` and no text."""

    kind: str
    text: str
    line: int
    column: int

    def error(self, expected: str) -> InvalidInput:
        """The error that something else was expected here."""
        return self.fail(f"expected {expected}, found {repr(self.text) if self.text else 'the end of the text'}")

    def fail(self, why: str) -> InvalidInput:
        """An error at this place."""
        return InvalidInput(f"line {self.line}, column {self.column}: {why}")

    def unquoted(self) -> str:
        """What a string token stands for, with escapes as in JSON."""
        try:
            return str(json.loads(self.text))
        except ValueError:
            raise self.error("a string as in JSON") from None


def tokenize(text: str) -> list[Token]:
    """The tokens of a text; raises InvalidInput at a character that starts none."""
    tokens: list[Token] = []
    position, line, start = 0, 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Token("", text[position], line, position - start + 1).error("a word, a number or a punctuation mark")
        kind = match.lastgroup or ""
        if kind not in ("space", "newline", "comment"):
            tokens.append(Token(kind, match.group(), line, position - start + 1))
        position = match.end()
        if kind == "newline":
            line, start = line + 1, position
    return [*tokens, Token("end", "", line, position - start + 1)]
