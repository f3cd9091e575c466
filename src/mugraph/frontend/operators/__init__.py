"""What PyTorch's operators mean, in operators of the table `mugraph.ir.ops`.

- `conversion` makes a kernel graph of a torch graph of ATen calls, by the rows of `aten`: one for each ATen operator.
- Functions of rows: `spelled` (a line or two of others), `elementary`, `activations`, `choices` (comparisons, booleans),
  `normalisations` (reductions and softmaxes, too), `losses`, `attention`, `lookups`, `scans`, `shapes` (views, repeats),
  `tensor_parts` (slices, concatenations), `windows` (pools, convolutions), `whole_numbers` (weights of 4 and 8 bits),
  `gradients`.
- Element types: `operand_types` (what PyTorch makes of operands before it computes), `torch_casts`, and `roundings`, which is
  about ONNX's casts, too.
"""
