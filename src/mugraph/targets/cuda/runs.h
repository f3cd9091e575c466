/* What kernels use beyond the device functions: places of elements, runs of N consecutive elements as floats, and a maximum
   that NaN wins. */

/* Where elements lie: at their place, or with bits BASE + SHIFT... of it, BITS of them, xored onto bits BASE... */
struct Plain {
    static INLINE long at(long place) { return place; }
};
template <int BITS, int BASE, int SHIFT> struct Swizzle {
    template <class I> static INLINE I at(I place) { return place ^ (place >> SHIFT & ((1 << BITS) - 1) << BASE); }
};

/* The number that a byte is as an element of T. */
template <class T> INLINE float of_byte(unsigned byte)
{
    T element;
    element.bits = byte;
    return to_float(element);
}

/* N consecutive elements from an address aligned to the run, or to 16 bytes where the run is longer. */
template <class T, int N> INLINE void load_run(float (&to)[N], const T *from)
{
    constexpr int bytes = N * (int)sizeof(T);
    if constexpr (sizeof(T) == 1) {
        constexpr int chunk = N < 4 ? 1 : N < 16 ? N / 4 : 4;
#pragma unroll
        for (int start = 0; start < N / 4; start += chunk) {
            const words<chunk> loaded = load_words<chunk>((const unsigned char *)from + 4 * start);
#pragma unroll
            for (int i = 0; i < 4 * chunk; ++i)
                to[4 * start + i] = of_byte<T>(loaded.word[i / 4] >> 8 * (i % 4) & 255);
        }
#pragma unroll
        for (int i = N / 4 * 4; i < N; ++i)
            to[i] = to_float(from[i]);
    } else if constexpr (bytes < 4) {
        to[0] = to_float(*from);
    } else {
        constexpr int chunk = bytes < 16 ? bytes / 4 : 4, per_word = 4 / (int)sizeof(T);
#pragma unroll
        for (int start = 0; start < bytes / 4; start += chunk) {
            const words<chunk> loaded = load_words<chunk>((const unsigned char *)from + 4 * start);
#pragma unroll
            for (int i = 0; i < chunk; ++i) {
                if constexpr (per_word == 1) {
                    to[start + i] = as_float(loaded.word[i]);
                } else {
                    to[2 * (start + i)] = low_half<T>(loaded.word[i]);
                    to[2 * (start + i) + 1] = high_half<T>(loaded.word[i]);
                }
            }
        }
    }
}

template <class T, int N> INLINE void store_run(T *to, const float (&from)[N])
{
    constexpr int bytes = N * (int)sizeof(T);
    if constexpr (sizeof(T) == 1) {
#pragma unroll
        for (int i = 0; i < N; ++i)
            to[i] = from_float<T>(from[i]);
    } else if constexpr (bytes < 4) {
        *to = from_float<T>(from[0]);
    } else {
        constexpr int chunk = bytes < 16 ? bytes / 4 : 4, per_word = 4 / (int)sizeof(T);
#pragma unroll
        for (int start = 0; start < bytes / 4; start += chunk) {
            words<chunk> stored;
#pragma unroll
            for (int i = 0; i < chunk; ++i) {
                if constexpr (per_word == 1)
                    stored.word[i] = as_bits(from[start + i]);
                else
                    stored.word[i] = pack<T>(from[2 * (start + i)], from[2 * (start + i) + 1]);
            }
            store_words<chunk>((unsigned char *)to + 4 * start, stored);
        }
    }
}

/* The same of an operand that has no elements from `end` on, whose own are 0 and are not stored. With WHOLE, a run lies before
   `end` as a whole or not at all. */
template <class T> INLINE float load_before(const T *from, const T *end) { return from < end ? to_float(*from) : 0.0f; }
template <class T> INLINE void store_before(T *to, float value, const T *end)
{
    if (to < end)
        *to = from_float<T>(value);
}
template <class T, int N, bool WHOLE> INLINE void load_run_before(float (&to)[N], const T *from, const T *end)
{
    if (WHOLE ? from < end : end - from >= N) {
        load_run<T, N>(to, from);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i)
            to[i] = WHOLE ? 0.0f : load_before(from + i, end);
    }
}
template <class T, int N, bool WHOLE> INLINE void store_run_before(T *to, const float (&from)[N], const T *end)
{
    if (WHOLE ? to < end : end - to >= N) {
        store_run<T, N>(to, from);
    } else if constexpr (!WHOLE) {
#pragma unroll
        for (int i = 0; i < N; ++i)
            store_before(to + i, from[i], end);
    }
}

/* The templates of the operator table find these names first. */
namespace kernels {
INLINE float max(float x, float y) { return x > y || x != x ? x : y; }
INLINE float less(float x, float y) { return x < y ? 1.0f : 0.0f; }
INLINE float equal(float x, float y) { return x == y ? 1.0f : 0.0f; }
INLINE float truth(float x) { return x != 0.0f ? 1.0f : 0.0f; }
INLINE float select(float condition, float x, float y) { return condition != 0.0f ? x : y; }
INLINE float round_fp16(float x) { return to_float(from_float<fp16_t>(x)); }
INLINE float round_bf16(float x) { return to_float(from_float<bf16_t>(x)); }
}
