/* Further elementary functions, each within 1e-6 of its value where that is a normal number. Stands behind prelude.h. */

extern float sinf(float), cosf(float), fmodf(float, float);

typedef float half_vec __attribute__((vector_size(2 * LANES)));
typedef double doubles __attribute__((vector_size(4 * LANES)));
typedef long long longs __attribute__((vector_size(4 * LANES)));
typedef union { vec whole; half_vec half[2]; } halved;
#define NEAREST 6755399441055744.0 /* 3 * 2^51: a double that is added and taken away again leaves the nearest integer */

INLINE ints sign_bit(vec x) { return (ints)x & (int)0x80000000; }
INLINE vec vec_copysign(vec size, vec sign) { return (vec)((ints)vec_abs(size) | sign_bit(sign)); }
/* Whether a condition holds in any lane: by masks where there are, as GCC looks at lanes one by one. */
INLINE int any(ints condition)
{
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
    return __builtin_ia32_cmpd512_mask(condition, (ints){0}, 4, 0xffff) != 0;
#elif LANES == 8 && defined(__AVX__)
    return __builtin_ia32_movmskps256((vec)condition) != 0;
#elif LANES == 4 && defined(__SSE__)
    return __builtin_ia32_movmskps((vec)condition) != 0;
#else
    long long found = 0;
    for (int i = 0; i < LANES / 2; ++i)
        found |= ((longs)condition)[i];
    return found != 0;
#endif
}

/* The nearest integers, ties to even: from 2^23 on there are no others. */
INLINE vec vec_rint(vec x)
{
    vec size = vec_abs(x), rounded = (size + 8388608.0f) - 8388608.0f;
    return choose(size < 8388608.0f, vec_copysign(rounded, x), x);
}
INLINE vec vec_floor(vec x)
{
    vec nearest = vec_rint(x);
    return choose(nearest > x, nearest - 1.0f, nearest);
}

/* x = n pi/2 + r, |r| <= pi/4. The first three parts of pi/2 have 11 bits, so that their products with n are exact up to n = 2^13. */
#define NEARBY 12800.0f
#define QUARTERS(x)                                                                                 \
    vec shifted = x * 0.636619772f + 12582912.0f;                                                   \
    vec n = shifted - 12582912.0f;                                                                  \
    vec r = x - n * 1.5703125f;                                                                     \
    r = r - n * 4.83512878e-4f;                                                                     \
    r = r - n * 3.13855708e-7f;                                                                     \
    r = r - n * 6.07710051e-11f;                                                                    \
    vec square = r * r;

INLINE vec sin_near_zero(vec r, vec square)
{
    POLYNOMIAL(square, -1.95152959e-4f, 8.33216087e-3f, -0.166666546f)
    return r + r * square * sum;
}
INLINE vec cos_near_zero(vec square)
{
    POLYNOMIAL(square, 2.44331571e-5f, -1.38873163e-3f, 0.0416666457f)
    return 1.0f - 0.5f * square + square * square * sum;
}
/* sin and cos of r, exchanged in every other quarter and negated in every other half, which begins `ahead` quarters before 0. */
INLINE vec by_quarter(vec shifted, vec r, vec square, const int ahead)
{
    ints quarter = (ints)shifted + ahead;
    vec y = choose((quarter & 1) != 0, cos_near_zero(square), sin_near_zero(r, square));
    return (vec)((ints)y ^ (quarter & 2) << 30);
}
INLINE vec vec_sin(vec x)
{
    QUARTERS(x)
    vec y = by_quarter(shifted, r, square, 0);
    ints far = ~(vec_abs(x) < NEARBY);
    if (__builtin_expect(any(far), 0))
        for (int i = 0; i < LANES; ++i)
            y[i] = far[i] ? sinf(x[i]) : y[i];
    return y;
}
INLINE vec vec_cos(vec x)
{
    QUARTERS(x)
    vec y = by_quarter(shifted, r, square, 1);
    ints far = ~(vec_abs(x) < NEARBY);
    if (__builtin_expect(any(far), 0))
        for (int i = 0; i < LANES; ++i)
            y[i] = far[i] ? cosf(x[i]) : y[i];
    return y;
}

/* 2^x = 2^n 2^r, |r| <= 1/2, exact where x is an integer. */
INLINE vec vec_exp2(vec x)
{
    x = at_least(at_most(x, 130.0f), -152.0f);
    vec shifted = x + 12582912.0f;
    vec r = (x - (shifted - 12582912.0f)) * 0.693147181f;
    return times_power(exp_near_zero(r), shifted);
}

