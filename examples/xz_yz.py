"""Distributivity: x @ z + y @ z needs only one matrix product.

    mugraph optimize examples/xz_yz.py:two_products
    mugraph verify examples/xz_yz.py:two_products examples/xz_yz.py:one_product

Expect one kernel that reads z once, either for (x + y) @ z or for both products together, whichever is predicted to be
faster on the machine.
"""

import torch


def two_products(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """x @ z + y @ z"""
    return x @ z + y @ z


def one_product(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """(x + y) @ z"""
    return (x + y) @ z


def example_inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(16, 1024), torch.randn(16, 1024), torch.randn(1024, 1024) / 32
