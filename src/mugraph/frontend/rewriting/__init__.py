"""Torch graphs as others that compute the same, before they are cut into programs.

- `graph_passes` has the passes; they ask `node_traits` what a call does and whether it can be part of a program.
- Calls taken for those that they stand for: `fused_layers` (whole transformer layers), `flex_attention`, `safe_softmax`,
  `permuted_blocks` (halves that are exchanged), found by `arrangements`.
- `constants` finds what a graph computes of no tensor, such as masks by position; `watched_calls`: what its tensors are in a call
  that PyTorch makes.
"""