/* log2(x) = e + log(1 + f) / log(2), exact for powers of two. */
INLINE vec vec_log2(vec x)
{
    vec e, f = log_fraction(x, &e), square = f * f;
    return log_special(x, (log_tail(f) - 0.5f * square + f) * 1.44269504f + e);
}

/* exp(x) - 1 = (2^(n-1) (exp(r) - 1) + (2^(n-1) - 1/2)) 2, which cancels nothing near 0. */
INLINE vec vec_expm1(vec x)
{
    vec inside = at_least(at_most(x, 88.75f), -30.0f);
    vec shifted = inside * 1.44269504f + 12582912.0f;
    vec n = shifted - 12582912.0f;
    vec r = inside - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vec scale = (vec)(((ints)shifted - 0x4b400000 + 126) << 23);
    vec y = 2.0f * (scale * exp_tail(r) + (scale - 0.5f));
    return choose(x > 88.75f, splat(__builtin_inff()), y);
}

/* log(1 + x), with what 1 + x lost of x. */
INLINE vec vec_log1p(vec x)
{
    vec u = 1.0f + x, y = vec_log(u);
    vec lost = (x - (u - 1.0f)) / u;
    return choose((vec_abs(u) < __builtin_inff()) & (u != 0.0f), y + lost, y);
}

INLINE vec vec_atan2(vec y, vec x)
{
    vec height = vec_abs(y), width = vec_abs(x);
    ints steep = height > width;
    vec small = choose(steep, width, height), large = choose(steep, height, width);
    vec ratio = choose(small == large, splat(1.0f), small / large);
    ratio = choose(large == 0.0f, splat(0.0f), ratio);
    vec square = ratio * ratio;
    POLYNOMIAL(square, 0.00282363896f, -0.0159569029f, 0.0425049886f, -0.0748900920f, 0.106347933f, -0.142027363f, 0.199926957f,
               -0.333331019f)
    vec angle = ratio + ratio * square * sum;
    angle = choose(steep, 1.57079633f - angle, angle);
    angle = choose(sign_bit(x) != 0, 3.14159265f - angle, angle);
    return choose((x == x) & (y == y), vec_copysign(angle, y), x + y);
}

/* asin(x) near 0; beyond 1/2 it is pi/2 - 2 asin(sqrt((1 - x) / 2)). */
INLINE vec asin_near_zero(vec x, vec square)
{
    POLYNOMIAL(square, 0.0422185622f, 0.0241476037f, 0.0454770997f, 0.0749524161f, 0.166667536f)
    return x + x * square * sum;
}
INLINE vec vec_asin(vec x)
{
    vec size = vec_abs(x);
    ints large = size > 0.5f;
    vec square = choose(large, 0.5f - 0.5f * size, x * x);
    vec near = asin_near_zero(choose(large, vec_sqrt(square), size), square);
    return vec_copysign(choose(large, 1.57079633f - 2.0f * near, near), x);
}
INLINE vec vec_acos(vec x)
{
    vec size = vec_abs(x);
    ints large = size > 0.5f;
    vec square = choose(large, 0.5f - 0.5f * size, x * x);
    vec near = asin_near_zero(choose(large, vec_sqrt(square), x), square);
    vec twice = 2.0f * near;
    return choose(large, choose(x < 0.0f, 3.14159265f - twice, twice), 1.57079633f - near);
}

/* t exp(-x^2 + p(t)) with t = 1 / (1 + x/2), the square of x in two parts. */
INLINE vec vec_erfc(vec x)
{
    vec size = vec_abs(x);
    size = choose(size > 11.0f, splat(11.0f), size);
    vec t = 1.0f / (1.0f + 0.5f * size);
    POLYNOMIAL(t, 0.17087277f, -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f,
               1.00002368f, -1.26551223f)
    vec head = (vec)((ints)size & ~0xfff);
    vec y = t * vec_exp(sum - (size - head) * (size + head)) * vec_exp(-head * head);
    y = choose(x < 0.0f, 2.0f - y, y);
    return choose(x == x, y, x);
}

