"""The templates of pages: HTML with everything escaped that is not marked as safe, styles, and sources in colours.

Pygments gives the spans of a source short class names, which `page.css` gives colours.
"""

from __future__ import annotations

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound


@cache
def environment() -> Environment:
    """The templates of this package; a name that the page does not supply is an error."""
    loader = PackageLoader("mugraph.results.viewer")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["powers"] = powers
    return made


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def powers(text: str) -> str:
    """`text` with its powers of two written as such: `2⁻⁴⁴` for `2^-44`. They are characters, so that they can be copied."""
    return re.sub(r"\b2\^(-?\d+)", lambda power: f"2{power[1].translate(_RAISED)}", text)


def style(name: str) -> str:
    """A style sheet by its file name."""
    return environment().get_template(name).render()


def highlighted(name: str, text: str) -> Markup:
    """`text` as HTML; the language follows from the end of the file's name, and is plain text where that is unknown."""
    try:
        lexer = get_lexer_for_filename(name, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    return Markup(highlight(text, lexer, HtmlFormatter(nowrap=True)))
