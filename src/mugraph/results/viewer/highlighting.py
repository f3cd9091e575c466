"""Sources with their syntax in colours: spans with the short class names of Pygments, which `page.css` gives colours."""

from __future__ import annotations

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound


def highlighted(name: str, text: str) -> Markup:
    """`text` as HTML; the language follows from the end of the file's name, and is plain text where that is unknown."""
    try:
        lexer = get_lexer_for_filename(name, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    return Markup(highlight(text, lexer, HtmlFormatter(nowrap=True)))