/* What the nearest multiple of y leaves of x, in double precision, where it is exact: quotients up to 2^29. */
INLINE half_vec left_over(half_vec x, half_vec y)
{
    doubles a = __builtin_convertvector(x, doubles), b = __builtin_convertvector(y, doubles);
    doubles n = (a / b + NEAREST) - NEAREST;
    return __builtin_convertvector(a - n * b, half_vec);
}
INLINE vec vec_fmod(vec x, vec y)
{
    halved a = {vec_abs(x)}, b = {vec_abs(y)}, rest;
    for (int i = 0; i < 2; ++i)
        rest.half[i] = left_over(a.half[i], b.half[i]);
    vec positive = choose(rest.whole < 0.0f, rest.whole + b.whole, rest.whole);
    vec found = vec_copysign(positive, x);
    ints far = ~((a.whole < b.whole * 536870912.0f) & (b.whole < __builtin_inff()));
    if (__builtin_expect(any(far), 0))
        for (int i = 0; i < LANES; ++i)
            found[i] = far[i] ? fmodf(x[i], y[i]) : found[i];
    return found;
}

/* y log2(x) = n + r, |r| <= 1/2, for positive x, in double precision: an error of r is one of the power. */
INLINE void power_of_two(half_vec x, half_vec y, half_vec *n, half_vec *r)
{
    longs word = (longs)__builtin_convertvector(x, doubles) - 0x3fe6a09e667f3bcd;
    doubles e = (doubles)((word >> 52) + 0x4338000000000000) - NEAREST;
    doubles m = (doubles)((word & 0xfffffffffffff) + 0x3fe6a09e667f3bcd);
    doubles s = (m - 1.0) / (m + 1.0), z = s * s;
    doubles sum = z * (1.0 / 13) + 1.0 / 11;
    sum = ((((sum * z + 1.0 / 9) * z + 1.0 / 7) * z + 1.0 / 5) * z + 1.0 / 3) * z + 1.0;
    doubles product = (e + s * sum * 2.8853900817779268) * __builtin_convertvector(y, doubles);
    longs far = (product > 512.0) | (product < -512.0), sign = (longs)product & (-0x7fffffffffffffff - 1);
    product = (doubles)((far & (sign | (longs)((doubles){0} + 512.0))) | (~far & (longs)product));
    doubles nearest = (product + NEAREST) - NEAREST;
    *n = __builtin_convertvector(nearest, half_vec);
    *r = __builtin_convertvector(product - nearest, half_vec);
}
INLINE vec vec_pow(vec x, vec y)
{
    halved size = {vec_abs(x)}, exponent = {y}, n, r;
    for (int i = 0; i < 2; ++i)
        power_of_two(size.half[i], exponent.half[i], &n.half[i], &r.half[i]);
    vec shift = choose(n.whole > 130.0f, splat(130.0f), choose(n.whole < -152.0f, splat(-152.0f), n.whole));
    ints power = (ints)(shift + 12582912.0f) - 0x4b400000;
    ints half = power >> 1;
    vec found = exp_near_zero(r.whole * 0.693147181f) * (vec)((half + 127) << 23) * (vec)((power - half + 127) << 23);
    vec infinity = splat(__builtin_inff());
    ints vanishes = size.whole == 0.0f, endless = vec_abs(y) == infinity;
    found = choose(vanishes | (size.whole == infinity), choose((y < 0.0f) == vanishes, infinity, splat(0.0f)), found);
    found = choose(endless, choose((size.whole > 1.0f) == (y > 0.0f), infinity, splat(0.0f)), found);
    found = choose(endless & (size.whole == 1.0f), splat(1.0f), found);
    ints odd = (vec_floor(y) == y) & (vec_floor(0.5f * y) != 0.5f * y);
    found = choose((sign_bit(x) != 0) & odd, -found, found);
    found = choose((x < 0.0f) & (x > -infinity) & (vec_floor(y) != y), splat(__builtin_nanf("")), found);
    found = choose((x == x) & (y == y), found, x + y);
    return choose((x == 1.0f) | (y == 0.0f), splat(1.0f), found);
}

#define sin(x) vec_sin(WIDE(x))
#define cos(x) vec_cos(WIDE(x))
#define exp2(x) vec_exp2(WIDE(x))
#define log2(x) vec_log2(WIDE(x))
#define expm1(x) vec_expm1(WIDE(x))
#define log1p(x) vec_log1p(WIDE(x))
#define atan2(y, x) vec_atan2(WIDE(y), WIDE(x))
#define asin(x) vec_asin(WIDE(x))
#define acos(x) vec_acos(WIDE(x))
#define floor(x) vec_floor(WIDE(x))
#define rint(x) vec_rint(WIDE(x))
#define erfc(x) vec_erfc(WIDE(x))
#define fmod(x, y) vec_fmod(WIDE(x), WIDE(y))
#define copysign(x, y) vec_copysign(WIDE(x), WIDE(y))
#define pow(x, y) vec_pow(WIDE(x), WIDE(y))
