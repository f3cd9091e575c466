"""Each rewriting step of the closure engine on a few lines of text: a program or sketch before it, and what it makes of it."""

from __future__ import annotations

from dataclasses import astuple

from mugraph.algebra.fields import NestingArithmetic
from mugraph.ir.axes import AxisProgram
from mugraph.ir.axes_text import format_axes, parse_axes
from mugraph.search.closure.context import Context, TinyInputs
from mugraph.search.closure.extraction import ExtractionLimits, Extractor
from mugraph.search.closure.hoisting import hoisted
from mugraph.search.closure.landmarks import Landmarks
from mugraph.search.closure.loop_insertion import Fmaps, loops_to_some_end, with_loop
from mugraph.search.closure.safe_softmax import Stabilizer, without_neutral_maxima
from mugraph.search.closure.saturation import Closure, Limits, Saturation, Transcription
from mugraph.search.closure.sketch_text import format_sketch, parse_sketch
from mugraph.search.closure.tiers import Tier
from mugraph.search.closure.two_pass_mean import centred
from mugraph.search.partition.splits import consumer_of, split_at
from mugraph.search.partition.variants import as_program, iterations_as_parts

ARITHMETIC, INPUTS = NestingArithmetic(seed=0), TinyInputs(seed=0)

ATTENTION = """
axis_program a=4 b=8 c=6 {
  %0 = load #0 [a, b]
  %1 = exp(%0)
  %2 = load #1 [b, c]
  %3 = contract(%1, %2) over b
  %4 = sum(%1) over b
  %5 = div(%3, %4)
  return %5 [a, c]
}
"""

LENGTHS = """
axis_program a=4 b=8 {
  %0 = load #0 [a, b]
  %1 = square(%0)
  %2 = sum(%1) over b
  %3 = sqrt(%2)
  return %3 [a]
}
"""


def closure_of(text: str, *, as_written: bool = False) -> Closure:
    """The closure of a program without for-loops: all of it, or the program's own terms."""
    program = parse_axes(text)
    closure = Closure(program, Context.of(program, None), Tier.FULL)
    (Transcription if as_written else Saturation)(closure, ARITHMETIC, INPUTS, Limits()).run()
    return closure


def sketches_of(closure: Closure) -> list[str]:
    """The derivations of a closure's outputs, as texts."""
    extractor = Extractor(closure, lambda edge: 1.0)
    limits = ExtractionLimits()
    return [format_sketch(sketch) for goals in extractor.goals() for _, sketch in extractor.derivations(goals, limits)]


def expect(found: AxisProgram | None, text: str) -> None:
    assert found is not None
    assert format_axes(found) == text.strip()


def expect_sketch(found: str, text: str) -> None:
    assert found == text.strip()


def sketches_in(text: str) -> list[str]:
    """The texts of several sketches, one after the other."""
    return [f"{sketch}}}" for sketch in text.strip().removesuffix("}").split("}\n")]


# redundant_max ---------------------------------------------------------------------------------------------------------


def test_redundant_max_drops_the_maximum_of_a_softmax() -> None:
    before = """
axis_program a=4 b=8 {
  %0 = load #0 [a, b]
  %1 = max(%0) over b
  %2 = sub(%0, %1)
  %3 = exp(%2)
  %4 = sum(%3) over b
  %5 = div(%3, %4)
  return %5 [a, b]
}
"""
    after = """
axis_program a=4 b=8 {
  %0 = load #0 [a, b]
  %1 = exp(%0)
  %2 = sum(%1) over b
  %3 = div(%1, %2)
  return %3 [a, b]
}
"""
    expect(without_neutral_maxima(parse_axes(before), ARITHMETIC, INPUTS), after)


def test_redundant_max_keeps_a_maximum_that_the_output_depends_on() -> None:
    program = """
axis_program a=4 b=8 {
  %0 = load #0 [a, b]
  %1 = max(%0) over b
  %2 = sub(%0, %1)
  %3 = exp(%2)
  return %3 [a, b]
}
"""
    expect(without_neutral_maxima(parse_axes(program), ARITHMETIC, INPUTS), program)


# hoisting --------------------------------------------------------------------------------------------------------------


def test_hoisting_takes_a_positive_factor_out_of_relu() -> None:
    before = """
axis_program a=4 b=8 c=6 {
  %0 = load #0 [a, b]
  %1 = constant 1/2
  %2 = mul(%0, %1)
  %3 = relu(%2)
  %4 = load #1 [b, c]
  %5 = contract(%3, %4) over b
  return %5 [a, c]
}
"""
    after = """
axis_program a=4 b=8 c=6 {
  %0 = load #0 [a, b]
  %1 = constant 1/2
  %2 = relu(%0)
  %3 = mul(%2, %1)
  %4 = load #1 [b, c]
  %5 = contract(%3, %4) over b
  return %5 [a, c]
}
"""
    expect(hoisted(parse_axes(before)), after)


