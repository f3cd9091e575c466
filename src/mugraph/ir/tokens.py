"""The words that the texts of muGraphs and axis programs are made of, and a cursor over them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mugraph.errors import InvalidInput
from mugraph.ir.scalar import Scalar

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
    "mark": r"[-+^{}()\[\],:=|/.]",
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


_T = TypeVar("_T")


class Cursor:
    """A place among tokens. What reads a construct moves past it; what does not fit raises InvalidInput with line and column."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens, self.position = tokens, 0

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or one of those after it."""
        return self.tokens[min(self.position + ahead, len(self.tokens) - 1)]

    def at(self, text: str, ahead: int = 0) -> bool:
        """Whether that is a certain word."""
        return self.peek(ahead).text == text and self.peek(ahead).kind != "string"

    def take(self) -> Token:
        """The next token, whatever it is."""
        token = self.peek()
        self.position += 1
        return token

    def accept(self, text: str) -> bool:
        """Move past a word if it stands here; whether it did."""
        found = self.at(text)
        self.position += found
        return found

    def expect(self, kind: str, expected: str, among: Container[str] | None = None) -> Token:
        """The next token, which must be of a kind (and one of some words); `expected` says what, in the error."""
        token = self.peek()
        if token.kind != kind or (among is not None and token.text not in among):
            raise token.error(expected)
        return self.take()

    def punctuation(self, text: str) -> None:
        """Move past a word that must stand here."""
        if not self.accept(text):
            raise self.peek().error(repr(text))

    def listed(self, opening: str, item: Callable[[], _T], closing: str) -> list[_T]:
        """Items with commas between them, in brackets."""
        self.punctuation(opening)
        items: list[_T] = []
        while not self.at(closing):
            if items:
                self.punctuation(",")
            items.append(item())
        self.punctuation(closing)
        return items

    def separated(self, item: Callable[[], _T]) -> list[_T]:
        """One item or more, with commas between them."""
        items = [item()]
        while self.accept(","):
            items.append(item())
        return items

    def integer(self) -> int:
        """A number."""
        return int(self.expect("number", "a number").text)

    def scalar(self) -> Scalar:
        """An exact scalar."""
        first = self.peek()
        text = "-" if self.accept("-") else ""
        if self.accept("sqrt"):
            self.punctuation("(")
            text += f"sqrt({self.rational()})"
            self.punctuation(")")
        else:
            text += self.rational()
        try:
            return Scalar.parse(text)
        except InvalidInput as error:
            raise first.fail(str(error)) from None

    def rational(self) -> str:
        """The text of a rational number that is not negative."""
        numerator = self.expect("number", "an exact scalar such as 1/4096 or sqrt(1/128)").text
        return f"{numerator}/{self.expect('number', 'a denominator').text}" if self.accept("/") else numerator
