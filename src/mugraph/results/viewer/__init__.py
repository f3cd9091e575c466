"""Results to look at: a self-contained HTML page per result, and muGraphs drawn as SVG.

    mugraph show DIR --html FILE        Superoptimized.to_html()        a result in a notebook

It sits on top of everything a result is made of, and only reads it.
"""

from mugraph.results.viewer.drawing import picture
from mugraph.results.viewer.pages import notebook_html, page

__all__ = ["notebook_html", "page", "picture"]
