/* Vector primitives of generated kernels. No header is included: compiling stays fast and needs no C library.
   LANES is defined by the printer: floats in the host's widest vector register. */

typedef float fp32_t;
typedef unsigned short bf16_t;
typedef unsigned char bool_t;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned char e4m3fn_t;
typedef unsigned char e5m2_t;
typedef int int32_t;
typedef long long int64_t;
#ifdef __FLT16_MANT_DIG__
typedef _Float16 fp16_t;
typedef fp16_t halfs __attribute__((vector_size(2 * LANES)));
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int ints __attribute__((vector_size(4 * LANES)));
typedef unsigned bits __attribute__((vector_size(4 * LANES)));
typedef unsigned short shorts __attribute__((vector_size(2 * LANES)));
typedef short words __attribute__((vector_size(2 * LANES)));
typedef unsigned char bytes __attribute__((vector_size(LANES)));
typedef signed char signed_bytes __attribute__((vector_size(LANES)));

extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));
extern int omp_get_num_threads(void) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));
extern void *aligned_alloc(unsigned long, unsigned long);
extern void free(void *);

#define INLINE static inline __attribute__((always_inline, unused))

/* Run `task` on every thread of the pool that the process already has, or here when there is none. */
static __attribute__((unused)) void launch(void (*task)(void *), void *data, int parallel)
{
    if (parallel && GOMP_parallel)
        GOMP_parallel(task, data, 0, 0);
    else
        task(data);
}

/* The contiguous share [*first, *last) of `blocks` that one of several threads has. */
INLINE void share_of(long blocks, long thread, long threads, long *first, long *last)
{
    *first = blocks * thread / threads;
    *last = blocks * (thread + 1) / threads;
}

/* The share of this thread, within `launch`. */
INLINE void share(long blocks, long *first, long *last)
{
    if (GOMP_parallel)
        share_of(blocks, omp_get_thread_num(), omp_get_num_threads(), first, last);
    else
        share_of(blocks, 0, 1, first, last);
}

/* The first of `count` integers that is less than `least` or not less than `rows`, counted from 1; 0 where there is none. */
#define DEFINE_FIRST_OUTSIDE(type)                                                                  \
    INLINE long first_outside_##type(const type##_t *p, long count, long least, long rows)          \
    {                                                                                               \
        for (long i = 0; i < count; ++i)                                                            \
            if (p[i] < least || p[i] >= rows)                                                       \
                return i + 1;                                                                       \
        return 0;                                                                                   \
    }
DEFINE_FIRST_OUTSIDE(int32)
DEFINE_FIRST_OUTSIDE(int64)

/* A place that is counted from the end where it is negative. */
INLINE long from_end(long place, long rows) { return place < 0 ? place + rows : place; }

/* Of a length that is an argument: how many of `loop` iterations, each of which begins `step` elements further, have any of so many
   elements, and how many have not more. */
INLINE long larger(long x, long y) { return x > y ? x : y; }
INLINE long smaller(long x, long y) { return x < y ? x : y; }
INLINE long held_within(long elements, long step, long loop)
{
    if (elements < 0)
        return 0;
    return step == 0 ? loop : smaller(elements / step + 1, loop);
}
INLINE long iterations_within(long elements, long step, long loop)
{
    if (elements <= 0)
        return 0;
    return step == 0 || elements > step * (loop - 1) ? loop : (elements + step - 1) / step;
}

