"""Pairs of PyTorch functions that are equal, or nearly miss being so, over every construct that a verdict may stumble on."""

from mugraph.testing.pairs import bindings, elementwise, matrices, numbers, parts, reductions
from mugraph.testing.pairs.pair import FAMILIES, Family, Pair, Truth

__all__ = ["FAMILIES", "Family", "Pair", "Truth", "bindings", "elementwise", "matrices", "numbers", "parts", "reductions"]
