"""The kernel level: programs as one launch or several, cut at device tensors and at partial results, pruned by rooflines."""
