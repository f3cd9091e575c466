"""What the search and the verifier are tried with: random programs, near-miss mutants, and rewrites that keep the meaning."""

from mugraph.evidence.programs import ProgramSpace, random_program

__all__ = ["ProgramSpace", "random_program"]