/* The first `count` of `length` elements, and 0 for the others; and where an array begins that has an element `elements` further on. */
#define DEFINE_COPY_FIRST(type)                                                                     \
    INLINE void copy_first_##type(type##_t *to, const type##_t *from, long count, long length)      \
    {                                                                                               \
        count = count < length ? count : length;                                                    \
        if (count > 0)                                                                              \
            __builtin_memcpy(to, from, count * sizeof(type##_t));                                   \
        __builtin_memset(to + count, 0, (length - count) * sizeof(type##_t));                       \
    }                                                                                               \
    INLINE const type##_t *before_##type(const type##_t *p, long elements)                          \
    {                                                                                               \
        return (const type##_t *)((unsigned long)p - elements * sizeof(type##_t));                  \
    }
DEFINE_COPY_FIRST(fp32)
DEFINE_COPY_FIRST(bf16)
DEFINE_COPY_FIRST(bool)
DEFINE_COPY_FIRST(int8)
DEFINE_COPY_FIRST(uint8)
DEFINE_COPY_FIRST(e4m3fn)
DEFINE_COPY_FIRST(e5m2)
#ifdef __FLT16_MANT_DIG__
DEFINE_COPY_FIRST(fp16)
#endif

/* Memory that the compiler shall take for known elsewhere. GCC 12 computes addresses within a block's own memory from those of other
   buffers in it, forgets where they point, and leaves out stores that nobody else could read. */
#define ESCAPED(pointer) __asm__("" : "+r"(pointer))

#if defined(__AVX512F__)
#define IN_REGISTER "+v"
#elif defined(__x86_64__)
#define IN_REGISTER "+x"
#elif defined(__aarch64__)
#define IN_REGISTER "+w"
#else
#define IN_REGISTER "+m"
#endif
/* A vector that stays in its register for several products: where registers are scarce, GCC reads it again for each of them. Units
   that cannot multiply and add in one instruction need a register more for each product. */
#if defined(__AVX512F__) || LANES == 8 && defined(__FMA__) || LANES == 4 && defined(__aarch64__)
#define STAYS(x) __asm__("" : IN_REGISTER(x))
#else
#define STAYS(x)
#endif

/* Conversions between fp32 vectors and what is stored. */

INLINE vec splat(float x) { return x - (vec){0}; }
INLINE vec from_fp32(vec x) { return x; }
INLINE vec to_fp32(vec x) { return x; }
INLINE float one_fp32(const fp32_t *p) { return *p; }

/* GCC splits this conversion into four instructions where one exists. */
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
#define WIDEN(x) ((bits)__builtin_ia32_pmovzxwd512_mask((short __attribute__((vector_size(32))))(x), (ints){0}, 0xffff))
#else
#define WIDEN(x) __builtin_convertvector(x, bits)
#endif
INLINE vec from_bf16(shorts x) { return (vec)(WIDEN(x) << 16); }
INLINE float one_bf16(const bf16_t *p)
{
    union { unsigned u; float f; } word = {.u = (unsigned)*p << 16};
    return word.f;
}
INLINE shorts rounded_to_bf16(vec x)
{
    bits u = (bits)x;
    bits even = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    bits nan = (u >> 16) | 0x40u;
    ints is_nan = x != x;
    return __builtin_convertvector(((bits)is_nan & nan) | (~(bits)is_nan & even), shorts);
}
/* The instruction that rounds to bf16 takes subnormal numbers for 0: where there are any, the others are rounded without it, too. */
#if LANES == 16 && defined(__AVX512BF16__) && defined(__AVX512DQ__) && !defined(__clang__)
INLINE shorts to_bf16(vec x)
{
    if (__builtin_expect(__builtin_ia32_fpclassps512_mask(x, 0x20, 0xffff), 0))
        return rounded_to_bf16(x);
    return (shorts)__builtin_ia32_cvtneps2bf16_v16sf(x);
}
#else
INLINE shorts to_bf16(vec x) { return rounded_to_bf16(x); }
#endif

/* Booleans are bytes: 1 for whatever is not 0. */
INLINE vec from_bool(bytes x) { return __builtin_convertvector(__builtin_convertvector(x, ints), vec); }
INLINE float one_bool(const bool_t *p) { return (float)*p; }
INLINE bytes to_bool(vec x) { return __builtin_convertvector((ints)(x != 0.0f) & 1, bytes); }

/* Whole numbers of 8 bits. GCC widens bytes in several steps where one instruction does. */
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
typedef char chars __attribute__((vector_size(LANES)));
#define WIDEN_SIGNED(x) ((ints)__builtin_ia32_pmovsxbd512_mask((chars)(x), (ints){0}, 0xffff))
#define WIDEN_UNSIGNED(x) ((ints)__builtin_ia32_pmovzxbd512_mask((chars)(x), (ints){0}, 0xffff))
#else
#define WIDEN_SIGNED(x) __builtin_convertvector(x, ints)
#define WIDEN_UNSIGNED(x) __builtin_convertvector(x, ints)
#endif
INLINE vec from_int8(signed_bytes x) { return __builtin_convertvector(WIDEN_SIGNED(x), vec); }
INLINE vec from_uint8(bytes x) { return __builtin_convertvector(WIDEN_UNSIGNED(x), vec); }
INLINE float one_int8(const int8_t *p) { return (float)*p; }
INLINE float one_uint8(const uint8_t *p) { return (float)*p; }
INLINE signed_bytes to_int8(vec x) { return __builtin_convertvector(__builtin_convertvector(x, ints), signed_bytes); }
INLINE bytes to_uint8(vec x) { return __builtin_convertvector(__builtin_convertvector(x, ints), bytes); }

/* Numbers of 8 bits: a sign, an exponent of that bias, `mantissa` bits. `last` is the largest finite one without its sign; the next is
   infinity where `infinite`, and those beyond are no numbers. What is stored was loaded before, so nothing lies beyond `last`. */
#define CHOOSE(which, x, y) (((bits)(which) & (bits)(x)) | (~(bits)(which) & (bits)(y)))
INLINE vec from_fp8(bytes x, const int mantissa, const unsigned bias, const unsigned last, const int infinite)
{
    bits code = (bits)WIDEN_UNSIGNED(x), size = code & 0x7fu;
    bits normal = (size << (23 - mantissa)) + ((127u - bias) << 23);
    vec small = __builtin_convertvector((ints)size, vec) * (1.0f / (1u << (bias - 1 + mantissa)));
    bits number = CHOOSE(size < (1u << mantissa), small, normal);
    bits beyond = infinite ? CHOOSE(size == last + 1, (bits){0} + 0x7f800000u, (bits){0} + 0x7fc00000u) : (bits){0} + 0x7fc00000u;
    return (vec)(CHOOSE(size > last, beyond, number) | (code & 0x80u) << 24);
}
INLINE bytes to_fp8(vec x, const int mantissa, const unsigned bias, const unsigned last, const int infinite)
{
    bits size = (bits)x & 0x7fffffffu, half = (1u << (22 - mantissa)) - 1u + (size >> (23 - mantissa) & 1u);
    bits normal = ((size + half) >> (23 - mantissa)) - ((127u - bias) << mantissa);
    bits small = (bits)((vec)size * (float)(1u << (bias - 1 + mantissa)) + 0x1p23f) & 0xffu;
    bits code = CHOOSE(size < (128u - bias) << 23, small, normal);
    code = CHOOSE(code > last, (bits){0} + (infinite ? last + 1 : 0x7fu), code);
    code = CHOOSE(size > 0x7f800000u, (bits){0} + 0x7fu, code);
    return __builtin_convertvector(code | ((bits)x >> 24 & 0x80u), bytes);
}
INLINE vec from_e4m3fn(bytes x) { return from_fp8(x, 3, 7, 0x7e, 0); }
INLINE vec from_e5m2(bytes x) { return from_fp8(x, 2, 15, 0x7b, 1); }
INLINE float one_e4m3fn(const e4m3fn_t *p) { return from_e4m3fn((bytes){*p})[0]; }
INLINE float one_e5m2(const e5m2_t *p) { return from_e5m2((bytes){*p})[0]; }
INLINE bytes to_e4m3fn(vec x) { return to_fp8(x, 3, 7, 0x7e, 0); }
INLINE bytes to_e5m2(vec x) { return to_fp8(x, 2, 15, 0x7b, 1); }

#ifdef __FLT16_MANT_DIG__
/* GCC converts vectors of fp16 number by number where there are instructions for all. */
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
INLINE vec from_fp16(halfs x) { return __builtin_ia32_vcvtph2ps512_mask((words)x, (vec){0}, 0xffff, 4); }
INLINE halfs to_fp16(vec x) { return (halfs)__builtin_ia32_vcvtps2ph512_mask(x, 0, (words){0}, 0xffff); }
#elif LANES == 8 && defined(__F16C__) && !defined(__clang__)
INLINE vec from_fp16(halfs x) { return __builtin_ia32_vcvtph2ps256((words)x); }
INLINE halfs to_fp16(vec x) { return (halfs)__builtin_ia32_vcvtps2ph256(x, 0); }
#else
INLINE vec from_fp16(halfs x) { return __builtin_convertvector(x, vec); }
INLINE halfs to_fp16(vec x) { return __builtin_convertvector(x, halfs); }
#endif
INLINE float one_fp16(const fp16_t *p) { return (float)*p; }
#endif

/* Whether all elements of a matrix are one number; most that are not show it in the first. */
#define DEFINE_ALL(type)                                                                                                    \
    INLINE int all_##type(const type##_t *p, long rows, long row, long columns, long column, float number)                  \
    {                                                                                                                       \
        for (long i = 0; i < rows; ++i, p += row) {                                                                         \
            int others = one_##type(p) != number;                                                                           \
            if (others)                                                                                                     \
                return 0;                                                                                                   \
            for (long j = 1; j < columns; ++j)                                                                              \
                others |= one_##type(p + j * column) != number;                                                             \
            if (others)                                                                                                     \
                return 0;                                                                                                   \
        }                                                                                                                   \
        return 1;                                                                                                           \
    }
DEFINE_ALL(fp32)
DEFINE_ALL(bf16)
DEFINE_ALL(bool)
DEFINE_ALL(int8)
DEFINE_ALL(uint8)
DEFINE_ALL(e4m3fn)
DEFINE_ALL(e5m2)
#ifdef __FLT16_MANT_DIG__
DEFINE_ALL(fp16)
#endif

/* The first n lanes, in one access where there are masks. Else through the stack, where a vector of which a part was just written
   is read as a whole, which takes many times as long. */
#define READ_FIRST(packed, x, p, n) READ_FIRST_##packed(x, p, n)
#define WRITE_FIRST(packed, x, p, n) WRITE_FIRST_##packed(x, p, n)
#define READ_SOME(x, p, n) (__builtin_memset(&x, 0, sizeof x), __builtin_memcpy(&x, p, (n) * sizeof *p))
#define WRITE_SOME(x, p, n) __builtin_memcpy(p, &x, (n) * sizeof *p)
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
#define READ_FIRST_vec(x, p, n) (x = __builtin_ia32_loadups512_mask(p, (vec){0}, (unsigned short)((1u << (n)) - 1)))
#define WRITE_FIRST_vec(x, p, n) __builtin_ia32_storeups512_mask(p, x, (unsigned short)((1u << (n)) - 1))
#elif LANES == 8 && defined(__AVX__) && !defined(__clang__)
#define FIRST(n) ((ints){0, 1, 2, 3, 4, 5, 6, 7} < (n))
#define READ_FIRST_vec(x, p, n) (x = __builtin_ia32_maskloadps256((const vec *)(p), FIRST(n)))
#define WRITE_FIRST_vec(x, p, n) __builtin_ia32_maskstoreps256((vec *)(p), FIRST(n), x)
#else
#define READ_FIRST_vec READ_SOME
#define WRITE_FIRST_vec WRITE_SOME
#endif
#if LANES == 16 && defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(__clang__)
#define READ_FIRST_shorts(x, p, n)                                                                  \
    (x = (__typeof__(x))__builtin_ia32_loaddquhi256_mask((const short *)(p), (words){0}, (unsigned short)((1u << (n)) - 1)))
#define WRITE_FIRST_shorts(x, p, n) __builtin_ia32_storedquhi256_mask((short *)(p), (words)x, (unsigned short)((1u << (n)) - 1))
#else
#define READ_FIRST_shorts READ_SOME
#define WRITE_FIRST_shorts WRITE_SOME
#endif
#define READ_FIRST_halfs READ_FIRST_shorts
#define WRITE_FIRST_halfs WRITE_FIRST_shorts
#define READ_FIRST_bytes READ_SOME
#define WRITE_FIRST_bytes WRITE_SOME
#define READ_FIRST_signed_bytes READ_SOME
#define WRITE_FIRST_signed_bytes WRITE_SOME

/* Loads and stores: whole vectors, the first n lanes (the others read as 0), lanes `stride` elements apart. */
#define MEMORY(type, packed)                                                                        \
    INLINE vec load_##type(const type##_t *p)                                                       \
    {                                                                                               \
        packed x;                                                                                   \
        __builtin_memcpy(&x, p, sizeof x);                                                          \
        return from_##type(x);                                                                      \
    }                                                                                               \
    INLINE vec load_first_##type(const type##_t *p, const int n)                                    \
    {                                                                                               \
        packed x;                                                                                   \
        READ_FIRST(packed, x, p, n);                                                                \
        return from_##type(x);                                                                      \
    }                                                                                               \
    INLINE vec gather_##type(const type##_t *p, long stride, const int n)                           \
    {                                                                                               \
        vec x = {0};                                                                                \
        for (int i = 0; i < n; ++i)                                                                 \
            x[i] = one_##type(p + i * stride);                                                      \
        return x;                                                                                   \
    }                                                                                               \
    INLINE vec spread_##type(const type##_t *p) { return splat(one_##type(p)); }                    \
    INLINE void store_##type(type##_t *p, vec value)                                                \
    {                                                                                               \
        packed x = to_##type(value);                                                                \
        __builtin_memcpy(p, &x, sizeof x);                                                          \
    }                                                                                               \
    INLINE void store_one_##type(type##_t *p, float value)                                          \
    {                                                                                               \
        *p = to_##type(splat(value))[0];                                                            \
    }                                                                                               \
    INLINE void store_first_##type(type##_t *p, vec value, const int n)                             \
    {                                                                                               \
        packed x = to_##type(value);                                                                \
        WRITE_FIRST(packed, x, p, n);                                                               \
    }                                                                                               \
    INLINE void scatter_##type(type##_t *p, long stride, vec value, const int n)                    \
    {                                                                                               \
        packed x = to_##type(value);                                                                \
        for (int i = 0; i < n; ++i)                                                                 \
            p[i * stride] = x[i];                                                                   \
    }

MEMORY(fp32, vec)
MEMORY(bf16, shorts)
MEMORY(bool, bytes)
MEMORY(int8, signed_bytes)
MEMORY(uint8, bytes)
MEMORY(e4m3fn, bytes)
MEMORY(e5m2, bytes)
#ifdef __FLT16_MANT_DIG__
MEMORY(fp16, halfs)
#endif

/* Every other number from p on; reads one behind the last. */
INLINE vec load_alternate_bf16(const bf16_t *p)
{
    bits x;
    __builtin_memcpy(&x, p, sizeof x);
    return (vec)(x << 16);
}

/* Pairs of bf16 numbers, two in each lane of a float vector. */
typedef short pairs __attribute__((vector_size(4 * LANES)));

INLINE pairs load_pairs(const bf16_t *p)
{
    pairs x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
INLINE pairs load_first_pairs(const bf16_t *p, const int n)
{
#if LANES == 16 && defined(__AVX512BW__) && !defined(__clang__)
    return __builtin_ia32_loaddquhi512_mask((const short *)p, (pairs){0}, (unsigned)((1ull << n) - 1));
#else
    pairs x = {0};
    __builtin_memcpy(&x, p, n * sizeof *p);
    return x;
#endif
}
INLINE pairs spread_pair(const bf16_t *p)
{
    int word;
    __builtin_memcpy(&word, p, sizeof word);
    return (pairs)(word - (ints){0});
}
INLINE pairs spread_alone(const bf16_t *p) { return (pairs)((int)*p - (ints){0}); }
/* Numbers of bf16 in fp32, of two rows, as pairs. */
INLINE vec pair_up(vec first, vec second) { return (vec)((bits)first >> 16 | (bits)second); }
/* sum + a0 * b0 + a1 * b1 in every lane. */
INLINE vec add_products(vec sum, pairs a, pairs b)
{
#if LANES == 16 && defined(__AVX512BF16__) && defined(__clang__)
    typedef __bf16 numbers __attribute__((vector_size(64)));
    return __builtin_ia32_dpbf16ps_512(sum, (numbers)a, (numbers)b);
#elif LANES == 16 && defined(__AVX512BF16__) && __GNUC__ >= 13
    typedef __bf16 numbers __attribute__((vector_size(64)));
    return __builtin_ia32_dpbf16ps_v16sf(sum, (numbers)a, (numbers)b);
#elif LANES == 16 && defined(__AVX512BF16__)
    return __builtin_ia32_dpbf16ps_v16sf(sum, a, b);
#else
    bits x = (bits)a, y = (bits)b;
    sum += (vec)(x & 0xffff0000u) * (vec)(y & 0xffff0000u);
    return sum + (vec)(x << 16) * (vec)(y << 16);
#endif
}

/* Functions of four bits as tables of 16 numbers, those of pairs twice: the bits beyond are not looked at. */
INLINE pairs load_fours(const uint8_t *p)
{
    pairs x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
INLINE pairs load_first_fours(const uint8_t *p, const int n)
{
    pairs x = {0};
    __builtin_memcpy(&x, p, n);
    return x;
}
/* The second and the third of four numbers exchanged, as those of fours are read: every other one first. */
INLINE void exchange_middle(bf16_t *to, const bf16_t *from)
{
    unsigned long long x;
    __builtin_memcpy(&x, from, sizeof x);
    x = (x & 0xffff00000000ffffull) | (x >> 16 & 0xffff0000ull) | (x & 0xffff0000ull) << 16;
    __builtin_memcpy(to, &x, sizeof x);
}
INLINE ints bytes_as_ints(const uint8_t *p)
{
    bytes x;
    __builtin_memcpy(&x, p, sizeof x);
    return WIDEN_UNSIGNED(x);
}
INLINE ints first_bytes_as_ints(const uint8_t *p, const int n)
{
    bytes x = {0};
    __builtin_memcpy(&x, p, n);
    return WIDEN_UNSIGNED(x);
}
#if LANES == 16
#if defined(__AVX512BW__) && !defined(__clang__)
#define look_up_pairs(table, places) __builtin_ia32_permvarhi512_mask(table, places, (pairs){0}, -1)
#define look_up(table, places) __builtin_ia32_permvarsf512_mask(table, places, (vec){0}, -1)
#elif !defined(__clang__)
#define look_up_pairs(table, places) __builtin_shuffle(table, places)
#define look_up(table, places) __builtin_shuffle(table, places)
#elif defined(__AVX512BW__)
#define look_up_pairs(table, places) ((pairs)__builtin_ia32_permvarhi512(table, places))
#define look_up(table, places) ((vec)__builtin_ia32_permvarsf512(table, places))
#else
INLINE pairs look_up_pairs(pairs table, pairs places)
{
    pairs x;
    for (int i = 0; i < 2 * LANES; ++i)
        x[i] = table[places[i] & 31];
    return x;
}
INLINE vec look_up(vec table, ints places)
{
    vec x;
    for (int i = 0; i < LANES; ++i)
        x[i] = table[places[i] & 15];
    return x;
}
#endif

/* The first, and the last eight numbers, each twice. */
#define FIRST_TWICE(x) __builtin_shufflevector(x, x, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7)
#define LAST_TWICE(x) __builtin_shufflevector(x, x, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15)
#endif

#if LANES == 16
/* Two vectors as 32 numbers of bf16, subnormal ones as zero where the matrix unit takes them for it. */
INLINE void store_pairs(bf16_t *p, vec first, vec second)
{
#if defined(__AVX512BF16__) && defined(__AMX_BF16__) && !defined(__clang__) && __GNUC__ < 13
    pairs x = __builtin_ia32_cvtne2ps2bf16_v32hi(second, first);
    __builtin_memcpy(p, &x, sizeof x);
#else
    store_bf16(p, first);
    store_bf16(p + LANES, second);
#endif
}

/* 16 columns of 32 rows of whole numbers, which are numbers of bf16, as rows of pairs. */
#define WIDEN_ROWS(type)                                                                            \
    INLINE void widen_rows_##type(bf16_t *to, const type##_t *from, long stride)                    \
    {                                                                                               \
        for (int r = 0; r < 16; ++r) {                                                              \
            bits first = (bits)load_##type(from + 2 * r * stride);                                  \
            bits second = (bits)load_##type(from + (2 * r + 1) * stride);                           \
            bits pair = (first >> 16) | (second & 0xffff0000u);                                     \
            __builtin_memcpy(to + 32 * r, &pair, sizeof pair);                                      \
        }                                                                                           \
    }
WIDEN_ROWS(int8)
WIDEN_ROWS(uint8)
#endif

/* Registers of a matrix unit, 16 rows of 64 bytes, whose numbers are written in the text. Where there is no such unit, or
   EMULATED_TILES is defined, they are arrays. */
typedef struct {
    unsigned char palette, start, reserved[14];
    unsigned short bytes[16];
    unsigned char rows[16];
} tile_shapes;

#if defined(__AMX_BF16__) && !defined(EMULATED_TILES)
#define USE_TILES
#define SHAPE_TILES(shapes) __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
#define RELEASE_TILES __asm__ volatile("tilerelease" : : : "memory");
#define CLEAR_TILE(t) __asm__ volatile("tilezero %%tmm" #t : :)
#define LOAD_TILE(t, p, stride)                                                                     \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"((const void *)(p)), "r"((long)(stride)) : "memory")
#define STORE_TILE(t, p, stride)                                                                    \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"((void *)(p)), "r"((long)(stride)) : "memory")
#define MULTIPLY_TILES(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
#else
typedef unsigned char tile_memory[16][64];
#define USE_TILES                                                                                   \
    tile_memory tiles[8];                                                                           \
    const tile_shapes *shaped;
#define SHAPE_TILES(shapes) shaped = &(shapes);
#define RELEASE_TILES
#define CLEAR_TILE(t) __builtin_memset(tiles[t], 0, sizeof tiles[t])
#define LOAD_TILE(t, p, stride)                                                                     \
    for (int r = 0; r < shaped->rows[t]; ++r)                                                       \
    __builtin_memcpy(tiles[t][r], (const char *)(p) + (long)(stride) * r, 64)
#define STORE_TILE(t, p, stride)                                                                    \
    for (int r = 0; r < shaped->rows[t]; ++r)                                                       \
    __builtin_memcpy((char *)(p) + (long)(stride) * r, tiles[t][r], 64)
#define MULTIPLY_TILES(c, a, b) multiply_tiles(shaped->rows[c], tiles[c], tiles[a], tiles[b])
static __attribute__((unused)) void multiply_tiles(int rows, tile_memory c, tile_memory a, tile_memory b)
{
    for (int m = 0; m < rows; ++m)
        for (int n = 0; n < 16; ++n)
            for (int k = 0; k < 32; ++k)
                ((float *)c[m])[n] +=
                    one_bf16((const bf16_t *)a[m] + k) * one_bf16((const bf16_t *)b[k / 2] + 2 * n + k % 2);
}
#endif

/* Lane arithmetic. */

INLINE vec choose(ints condition, vec yes, vec no)
{
    return (vec)((condition & (ints)yes) | (~condition & (ints)no));
}
/* The larger one, NaN if one is; and x where it is NaN, else the smaller or larger one. GCC has no choice of vectors in one instruction. */
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
INLINE vec vec_max(vec a, vec b)
{
    vec larger = __builtin_ia32_maxps512_mask(a, b, b, 0xffff, 4);
    return __builtin_ia32_blendmps_512_mask(larger, a, __builtin_ia32_cmpps512_mask(a, a, 3, 0xffff, 4));
}
INLINE vec at_most(vec x, float most) { return __builtin_ia32_minps512_mask(splat(most), x, x, 0xffff, 4); }
INLINE vec at_least(vec x, float least) { return __builtin_ia32_maxps512_mask(splat(least), x, x, 0xffff, 4); }
#else
INLINE vec vec_max(vec a, vec b) { return choose((a > b) | (a != a), a, b); }
INLINE vec at_most(vec x, float most) { return choose(x > most, splat(most), x); }
INLINE vec at_least(vec x, float least) { return choose(x < least, splat(least), x); }
#endif

/* A number as it is: what compilers put into one instruction with a sum is not rounded before. */
INLINE vec rounded(vec x)
{
    __asm__("" : IN_REGISTER(x));
    return x;
}

/* x 2^n, rounded once: 1/4 < x < 4, n is a whole number of at most 152, 0x1.8p23f less than `shifted`. */
INLINE vec times_power(vec x, vec shifted)
{
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
    return __builtin_ia32_scalefps512_mask(x, shifted - 0x1.8p23f, x, 0xffff, 4);
#else
    ints power = (ints)shifted - 0x4b400000;
    ints half = power >> 1; /* in two steps, as subnormal results need */
    return rounded(x * (vec)((half + 127) << 23) * (vec)((power - half + 127) << 23)); /* infinite where it overflows */
#endif
}
INLINE vec vec_abs(vec x) { return (vec)((ints)x & 0x7fffffff); }

/* The first n lanes of x; the others become `neutral`. */
INLINE vec keep_first(vec x, float neutral, const int n)
{
    ints lane;
    for (int i = 0; i < LANES; ++i)
        lane[i] = i;
    return choose(lane < n, x, splat(neutral));
}

/* Elementary functions, by argument reduction and minimax polynomials fitted to float64 references. */

#define POLYNOMIAL(x, ...)                                                                          \
    const float coefficients[] = {__VA_ARGS__};                                                     \
    vec sum = splat(coefficients[0]);                                                               \
    for (unsigned i = 1; i < sizeof coefficients / sizeof *coefficients; ++i)                       \
        sum = sum * (x) + coefficients[i];

/* exp(r) - 1, and exp(r), for |r| <= ln(2)/2. */
INLINE vec exp_tail(vec r)
{
    POLYNOMIAL(r, 0.00139504787f, 0.00836888235f, 0.0416662060f, 0.166665196f, 0.5f)
    return sum * (r * r) + r;
}
INLINE vec exp_near_zero(vec r) { return exp_tail(r) + 1.0f; }

#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
/* exp(x) = 2^n exp(r), n a number of sixteenths, |r| <= ln(2)/32: sixteenths are looked up in a register. */
INLINE vec vec_exp(vec x)
{
    const vec sixteenths = {1.0f,        1.04427378f, 1.09050773f, 1.13878863f, 1.18920712f, 1.24185781f, 1.29683955f, 1.35425555f,
                            1.41421356f, 1.47682615f, 1.54221083f, 1.61049033f, 1.68179283f, 1.75625216f, 1.83400809f, 1.91520656f};
    x = at_least(at_most(x, 89.0f), -104.0f);
    vec shifted = x * 1.44269504f + 786432.0f;
    vec n = shifted - 786432.0f;
    vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vec power = (vec)__builtin_ia32_permvarsf512_mask(sixteenths, (ints)shifted, sixteenths, 0xffff);
    POLYNOMIAL(r, 0.166667186f, 0.50001619f, 1.0f)
    sum = sum * r * power + power;
    return __builtin_ia32_scalefps512_mask(sum, n, sum, 0xffff, 4);
}
#else
/* exp(x) = 2^n exp(r), |r| <= ln(2)/2. */
INLINE vec vec_exp(vec x)
{
    x = at_least(at_most(x, 89.0f), -104.0f);
    vec shifted = x * 1.44269504f + 12582912.0f;
    vec n = shifted - 12582912.0f;
    vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    return times_power(exp_near_zero(r), shifted);
}
#endif

/* x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2). */
INLINE vec log_fraction(vec x, vec *e)
{
    ints tiny = x < 1.17549435e-38f;
    vec scaled = choose(tiny, x * 8388608.0f, x);
    ints word = (ints)scaled - 0x3f3504f3;
    *e = __builtin_convertvector(word >> 23, vec) - choose(tiny, splat(23.0f), splat(0.0f));
    return (vec)((word & 0x7fffff) + 0x3f3504f3) - 1.0f;
}
/* log(1 + f) - f + f^2/2 */
INLINE vec log_tail(vec f)
{
    POLYNOMIAL(f, 0.0691542476f, -0.117898352f, 0.118729658f, -0.123843431f, 0.142186582f, -0.166692510f, 0.200022265f,
               -0.249999866f, 0.333333105f)
    return sum * f * (f * f);
}
/* y, the logarithm of x, but for what is no positive number. */
INLINE vec log_special(vec x, vec y)
{
    y = choose(x == 0.0f, splat(-__builtin_inff()), y);
    y = choose(x == __builtin_inff(), x, y);
    return choose(x >= 0.0f, y, splat(__builtin_nanf("")));
}

/* log(x) = e ln(2) + log(1 + f) */
INLINE vec vec_log(vec x)
{
    vec e, f = log_fraction(x, &e);
    return log_special(x, (log_tail(f) - 2.12194440e-4f * e) - 0.5f * (f * f) + f + 0.693359375f * e);
}

/* tanh and erf: x p(x^2) / q(x^2), up to where they are 1 in float32. */
INLINE vec tanh_numerator(vec square)
{
    POLYNOMIAL(square, -9.31807596e-14f, 5.58803837e-11f, -2.08473860e-08f, 1.13038968e-05f, 0.00311806984f, 0.130965978f, 1.0f)
    return sum;
}
INLINE vec tanh_denominator(vec square)
{
    POLYNOMIAL(square, 0.000256680447f, 0.0245512296f, 0.464299262f, 1.0f)
    return sum;
}
INLINE vec erf_numerator(vec square)
{
    POLYNOMIAL(square, 1.98677867e-06f, 0.000284566282f, 0.00388336298f, 0.0531018041f, 0.193545520f, 1.12837911f)
    return sum;
}
INLINE vec erf_denominator(vec square)
{
    POLYNOMIAL(square, 3.74201554e-05f, 0.00118557573f, 0.0152072897f, 0.115350187f, 0.504857779f, 1.0f)
    return sum;
}
/* Within [-1, 1], and 1 or -1 for all x that were cut off. */
INLINE vec saturated(vec y, vec x, vec inside)
{
    vec beyond = x - inside;
    return at_least(at_most(y * (1.0f + beyond * beyond), 1.0f), -1.0f);
}
INLINE vec vec_tanh(vec x)
{
    vec inside = at_least(at_most(x, 8.7f), -8.7f), square = inside * inside;
    return saturated(inside * tanh_numerator(square) / tanh_denominator(square), x, inside);
}
INLINE vec vec_erf(vec x)
{
    vec inside = at_least(at_most(x, 4.0f), -4.0f), square = inside * inside;
    return saturated(inside * erf_numerator(square) / erf_denominator(square), x, inside);
}

/* GCC takes roots of 512 bits in two halves, and puts them together in memory. */
INLINE vec vec_sqrt(vec x)
{
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
    return __builtin_ia32_sqrtps512_mask(x, x, 0xffff, 4);
#else
    vec y;
    for (int i = 0; i < LANES; ++i)
        y[i] = __builtin_sqrtf(x[i]);
    return y;
#endif
}

/* The nearest number of TF32, 10 bits behind the point, as matrix units are given it; NaN stays NaN. */
INLINE vec vec_tf32(vec x) { return choose(x == x, (vec)(((bits)x + 0x1000u) & ~0x1fffu), x); }

/* 1 where a comparison holds, else 0: none holds with NaN, but that it is not 0. */
INLINE vec vec_less(vec x, vec y) { return choose(x < y, splat(1.0f), splat(0.0f)); }
INLINE vec vec_equal(vec x, vec y) { return choose(x == y, splat(1.0f), splat(0.0f)); }
INLINE vec vec_truth(vec x) { return choose(x != 0.0f, splat(1.0f), splat(0.0f)); }

/* The nearest numbers of a narrower type. */
INLINE vec vec_round_bf16(vec x) { return from_bf16(to_bf16(x)); }
#ifdef __FLT16_MANT_DIG__
INLINE vec vec_round_fp16(vec x) { return from_fp16(to_fp16(x)); }
#endif

/* The functions that templates of expressions name; scalars widen to vectors. */
#define WIDE(x) ((x) - (vec){0})
#define max(a, b) vec_max(WIDE(a), WIDE(b))
#define abs(x) vec_abs(x)
#define exp(x) vec_exp(x)
#define log(x) vec_log(x)
#define tanh(x) vec_tanh(x)
#define erf(x) vec_erf(x)
#define sqrt(x) vec_sqrt(x)
#define tf32(x) vec_tf32(x)
#define less(a, b) vec_less(WIDE(a), WIDE(b))
#define equal(a, b) vec_equal(WIDE(a), WIDE(b))
#define truth(x) vec_truth(WIDE(x))
#define select(c, a, b) choose(WIDE(c) != 0.0f, WIDE(a), WIDE(b))
#define round_bf16(x) vec_round_bf16(WIDE(x))
#define round_fp16(x) vec_round_fp16(WIDE(x))
