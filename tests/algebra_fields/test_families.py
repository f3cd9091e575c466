"""Families of fields: what is drawn is as the error bound supposes, and there are as many as it counts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mugraph.algebra.families import Q_BITS, FieldFamily, _primes_above, _primes_for
from mugraph.algebra.fields import P_BITS, FieldArithmetic, FieldPair, is_prime
from mugraph.algebra.modular import WIDE, inverse, matmul, multiply, power_each, root_exponent, square_root, total
from mugraph.errors import InvalidInput

FAMILY = FieldFamily(38, modulus=8 * 3 * 5)


def drawn(seed: int = 0) -> FieldPair:
    return FieldFamily(38).draw(np.random.default_rng(seed))


@pytest.mark.parametrize("count", [True, False])
def test_drawn_pairs_differ_and_make_the_primes_squares(count: bool) -> None:
    rng = np.random.default_rng(1)
    pairs = {FAMILY.draw(rng, count=count) for _ in range(10)}
    assert len(pairs) == 10
    for pair in pairs:
        assert 1 << P_BITS < pair.p < WIDE
        assert 1 << 38 <= pair.q < 1 << 39
        assert (pair.p - 1) % pair.q == 0
        for modulus in (pair.p, pair.q):
            assert all(pow(prime, (modulus - 1) // 2, modulus) == 1 for prime in (2, 3, 5))
            assert pow(modulus - 1, (modulus - 1) // 2, modulus) != 1


def test_counted_draws_have_enough_p_to_choose_from() -> None:
    family = FieldFamily(39)
    rng = np.random.default_rng(5)
    for _ in range(5):
        q = family.draw(rng).q
        candidates = range(q + 1, WIDE, q)
        suitable = [p for p in candidates if p > 1 << P_BITS and p % 8 == 7 and is_prime(p)]
        assert len(suitable) >= family.p_count


@pytest.mark.parametrize("family", [FieldFamily(36), FieldFamily(44), FieldFamily(34, 120), FieldFamily(35, 8 * 11)], ids=str)
def test_all_p_that_go_with_a_q_are_found(family: FieldFamily) -> None:
    rng = np.random.default_rng(2)
    for _ in range(5):
        q = family._draw_q(rng)
        assert _primes_for(family, q) == tuple(p for p in family._candidates(q) if is_prime(p))


def test_numbers_that_powers_of_two_take_for_primes_are_told() -> None:
    """2**c is 1 modulo each, of which the first alone is prime."""
    assert _primes_above(9, np.array([127])) == [127]
    assert _primes_above(34, np.array([341])) == []
    assert _primes_above(186, np.array([2047])) == []


def test_there_are_at_least_as_many_q_as_counted() -> None:
    """By the density of primes in a sample: the bound is a few percent below it."""
    family = FieldFamily(33)
    rng = np.random.default_rng(0)
    first, last = (1 << 33) // 8 + 1, (2 << 33) // 8
    sample = [8 * int(number) - 1 for number in rng.integers(first, last, 20000)]
    estimate = (last - first) * sum(map(is_prime, sample)) / len(sample)
    assert 0.8 * estimate < family.q_count < 1.05 * estimate


def test_larger_q_leave_fewer_p() -> None:
    families = FieldFamily.making_squares(())
    assert families[0] == FieldFamily(Q_BITS[0])
    for smaller, larger in itertools.pairwise(families):
        assert smaller.q_count < larger.q_count
        assert smaller.p_count >= larger.p_count


def test_impossible_families_are_refused() -> None:
    for bits, modulus in ((20, 8), (60, 8), (38, 12), (38, 8 * 10**6)):
        with pytest.raises(InvalidInput, match="no fields are known"):
            FieldFamily(bits, modulus)
    assert {family.modulus for family in FieldFamily.making_squares({2, 3, 7})} == {8 * 21}
    for rare in ({1000003}, {3, 5, 7, 11, 13}):
        assert not FieldFamily.making_squares(rare)


@pytest.mark.parametrize("primes", [(), (3, 5), (3, 5, 7)])
def test_families_that_are_used_nearly_always_have_fields_to_draw(primes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    for family in FieldFamily.making_squares(primes)[-2:]:
        for _ in range(5):
            family.draw(rng)


# --- arithmetic modulo primes of 51 bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0, 2), (3,), (8, 8), (5, 13), (70, 90)])
def test_wide_roots_are_the_powers_that_python_computes(shape: tuple[int, ...]) -> None:
    pair, rng = drawn(), np.random.default_rng(1)
    x = np.asarray(rng.integers(0, pair.p, shape))
    for mirrored in (False, True):
        exponent = root_exponent(pair.p, mirrored)
        for radicands in (x, x.T):
            found = square_root(radicands, np.array(pair.p), mirrored)
            assert found.dtype == np.int64
            assert found.shape == radicands.shape
            assert found.ravel().tolist() == [pow(each, exponent, pair.p) for each in radicands.ravel().tolist()]


@pytest.mark.parametrize("shape", [(), (3,), (70, 90)])
def test_wide_elementwise_operations_are_exact(shape: tuple[int, ...]) -> None:
    pair, rng = drawn(), np.random.default_rng(0)
    modulus = np.array(pair.p)
    x, y = (np.asarray(rng.integers(pair.p - 1000, pair.p, shape)) for _ in range(2))
    products = np.asarray(x.astype(object) * y.astype(object) % pair.p)
    np.testing.assert_array_equal(multiply(x, y, modulus), products)
    np.testing.assert_array_equal(np.asarray(inverse(x, modulus).astype(object) * x % pair.p), np.ones(shape))
    roots = square_root(multiply(x, x, modulus), modulus)
    np.testing.assert_array_equal(multiply(roots, roots, modulus), multiply(x, x, modulus))


def test_powers_with_moduli_of_their_own_are_exact() -> None:
    rng = np.random.default_rng(0)
    moduli = WIDE - rng.choice(1 << 20, 500, replace=False) - 1
    x, exponents = moduli - rng.integers(1, 5, 500), rng.integers(0, 1 << 40, 500)
    for exponent in (exponents, 0, 1, (1 << 44) - 1):
        each = np.broadcast_to(exponent, 500)
        wanted = [pow(*numbers) for numbers in zip(x.tolist(), each.tolist(), moduli.tolist(), strict=True)]
        assert power_each(x, exponent, moduli).tolist() == wanted


@pytest.mark.parametrize(("left", "right"), [((4, 5000), (5000, 3)), ((2, 3, 700), (700, 1500)), ((1, 140000), (140000, 20))])
def test_wide_matrix_products_of_the_largest_residues_are_exact(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    pair, rng = drawn(), np.random.default_rng(0)
    x, y = rng.integers(pair.p - 9, pair.p, left), rng.integers(pair.p - 9, pair.p, right)
    small = np.matmul(x - pair.p, y - pair.p)
    np.testing.assert_array_equal(matmul(x, y, np.array(pair.p)), small % pair.p)


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((65, 130), (130, 127)),
        ((3, 1, 70, 64), (2, 64, 65)),
        ((1, 9000), (9000, 3)),
        ((66, 9000), (9000, 1)),
        ((2, 64, 64), (64, 64)),
    ],
)
def test_products_in_tiles_are_exact(left: tuple[int, ...], right: tuple[int, ...], narrow: bool) -> None:
    modulus, rng = 2**31 - 1 if narrow else drawn().p, np.random.default_rng(0)
    x, y = rng.integers(0, modulus, left), rng.integers(0, modulus, right)
    expected = (x.astype(object) @ y.astype(object)) % modulus
    np.testing.assert_array_equal(matmul(x, y, np.array(modulus)), expected.astype(np.int64))


def test_wide_sums_do_not_overflow() -> None:
    pair = drawn()
    ones = np.full((2, 10**5), pair.p - 1)
    np.testing.assert_array_equal(total(ones, 1, np.array(pair.p)), np.full((2, 1), pair.p - 10**5))


def test_wide_powers_of_omega() -> None:
    arith = FieldArithmetic(drawn(), seed=3)
    x = arith.random((50,), np.random.default_rng(0))
    assert x.q is not None
    assert arith.exp(x).p.tolist() == [pow(arith.omega, int(exponent), arith.pair.p) for exponent in x.q]
