"""From a sketch to block graphs of real sizes: the space of grids and loops, the cost model that ranks it, and emission."""