def test_hoisting_leaves_the_sign_of_a_negative_factor_in_relu() -> None:
    before = """
axis_program a=4 {
  %0 = load #0 [a]
  %1 = constant -2
  %2 = mul(%0, %1)
  %3 = relu(%2)
  return %3 [a]
}
"""
    after = """
axis_program a=4 {
  %0 = load #0 [a]
  %1 = constant -1
  %2 = mul(%0, %1)
  %3 = relu(%2)
  %4 = constant 2
  %5 = mul(%3, %4)
  return %5 [a]
}
"""
    expect(hoisted(parse_axes(before)), after)


def test_hoisting_takes_the_maximum_of_an_increasing_function_first() -> None:
    before = """
axis_program a=4 b=8 {
  %0 = load #0 [a, b]
  %1 = constant 3
  %2 = add(%0, %1)
  %3 = exp(%2)
  %4 = max(%3) over b
  return %4 [a]
}
"""
    after = """
axis_program a=4 b=8 {
  %0 = load #0 [a, b]
  %1 = constant 3
  %2 = max(%0) over b
  %3 = add(%2, %1)
  %4 = exp(%3)
  return %4 [a]
}
"""
    expect(hoisted(parse_axes(before)), after)


def test_hoisting_writes_a_tensor_beside_its_multiple_as_a_multiple_too() -> None:
    before = """
axis_program a=4 b=8 {
  %0 = load #0 [a, b]
  %1 = load #1 [b]
  %2 = mul(%0, %1)
  %3 = add(%2, %0)
  return %3 [a, b]
}
"""
    after = """
axis_program a=4 b=8 {
  %0 = load #0 [a, b]
  %1 = load #1 [b]
  %2 = mul(%0, %1)
  %3 = constant 1
  %4 = mul(%0, %3)
  %5 = add(%2, %4)
  return %5 [a, b]
}
"""
    expect(hoisted(parse_axes(before)), after)


def test_hoisting_leaves_a_program_without_such_functions_as_it_is() -> None:
    program = parse_axes(ATTENTION)
    assert hoisted(program) is program


# stages ----------------------------------------------------------------------------------------------------------------


def test_stages_of_a_length_after_a_normalisation() -> None:
    closure = closure_of(
        """
axis_program a=4 b=8 {
  %0 = load #0 [a, b]
  %1 = square(%0)
  %2 = sum(%1) over b
  %3 = sqrt(%2)
  %4 = div(%0, %3)
  %5 = load #1 [a, b]
  %6 = add(%4, %5)
  %7 = square(%6)
  %8 = sum(%7) over b
  %9 = sqrt(%8)
  return %9 [a]
}
"""
    )
    first, second = Landmarks(closure).stages
    assert (first.variables, first.own, first.contracts) == (0b01, None, False)
    assert (second.variables, second.own, second.contracts) == (0b11, 1, False)
    assert astuple(first.wanted) == (0, 1, 1)  # additions, products, sums
    assert astuple(second.wanted) == (1, 1, 1)


# closures and loop_insertion -------------------------------------------------------------------------------------------


def test_the_sketch_of_a_closure_is_the_program_without_sizes() -> None:
    (sketch,) = sketches_of(closure_of(LENGTHS))
    expect_sketch(
        sketch,
        """
sketch a b {
    %0: a b = load #0 [a, b]
    %1: a b = square(%0)
    %2: a = sum(%1) over b
    %3: a = sqrt(%2)
  return %3
}
""",
    )


def test_the_identity_closure_offers_sums_of_products_as_one_product_too() -> None:
    joined, apart = sketches_of(
        closure_of(
            """
axis_program a=4 b=8 c=6 {
  %0 = load #0 [a, b]
  %1 = load #1 [b, c]
  %2 = contract(%0, %1) over b
  %3 = load #2 [a, b]
  %4 = load #3 [b, c]
  %5 = contract(%3, %4) over b
  %6 = add(%2, %5)
  return %6 [a, c]
}
""",
            as_written=True,
        )
    )
    expect_sketch(
        joined,
        """
sketch a b c {
    %0: a b = load #0 [a, b]
    %1: a b = load #2 [a, b]
    %2: b c = load #1 [b, c]
    %3: b c = load #3 [b, c]
    %4: a c = concat_contract(%0, %1, %2, %3) over b
  return %4
}
""",
    )
    assert "add(%2, %5)" in apart


