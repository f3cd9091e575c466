"""From proposed muGraphs to the ones worth running: compiled, measured, proved, compared with float64, kept."""
