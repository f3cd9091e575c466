"""A program written without PyTorch: X @ W with every row divided by its length.

    mugraph optimize examples/without_torch.py:program

Expect one kernel that divides after the product. `superoptimize(program)` returns a callable on NumPy arrays.
"""

import mugraph

program = mugraph.Program()
x = program.input("X", (16, 1024))
w = program.input("W", (1024, 1024))
program.output((x / x.square().sum(-1, keepdim=True).sqrt()) @ w)