LOOPED = """
sketch a b loop b {
  | %0: a b = load #0 [a, b]
  | %1: a b = square(%0)
    %2: a b = concat(%1)
    %3: a = sum(%2) over b
    %4: a = sqrt(%3)
  return %4
}
sketch a b loop b {
  | %0: a b = load #0 [a, b]
  | %1: a b = square(%0)
    %2: a b = accumulate(%1) over b
    %3: a = sum(%2) over b
    %4: a = sqrt(%3)
  return %4
}
sketch a b loop b {
  | %0: a b = load #0 [a, b]
  | %1: a b = square(%0)
  | %2: a = sum(%1) over b
    %3: a = accumulate(%2) over b
    %4: a = sqrt(%3)
  return %4
}
"""


def test_loop_insertion_puts_slices_side_by_side_adds_them_or_adds_their_sums() -> None:
    assert sketches_of(with_loop(closure_of(LENGTHS), 1, Fmaps.ALIGNED)) == sketches_in(LOOPED)


READ_WHOLE = """
sketch a b loop b {
  | %0: a b = load #0 [a, b] whole
    %1: a b = carry(%0)
    %2: a b = square(%1)
    %3: a = sum(%2) over b
    %4: a = sqrt(%3)
  return %4
}
"""


def test_loop_insertion_reads_operands_whole_where_all_fmaps_are_wanted() -> None:
    sketches = sketches_of(with_loop(closure_of(LENGTHS), 1, Fmaps.ALL))
    assert READ_WHOLE.strip() in sketches
    assert set(sketches_in(LOOPED)) < set(sketches)
    assert not loops_to_some_end(parse_sketch(READ_WHOLE))


def test_loop_insertion_along_an_axis_that_is_not_reduced_puts_results_side_by_side() -> None:
    *_, after = sketches_of(with_loop(closure_of(LENGTHS), 0, Fmaps.ALIGNED))
    expect_sketch(
        after,
        """
sketch a b loop a {
  | %0: a b = load #0 [a, b]
  | %1: a b = square(%0)
  | %2: a = sum(%1) over b
  | %3: a = sqrt(%2)
    %4: a = concat(%3)
  return %4
}
""",
    )


# safe_softmax ----------------------------------------------------------------------------------------------------------

LOOP_OVER_KEYS = """
sketch a b c loop b {
  | %0: a b = load #0 [a, b]
  | %1: a b = exp(%0)
  | %2: b c = load #1 [b, c]
  | %3: a c = contract(%1, %2) over b
    %4: a c = accumulate(%3) over b
  | %5: a = sum(%1) over b
    %6: a = accumulate(%5) over b
    %7: a c = div(%4, %6)
  return %7
}
"""


def stabilizer(loop_axis: int | None) -> Stabilizer:
    program = parse_axes(ATTENTION)
    return Stabilizer(program, Context.of(program, loop_axis), ARITHMETIC, INPUTS)


def test_safe_softmax_subtracts_the_row_maximum() -> None:
    (before,) = sketches_of(closure_of(ATTENTION, as_written=True))
    expect_sketch(
        format_sketch(stabilizer(None).stabilize(parse_sketch(before))),
        """
sketch a b c {
    %0: a b = load #0 [a, b]
    %1: a = max(%0) over b
    %2: a b = sub(%0, %1)
    %3: a b = exp(%2)
    %4: b c = load #1 [b, c]
    %5: a c = contract(%3, %4) over b
    %6: a = sum(%3) over b
    %7: a c = div(%5, %6)
  return %7
}
""",
    )


def test_safe_softmax_rescales_the_accumulators_of_a_loop_over_the_row() -> None:
    expect_sketch(
        format_sketch(stabilizer(1).stabilize(parse_sketch(LOOP_OVER_KEYS))),
        """
sketch a b c loop b {
  | %0: a b = load #0 [a, b]
  | %1: a = max(%0) over b least lowest
  | %2: a b = sub(%0, %1)
  | %3: a b = exp(%2)
  | %4: b c = load #1 [b, c]
  | %5: a c = contract(%3, %4) over b
    %6: a c = rescale(%5, %1) over b
  | %7: a = sum(%3) over b
    %8: a = rescale(%7, %1) over b
    %9: a c = div(%6, %8)
  return %9
}
""",
    )


