"""What the search and the verifier are tried with: random programs, near-miss mutants, and rewrites that keep the meaning."""

from mugraph.trials.mutants import Mutant, mutants
from mugraph.trials.oracle import agree
from mugraph.trials.paper import accepted_by_paper
from mugraph.trials.programs import ProgramSpace, random_program
from mugraph.trials.rewrites import retiled, rewritten

__all__ = ["Mutant", "ProgramSpace", "accepted_by_paper", "agree", "mutants", "random_program", "retiled", "rewritten"]
