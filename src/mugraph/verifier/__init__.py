"""Evidence that two muGraphs compute the same: random tests over finite fields, certificates, floating-point checks."""

from mugraph.verifier.certificate import Certificate
from mugraph.verifier.counterexamples import Counterexample
from mugraph.verifier.floats import FloatReport, ScaleError, float_check
from mugraph.verifier.random_tests import Verdict, recheck, verify_graphs

__all__ = ["Certificate", "Counterexample", "FloatReport", "ScaleError", "Verdict", "float_check", "recheck", "verify_graphs"]
