"""The version of mugraph: saved results and certificates record it."""

__version__ = "0.1.0"
