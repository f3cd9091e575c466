"""The record of the verifier's own tests: what it says must be of one piece, though the checker's verdict rests on none of it."""

from __future__ import annotations

import math
from typing import Any

from mugraph.checker.residue_fields import is_prime
from mugraph.checker.saved_files import Json, Rejected

_FORMAT = 5
_ENTRIES = {
    "format": int, "claim": str, "left": str, "right": str, "seed": int, "max_error": float, "rounds": list, "redraws": int,
    "axes": list, "difference": dict, "semantics": dict, "error_bound": float, "accepted": bool, "outcome": str, "tests": str,
    "reason": str, "readings": list, "version": str,
}  # fmt: skip
"""The entries of a certificate with an error bound, and their types; `floats` and `theorem_2` may be null."""
_OF_ITSELF = {"difference": type(None)}
"""What differs in the certificate of a graph and itself."""


def check_record(certificate: Json) -> None:
    """Raise Rejected, naming the first entry of a certificate that is missing, superfluous, or contradicts another."""
    untested = certificate.get("left") == certificate.get("right") and certificate.get("rounds") == []
    for name, kind in (_ENTRIES | (_OF_ITSELF if untested else {})).items():
        if type(certificate.get(name)) is not kind:
            raise Rejected(f"certificate.json: {name} is missing or no {kind.__name__}")
    if unknown := certificate.keys() - _ENTRIES.keys() - {"floats", "theorem_2"}:
        raise Rejected(f"certificate.json: {min(unknown)} is no entry of a certificate")
    if certificate["format"] != _FORMAT:
        raise Rejected(f"certificate.json: format {certificate['format']} is not {_FORMAT}")
    if (certificate["outcome"], certificate["tests"]) != ("equivalent", "agreed"):
        raise Rejected("certificate.json: outcome or tests are not those of an accepted certificate")
    if not all(_is_reading(entry) for entry in certificate["readings"]):
        raise Rejected("certificate.json: readings are no constants with the floats that were written")
    bounded = "one and the same" if untested else f"with probability at most {certificate['error_bound']:.3g}"
    if certificate["reason"] or bounded not in certificate["claim"]:
        raise Rejected("certificate.json: claim or reason is not what an accepted certificate with this error_bound says")
    if not all(isinstance(text, str) for text in certificate["semantics"].values()):
        raise Rejected("certificate.json: semantics are not given in words")
    if not untested:
        _check_rounds(certificate["rounds"])


def _check_rounds(rounds: list[Any]) -> None:
    """Each test was run in fields of its own, with a base of exponentials of the right order."""
    draws = [test["draw"] for test in rounds]
    if not rounds or draws != sorted({*draws}) or draws[0] < 0:
        raise Rejected("certificate.json: rounds are not distinct tests in order")
    for test in rounds:
        p, q, omega = test["p"], test["q"], test["omega"]
        if not (is_prime(p) and is_prime(q) and (p - 1) % q == 0 and omega % p != 1 and pow(omega, q, p) == 1):
            raise Rejected(f"certificate.json: rounds: p, q and omega of draw {test['draw']} are not those of a test")


def _is_reading(entry: Any) -> bool:
    """A constant, and the float that was written for it, in hexadecimal digits."""
    if not isinstance(entry, dict) or entry.keys() != {"constant", "written"} or not isinstance(entry["constant"], str):
        return False
    try:
        return math.isfinite(float.fromhex(entry["written"]))
    except (TypeError, ValueError, OverflowError):
        return False
