"""Elementary functions that Triton's language lacks, written in it: by series where quotients or differences would cancel."""

from __future__ import annotations

from collections.abc import Mapping

ELEMENTARY: Mapping[str, str] = {
    "copysign": '''\
@triton.jit
def copysign(x, y):
    """The size of x with the sign of y, that of zeros too; one of them may be a number."""
    size = tl.where(y == y, x, x).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    sign = tl.where(x == x, y, y).to(tl.int32, bitcast=True) & -0x80000000
    return (size | sign).to(tl.float32, bitcast=True)
''',
    "rint": '''\
@triton.jit
def rint(x):
    """The nearest integers, ties to even: from 2^23 on there are no others."""
    size = tl.abs(x)
    rounded = (size + 8388608.0) - 8388608.0
    return tl.where(size < 8388608.0, tl.where(x < 0.0, -rounded, rounded), x)
''',
    "floor": '''\
@triton.jit
def floor(x):
    """The largest whole number that is not larger; `tl.floor` takes negative numbers next to 0 for 0."""
    whole = tl.floor(x)
    return tl.where((x < 0.0) & (whole == 0.0), -1.0, whole)
''',
    "exp": '''\
@triton.jit
def exp(x):
    """2^n e^r with r = x - n log(2) in two parts: `tl.exp` rounds the exponent of 2, and errs the more the larger x is."""
    shifted = tl.minimum(tl.maximum(x * 1.44269504, -126.0), 127.0) + 12582912.0
    n = shifted - 12582912.0
    r = tl.fma(n, 2.12194440e-4, tl.fma(n, -0.693359375, x))
    scale = (shifted.to(tl.int32, bitcast=True) << 23) + 0x3F800000
    return tl.exp2(r * 1.44269504) * scale.to(tl.float32, bitcast=True)
''',
    "expm1": '''\
@triton.jit
def expm1(x):
    """exp(x) - 1 = (2^(n-1) (exp(r) - 1) + (2^(n-1) - 1/2)) 2, which cancels nothing near 0."""
    inside = tl.where(x > 88.75, 88.75, tl.where(x < -30.0, -30.0, x))
    n = tl.floor(inside * 1.44269504 + 0.5)
    r = (inside - n * 0.693359375) + n * 2.12194440e-4
    series = 0.5 + r * (0.166665196 + r * (0.0416662060 + r * (0.00836888235 + r * 0.00139504787)))
    scale = ((n.to(tl.int32) + 126) << 23).to(tl.float32, bitcast=True)
    y = 2.0 * (scale * (series * (r * r) + r) + (scale - 0.5))
    return tl.where(x > 88.75, float("inf"), y)
''',
    "log1p": '''\
@triton.jit
def log1p(x):
    """log(1 + x), near 0 as 2 artanh(x / (2 + x))."""
    s = x / (2.0 + x)
    square = s * s
    series = 2.0 * s * (1.0 + square * (1 / 3 + square * (1 / 5 + square * (1 / 7 + square * (1 / 9)))))
    return tl.where(tl.abs(x) < 0.3, series, tl.log(1.0 + x))
''',
    "atan2": '''\
@triton.jit
def atan2(y, x):
    """The angle of (x, y), with the sign of y; one of them may be a number."""
    y, x = tl.where(x == x, y, y), tl.where(y == y, x, x)
    height, width = tl.abs(y), tl.abs(x)
    small, large = tl.minimum(height, width), tl.maximum(height, width)
    ratio = tl.where(large == 0.0, 0.0, tl.where(small == large, 1.0, small / large))
    z = ratio * ratio
    series = -0.0748900920 + z * (0.0425049886 + z * (-0.0159569029 + z * 0.00282363896))
    series = -0.333331019 + z * (0.199926957 + z * (-0.142027363 + z * (0.106347933 + z * series)))
    angle = ratio + ratio * z * series
    angle = tl.where(height > width, 1.57079633 - angle, angle)
    angle = tl.where(x.to(tl.int32, bitcast=True) < 0, 3.14159265 - angle, angle)
    angle = tl.where(y.to(tl.int32, bitcast=True) < 0, -angle, angle)
    return tl.where((x == x) & (y == y), angle, x + y)
''',
    "asin": '''\
@triton.jit
def asin(x):
    """Beyond 1/2, pi/2 - 2 asin(sqrt((1 - x) / 2))."""
    size = tl.abs(x)
    large = size > 0.5
    z = tl.where(large, 0.5 - 0.5 * size, x * x)
    near = tl.where(large, tl.sqrt(z), size)
    near = near + near * z * (0.166667536 + z * (0.0749524161 + z * (0.0454770997 + z * (0.0241476037 + z * 0.0422185622))))
    size = tl.where(large, 1.57079633 - 2.0 * near, near)
    return tl.where(x < 0.0, -size, size)
''',
    "acos": '''\
@triton.jit
def acos(x):
    """Beyond 1/2, 2 asin(sqrt((1 - x) / 2))."""
    size = tl.abs(x)
    large = size > 0.5
    z = tl.where(large, 0.5 - 0.5 * size, x * x)
    near = tl.where(large, tl.sqrt(z), x)
    near = near + near * z * (0.166667536 + z * (0.0749524161 + z * (0.0454770997 + z * (0.0241476037 + z * 0.0422185622))))
    return tl.where(large, tl.where(x < 0.0, 3.14159265 - 2.0 * near, 2.0 * near), 1.57079633 - near)
''',
    "erfc": '''\
@triton.jit
def erfc(x):
    """1 - erf(x) = t exp(-x^2 + p(t)) with t = 1 / (1 + x/2), the square of x in two parts."""
    size = tl.where(tl.abs(x) > 11.0, 11.0, tl.abs(x))
    t = 1.0 / (1.0 + 0.5 * size)
    p = -0.18628806 + t * (0.27886807 + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277))))
    p = -1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * p)))
    head = (size.to(tl.int32, bitcast=True) & -0x1000).to(tl.float32, bitcast=True)
    y = t * exp(p - (size - head) * (size + head)) * exp(-head * head)
    return tl.where(x == x, tl.where(x < 0.0, 2.0 - y, y), x)
''',
    "pow": '''\
@triton.jit
def pow(x, y):
    """x to the power of y, by the logarithm in double precision; one of them may be a number."""
    x, y = tl.where(y == y, x, x), tl.where(x == x, y, y)
    size = tl.abs(x)
    power = tl.exp2(y.to(tl.float64) * tl.log2(size.to(tl.float64))).to(tl.float32)
    power = tl.where((size == 1.0) & (tl.abs(y) == float("inf")), 1.0, power)
    whole, odd = tl.floor(y) == y, tl.floor(0.5 * y) != 0.5 * y
    power = tl.where((x.to(tl.int32, bitcast=True) < 0) & whole & odd, -power, power)
    power = tl.where((x < 0.0) & (x > float("-inf")) & (tl.floor(y) != y), float("nan"), power)
    power = tl.where((x == x) & (y == y), power, x + y)
    return tl.where((x == 1.0) | (y == 0.0), 1.0, power)
''',
    "fmod": '''\
@triton.jit
def fmod(x, y):
    """What multiples of y leave of x, in double precision, where each step is exact: one for every 28 bits of a quotient."""
    x, y = tl.where(y == y, x, x), tl.where(x == x, y, y)
    a, b = tl.abs(x).to(tl.float64), tl.abs(y).to(tl.float64)
    rest = a
    for step in tl.static_range(10):
        multiple = b * (2.0 ** (28 * (9 - step)))
        rest = rest - tl.floor(rest / multiple) * multiple
    rest = tl.where(rest < 0.0, rest + b, rest).to(tl.float32)
    rest = tl.where((b == float("inf")) & (a < b), tl.abs(x), rest)
    return tl.where(x < 0.0, -rest, rest)
''',
}
"""Functions by name."""
