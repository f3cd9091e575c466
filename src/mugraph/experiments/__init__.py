"""The paper's ablations, on this machine."""
