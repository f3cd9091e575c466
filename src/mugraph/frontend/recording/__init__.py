"""A call of a PyTorch function or module as PyTorch records it: a graph of ATen calls.

- `torch_trace` is what `mugraph.frontend.trace` does; `export` runs torch.export for it, with the tables of `decompositions`,
  `composites` and `given_operands`, and gives `calls`, each asker its own.
- `quiet` keeps what PyTorch prints and logs meanwhile to itself, in one thread at a time.
- `watch`, `compiler_questions` and `kept_tensors` look, meanwhile, at what the function captures, asks and keeps; `returned` at
  what it returns.
- `recorded_graph` makes a graph that runs of a recorded call, whatever operators are in it.
- `capture` brings Dynamo's graphs of torch calls to ATen calls.
"""