def test_safe_softmax_leaves_exponentials_whose_rows_are_put_side_by_side() -> None:
    before = parse_sketch(
        """
sketch a b c loop b {
  | %0: a b = load #0 [a, b]
  | %1: a b = exp(%0)
  | %2: b c = load #1 [b, c]
  | %3: a c = contract(%1, %2) over b
    %4: a c = accumulate(%3) over b
    %5: a b = concat(%1)
    %6: a = sum(%5) over b
    %7: a c = div(%4, %6)
  return %7
}
"""
    )
    assert stabilizer(1).stabilize(before) == before


# two_pass_mean ---------------------------------------------------------------------------------------------------------


def test_two_pass_mean_subtracts_the_mean_of_the_difference_too() -> None:
    (after,) = centred(
        parse_sketch(
            """
sketch a b {
    %0: a b = load #0 [a, b]
    %1: 1 = constant 1/8
    %2: a = sum(%0) over b
    %3: a = mul(%1, %2)
    %4: a b = sub(%0, %3)
    %5: a b = square(%4)
    %6: a = sum(%5) over b
  return %6
}
"""
        )
    )
    expect_sketch(
        format_sketch(after),
        """
sketch a b {
    %0: a b = load #0 [a, b]
    %1: 1 = constant 1/8
    %2: a = sum(%0) over b
    %3: a = mul(%1, %2)
    %4: a b = sub(%0, %3)
    %5: a = sum(%4) over b
    %6: a = mul(%1, %5)
    %7: a b = sub(%4, %6)
    %8: a b = square(%7)
    %9: a = sum(%8) over b
  return %9
}
""",
    )


def test_two_pass_mean_leaves_the_difference_of_two_tensors() -> None:
    sketch = parse_sketch(
        """
sketch a b {
    %0: a b = load #0 [a, b]
    %1: a b = load #1 [a, b]
    %2: a b = sub(%0, %1)
  return %2
}
"""
    )
    assert list(centred(sketch)) == []


# sketches as programs, and splits --------------------------------------------------------------------------------------


def test_a_sketch_read_as_a_program_has_two_products_for_a_joined_one() -> None:
    joined = parse_sketch(
        """
sketch a b c {
    %0: a b = load #0 [a, b]
    %1: a b = load #2 [a, b]
    %2: b c = load #1 [b, c]
    %3: b c = load #3 [b, c]
    %4: a c = concat_contract(%0, %1, %2, %3) over b
  return %4
}
"""
    )
    after = """
axis_program a=4 b=8 c=6 {
  %0 = load #1 [b, c]
  %1 = load #0 [a, b]
  %2 = contract(%0, %1) over b
  %3 = load #3 [b, c]
  %4 = load #2 [a, b]
  %5 = contract(%3, %4) over b
  %6 = add(%2, %5)
  return %6 [a, c]
}
"""
    expect(as_program(joined, parse_axes(ATTENTION)), after)


IN_PARTS = """
axis_program a=4 b=8 c=6 d=1 {
  %0 = load #0 [a, d b]
  %1 = exp(%0)
  %2 = load #1 [d b, c]
  %3 = contract(%1, %2) over b
  %4 = sum(%3) over d
  %5 = sum(%1) over b
  %6 = sum(%5) over d
  %7 = div(%4, %6)
  return %7 [a, c]
}
"""


def test_iterations_of_a_sketch_become_parts_that_are_summed_last() -> None:
    expect(iterations_as_parts(parse_sketch(LOOP_OVER_KEYS), parse_axes(ATTENTION)), IN_PARTS)


def test_a_split_computes_parts_in_one_program_and_combines_them_in_another() -> None:
    split = split_at(parse_axes(IN_PARTS), parts=3)
    assert split is not None
    producer = """
axis_program a=4 b=8 c=6 d=1 projective {
  %0 = load #0 [a, d b]
  %1 = exp(%0)
  %2 = load #1 [d b, c]
  %3 = contract(%1, %2) over b
  %4 = sum(%1) over b
  return %3 [d, a, c], %4 [d, a]
}
"""
    consumer = """
axis_program a=4 b=8 c=6 d=1 {
  %0 = load #4 [d, a]
  %1 = max(%0) over d
  %2 = sub(%0, %1)
  %3 = exp(%2)
  %4 = load #2 [d, a, c]
  %5 = mul(%4, %3)
  %6 = load #3 [d, a]
  %7 = mul(%6, %3)
  %8 = sum(%5) over d
  %9 = sum(%7) over d
  %10 = div(%8, %9)
  return %10 [a, c]
}
"""
    expect(split.producer, producer)
    expect(consumer_of(split, (2, 3, 4)), consumer)
