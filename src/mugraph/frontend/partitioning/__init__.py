"""Torch graphs cut into pieces that kernels can run, and the rest.

- `partition` decides which calls are one piece, by the `levels` of calls; `library` which convolutions and linear layers a
  library runs, with what follows.
- `splice` puts a graph together again, with calls of kernels in the place of its pieces.
- `channels_last` writes programs on images over to the layout that libraries of convolutions have.
"""
