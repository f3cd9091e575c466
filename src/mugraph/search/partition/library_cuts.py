"""The program as it is written, its products left to a vendor's library: what a muGraph of fewer launches has to beat.

Cuts are tried as long as there is time, and on a busy machine the one that a library wins may never come. This one needs no
list of cuts and no closure but those of what stands between the products.
"""

from __future__ import annotations

from mugraph.ir.axes import AxisProgram
from mugraph.search.partition.cuts import Cut


def library_cut(program: AxisProgram) -> Cut | None:
    """Each product of a program in a launch of its own, and what it multiplies or what is made of it in others; None without any.

    Its roofline is left at 0: it is to be tried whatever that is.
    """
    terms = program.terms
    # by name: a term of this form, not a row
    products = [index for index, term in enumerate(terms) if term.op == "contract"]
    factors = {index for product in products for index in terms[product].inputs if terms[index].inputs}
    outputs = {term for term, _ in program.outputs}
    groups = tuple((term,) for term in sorted({*products, *factors, *outputs}) if terms[term].inputs)
    stored = tuple(sorted({*products, *factors} - (outputs - _read(program))))
    return Cut(program, groups, 0.0, stored=stored) if products and len(groups) > 1 else None


def _read(program: AxisProgram) -> set[int]:
    """The terms that others read."""
    return {index for term in program.terms for index in term.inputs}
