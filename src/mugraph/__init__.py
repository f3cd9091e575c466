"""mugraph: a multi-level superoptimizer for tensor programs."""

__version__ = "0.1.0"
