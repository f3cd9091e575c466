"""The primes that tests are evaluated modulo: what is drawn is prime, and as many are counted as there are."""

from __future__ import annotations

import itertools
import random

import pytest

from mugraph.checker import residue_fields
from mugraph.checker.residue_fields import is_prime, is_prime_above, sieved


def slowly(n: int) -> bool:
    return n > 1 and all(n % divisor for divisor in range(2, int(n**0.5) + 1))


def test_primes_above_a_root_are_told_from_other_numbers() -> None:
    for q in filter(slowly, range(2, 250)):
        assert [c for c in range(1, q) if is_prime_above(q, c * q + 1)] == [c for c in range(1, q) if slowly(c * q + 1)], q


@pytest.mark.parametrize(("q", "p"), [(157, 11305), (229, 13741), (233, 13981), (167, 18705), (487, 23377)])
def test_pseudoprimes_are_told_from_primes(q: int, p: int) -> None:
    """Powers of 2 to c are 1, which says nothing of them."""
    assert pow(2, (p - 1) // q, p) == 1
    assert (p - 1) % q == 0
    assert not is_prime_above(q, p)


@pytest.mark.parametrize("modulus", [8, 24, 840])
def test_the_sieve_leaves_every_prime_and_no_multiple_of_a_small_one(modulus: int) -> None:
    q = 2**31 - 1
    candidates = range(6 * q + 1, q << 14, modulus * q)
    left = sieved(candidates)
    assert left == [p for p in candidates if all(p % prime for prime in range(2, 1000))]
    assert [p for p in left if is_prime_above(q, p)] == [p for p in candidates if is_prime(p)]


def test_a_sieve_of_multiples_is_empty() -> None:
    assert sieved(range(3 * 1009, 10**6, 6)) == []


@pytest.mark.parametrize(("modulus", "count"), [*itertools.product([8, 24, 840], [False, True])])
def test_what_is_drawn_is_prime_and_as_large_as_is_said(modulus: int, count: bool) -> None:
    p, q, omega = residue_fields.draw(random.Random(0), modulus, count)
    assert is_prime(q)
    assert is_prime(p)
    assert (p - 1) % q == 0
    assert p % modulus == q % modulus == modulus - 1
    assert q.bit_length() == residue_fields.Q_BITS + 1
    assert 2**residue_fields.P_BITS < p < q << residue_fields.factor_bits(modulus)
    assert omega > 1
    assert pow(omega, q, p) == 1


@pytest.mark.parametrize("modulus", [8, 24, 840])
def test_counting_ends_where_there_are_enough(monkeypatch: pytest.MonkeyPatch, modulus: int) -> None:
    """And what is drawn is what a draw that counts them all has first."""
    real, found = residue_fields.is_prime_above, list[int]()

    def told(q: int, p: int) -> bool:
        if is_one := real(q, p):
            found.append(p)
        return is_one

    monkeypatch.setattr(residue_fields, "is_prime_above", told)
    for seed in range(3):
        found.clear()
        p, q, _ = residue_fields.draw(random.Random(seed), modulus, True)
        assert len({*found}) == residue_fields.p_count(modulus)
        assert p == found[0]
        assert all(is_prime(each) and (each - 1) % q == 0 for each in found)
        assert p == residue_fields.draw(random.Random(seed), modulus, False).p


def test_few_primes_are_counted_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw that has to count says so where fewer go with q than the bound rests on."""
    monkeypatch.setattr(residue_fields, "p_count", lambda modulus: 10**6)
    with pytest.raises(residue_fields.Undefined, match="too few primes"):
        residue_fields.draw(random.Random(0), 840, True)
