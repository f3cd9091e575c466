"""Arithmetic over Z_p x Z_q: exact against Python integers, and obeying the laws that equivalence tests rely on."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from mugraph.algebra import modular
from mugraph.algebra.fields import LARGE, FieldArithmetic, FieldPair, FieldValue, is_prime
from mugraph.algebra.modular import Residues
from mugraph.errors import InvalidInput, UndefinedInField
from mugraph.ir import Scalar

SMALL = FieldPair(23, 11)
PAPER = FieldPair(2039, 1019)


@pytest.fixture
def arith() -> FieldArithmetic:
    return FieldArithmetic(seed=5)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def assert_same(x: FieldValue, y: FieldValue) -> None:
    np.testing.assert_array_equal(x.p, y.p)
    assert (x.q is None) == (y.q is None)
    if x.q is not None and y.q is not None:
        np.testing.assert_array_equal(x.q, y.q)


def residue_q(x: FieldValue) -> Residues:
    assert x.q is not None
    return x.q


def test_primality_agrees_with_trial_division() -> None:
    def slowly(n: int) -> bool:
        return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))

    assert [n for n in range(2000) if is_prime(n)] == [n for n in range(2000) if slowly(n)]
    assert is_prime(LARGE.p)
    assert not is_prime(3215031751), "a strong pseudoprime to the bases 2, 3, 5 and 7"


@pytest.mark.parametrize(
    ("p", "q", "complaint"),
    [
        (2147024880, 1073512439, "not both prime"),
        (227, 113, "3 modulo 4"),
        (23, 7, "does not divide"),
        ((1 << 51) + 3, 11, "too large"),
    ],
)
def test_unsuitable_primes_are_refused(p: int, q: int, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        FieldPair(p, q)


@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (70, 90)])
def test_elementwise_operations_are_exact(shape: tuple[int, ...], arith: FieldArithmetic, rng: np.random.Generator) -> None:
    x, y = arith.random(shape, rng), arith.random(shape, rng)
    for modulus, a, b, part in ((LARGE.p, x.p, y.p, 0), (LARGE.q, residue_q(x), residue_q(y), 1)):
        a, b = a.astype(object), b.astype(object)
        inverse = np.vectorize(lambda v, m=modulus: pow(int(v), -1, m), otypes=[object])(b)
        root = np.vectorize(lambda v, m=modulus: pow(int(v), (m + 1) // 4, m), otypes=[object])(a)
        for result, expected in (
            (arith.add(x, y), a + b),
            (arith.sub(x, y), a - b),
            (arith.mul(x, y), a * b),
            (arith.div(x, y), a * inverse),
            (arith.sqrt(x), root),
        ):
            np.testing.assert_array_equal(result[part], expected % modulus)
    powers = np.vectorize(lambda v: pow(arith.omega, int(v), LARGE.p), otypes=[np.int64])(residue_q(x))
    np.testing.assert_array_equal(arith.exp(x).p, powers)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3), (3, 4)),
        ((2, 1, 4, 3), (5, 3, 2)),
        ((4, 700), (700, 30)),
        ((3, 2, 4, 90), (2, 90, 60)),
        ((1, 70000), (70000, 2)),
    ],
)
def test_matrix_products_are_exact(
    left: tuple[int, ...], right: tuple[int, ...], arith: FieldArithmetic, rng: np.random.Generator
) -> None:
    x, y = arith.random(left, rng), arith.random(right, rng)
    product = arith.matmul(x, y)
    np.testing.assert_array_equal(product.p, np.matmul(x.p.astype(object), y.p.astype(object)) % LARGE.p)
    np.testing.assert_array_equal(product.q, np.matmul(residue_q(x).astype(object), residue_q(y).astype(object)) % LARGE.q)


def test_matrix_products_of_the_largest_residues_do_not_overflow(arith: FieldArithmetic) -> None:
    inner = 5000
    x = FieldValue(np.full((2, inner), LARGE.p - 1), np.full((2, inner), LARGE.q - 1))
    y = FieldValue(np.full((inner, 3), LARGE.p - 1), np.full((inner, 3), LARGE.q - 1))
    product = arith.matmul(x, y)
    assert (product.p == inner).all()
    assert (residue_q(product) == inner).all()


@pytest.mark.parametrize("modulus", [7, 2**31 - 1, 2**31 + 11, 2**51 - 129])
@pytest.mark.parametrize("size", [1, 100, 5000, 70_000])
def test_the_least_and_the_largest_residues_are_combined_exactly(size: int, modulus: int, rng: np.random.Generator) -> None:
    edges = np.array([0, 1, modulus // 2, modulus // 2 + 1, modulus - 1])
    x, y = rng.choice(edges, size), rng.choice(edges, size)
    for operation in (np.add, np.subtract, np.multiply):
        found = modular.combine(operation, x, y, np.array(modulus))
        exact = operation(x.astype(object), y.astype(object)) % modulus
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, exact.astype(np.int64))


def test_sums_keep_the_axis(arith: FieldArithmetic, rng: np.random.Generator) -> None:
    x = arith.random((3, 50, 2), rng)
    total = arith.sum(x, 1)
    np.testing.assert_array_equal(total.p, x.p.astype(object).sum(1, keepdims=True) % LARGE.p)
    np.testing.assert_array_equal(total.q, residue_q(x).astype(object).sum(1, keepdims=True) % LARGE.q)


def test_exponentials_turn_sums_into_products(arith: FieldArithmetic, rng: np.random.Generator) -> None:
    x, y = arith.random((9,), rng), arith.random((9,), rng)
    assert_same(arith.exp(arith.add(x, y)), arith.mul(arith.exp(x), arith.exp(y)))


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("pair", [SMALL, PAPER, LARGE])
def test_square_roots_are_multiplicative_and_undo_squares_up_to_sign(
    pair: FieldPair, mirrored: bool, rng: np.random.Generator
) -> None:
    arith = FieldArithmetic(pair, mirrored=mirrored)
    x, y = arith.random((64,), rng), arith.random((64,), rng)
    assert_same(arith.sqrt(arith.mul(x, y)), arith.mul(arith.sqrt(x), arith.sqrt(y)))
    square = arith.mul(x, x)
    root = arith.sqrt(square)
    assert_same(arith.mul(root, root), square)


@pytest.mark.parametrize("pair", [SMALL, PAPER, LARGE])
def test_the_roots_of_minus_one_are_one_and_minus_one(pair: FieldPair) -> None:
    minus_one = Scalar(Fraction(-1))
    roots = {
        int(arith.sqrt(arith.constant(minus_one)).p) for arith in (FieldArithmetic(pair), FieldArithmetic(pair, mirrored=True))
    }
    assert roots == {1, pair.p - 1}


def test_constants_are_exact_rationals_and_roots(arith: FieldArithmetic, rng: np.random.Generator) -> None:
    x = arith.random((5,), rng)
    third = arith.constant(Scalar(Fraction(1, 3)))
    assert_same(arith.mul(arith.mul(x, third), arith.constant(Scalar.of(3))), x)
    root = arith.constant(Scalar(Fraction(1, 128), root=True))
    assert_same(arith.mul(root, root), arith.constant(Scalar(Fraction(1, 128))))
    negative = arith.constant(Scalar(Fraction(-2), root=True))
    assert_same(arith.add(negative, arith.constant(Scalar(Fraction(2), root=True))), arith.constant(Scalar.of(0)))


def test_constants_without_a_meaning_in_the_field_are_undefined(arith: FieldArithmetic) -> None:
    with pytest.raises(UndefinedInField, match="denominator"):
        arith.constant(Scalar(Fraction(1, LARGE.p)))


def test_division_by_a_tensor_with_a_zero_is_undefined(arith: FieldArithmetic, rng: np.random.Generator) -> None:
    x = arith.random((6,), rng)
    zero = FieldValue(np.array([1, 2, 0, 4, 5, 6]), np.arange(1, 7))
    with pytest.raises(UndefinedInField, match="division by zero"):
        arith.div(x, zero)


def test_a_second_exponentiation_is_undefined(arith: FieldArithmetic, rng: np.random.Generator) -> None:
    once = arith.exp(arith.random((2,), rng))
    assert once.q is None
    assert arith.mul(once, arith.constant(Scalar.of(2))).q is None
    with pytest.raises(UndefinedInField, match="exp"):
        arith.exp(once)


def test_maximum_is_a_lattice_operation(arith: FieldArithmetic, rng: np.random.Generator) -> None:
    x = arith.random((3, 8), rng)
    whole = arith.max(x, 1)
    assert all(whole.p[row, 0] in x.p[row] for row in range(3))
    halves = [arith.max(arith.view(x, half), 1) for half in (lambda a: a[:, :4], lambda a: a[:, 4:])]
    assert_same(arith.max(arith.join(halves, lambda parts: np.concatenate(parts, axis=1)), 1), whole)
    assert_same(arith.max(arith.view(x, lambda a: a[:, ::-1]), 1), whole)
    assert_same(arith.max(arith.view(x, lambda a: np.repeat(a, 2, axis=1)), 1), whole)


def test_opaque_functions_depend_on_name_argument_and_seed_only(arith: FieldArithmetic, rng: np.random.Generator) -> None:
    x = arith.random((40,), rng)
    silu = arith.opaque("silu", x)
    assert_same(silu, FieldArithmetic(seed=5).opaque("silu", FieldValue(x.p.copy(), residue_q(x).copy())))
    assert_same(arith.view(silu, lambda a: a[3]), arith.opaque("silu", arith.view(x, lambda a: a[3])))
    for other in (arith.opaque("relu", x), FieldArithmetic(seed=6).opaque("silu", x), arith.opaque("silu", arith.add(x, x))):
        assert (silu.p != other.p).all()
    shifted = FieldValue(x.p, (residue_q(x) + 1) % LARGE.q)
    assert (arith.opaque("silu", shifted).p != silu.p).all(), "both residues count"


def test_random_values_fill_the_field(arith: FieldArithmetic, rng: np.random.Generator) -> None:
    x = arith.random((4000,), rng)
    assert 0 <= x.p.min() < LARGE.p * 0.01
    assert LARGE.p * 0.99 < x.p.max() < LARGE.p
    assert len(np.unique(x.p)) > 3990
    assert not np.array_equal(x.p % LARGE.q, residue_q(x)), "the residues are independent"
    assert arith.random((3,), rng, q=False).q is None


def test_omega_must_have_order_q() -> None:
    with pytest.raises(InvalidInput, match="order"):
        FieldArithmetic(SMALL, omega=5)
    with pytest.raises(InvalidInput, match="order"):
        FieldArithmetic(SMALL, omega=1)
