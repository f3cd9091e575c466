"""What the search and the verifier are tried with: random programs, near-miss mutants, and rewrites that keep the meaning."""

from mugraph.testing.mutants import Mutant, mutants
from mugraph.testing.oracle import agree
from mugraph.testing.paper import accepted_by_paper
from mugraph.testing.programs import ProgramSpace, random_program
from mugraph.testing.rewrites import retiled, rewritten

__all__ = ["Mutant", "ProgramSpace", "accepted_by_paper", "agree", "mutants", "random_program", "retiled", "rewritten"]
