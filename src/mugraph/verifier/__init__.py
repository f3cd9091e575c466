"""Evidence that two muGraphs compute the same: random tests over finite fields, certificates, floating-point checks."""

from mugraph.verifier.certificate import Certificate, Outcome
from mugraph.verifier.counterexamples import Counterexample
from mugraph.verifier.float_checks import float_check
from mugraph.verifier.float_report import FloatReport, ScaleError
from mugraph.verifier.properties import Property
from mugraph.verifier.prover import Proof, prove
from mugraph.verifier.random_tests import by_random_tests, is_beyond_tests, recheck, verify_graphs
from mugraph.verifier.verdicts import Verdict

__all__ = [
    "Certificate",
    "Counterexample",
    "FloatReport",
    "Outcome",
    "Proof",
    "Property",
    "ScaleError",
    "Verdict",
    "by_random_tests",
    "float_check",
    "is_beyond_tests",
    "prove",
    "recheck",
    "verify_graphs",
]
