"""Arguments and results of the functions that are optimized: structures of tensors and what they are called by.

- `pytree` flattens arguments and results by PyTorch's pytrees, of which `objects` makes nodes of objects that hold tensors;
  `returned_values` is how a function's results are given again, and `structures` compares structures without PyTorch.
- `calling` is how a program is called, as JSON can say it; `binding` calls a saved result so, as the function or module that it
  was made of; `saved_constants` are the values that such a result brings along.
- `origins` says by which names a function reaches the tensors that it captures; `captured_tensors` reads them at every call.
- `python_state` is what a function reads beside tensors, numbers and texts and flags, as far as `code_read` finds their names in
  code; `unchanged` asks in each call whether all ways to them still lead to the same objects.
- `in_place` writes values of tensors that a call changes where they lie.
"""
