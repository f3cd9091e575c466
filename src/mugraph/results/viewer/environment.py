"""The templates of pages: HTML with everything escaped that is not marked as safe, and styles."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def environment() -> Environment:
    """The templates of this package; a name that the page does not supply is an error."""
    loader = PackageLoader("mugraph.results.viewer")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def style(name: str) -> str:
    """A style sheet by its file name."""
    return environment().get_template(name).render()
