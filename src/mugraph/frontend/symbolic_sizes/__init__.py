"""Recorded graphs with symbolic sizes: whether one program serves every size, and what has to be masked for that.

One size:

- `axes`: where tensors have an axis of symbolic size; `symbolic_axis`: whether calls do the same to every slice along it, by the
  rules of `slice_rules`.
- `masked_axis`: graphs that reduce the axis, as graphs of a capacity that hold any smaller size, told by `slots` which elements
  they hold; `masked_parts`: the parts of a graph that can be.
- `equations`: those of `einsum`, as all of these see them.

Any number of sizes:

- `index_counts`: at how many sizes two functions have to be equal to be so at all; `count_rules`: what calls do to these counts,
  by the dimensions that `shape_groups` finds for each other; `size_numbers`: numbers that are polynomials in sizes; `cut_points`:
  inputs in the place of calls that are not counted.
- `spelled_calls`: calls in other words, of which more is counted; `cut_pairs`: calls of two functions that one input stands for.

Two sizes, as a batch and a length:

- `merged_rows`: the two as rows of one size; `row_parts`: the parts of a graph that are of rows.
- `batch_axis`: one of the two is a batch, whatever the other one is; `one_symbol` has tensors with one of them left.
"""
