/* Factors of a product in the registers of a warp, and their product. Fragments hold pairs of values of k as mma_m16n8k16 takes
   them: two elements of 16 bits in a register, or, in TF32, an element in each of two. */

struct tf32_t {};
template <class T> constexpr int pair_registers = 1;
template <> constexpr int pair_registers<tf32_t> = 2;

/* Pairs of 16-bit elements of T as pairs in TF32, which holds all of fp16. */
template <class T, int N> INLINE void widen(unsigned (&to)[2 * N], const unsigned (&pairs)[N])
{
#pragma unroll
    for (int i = 0; i < N; ++i) {
        to[2 * i] = as_bits(low_half<T>(pairs[i]));
        to[2 * i + 1] = as_bits(high_half<T>(pairs[i]));
    }
}

template <class T> INLINE void multiply_fragments(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2])
{
    mma_m16n8k16<T>(sum, left, right);
}
/* Two products of 8 values of k. The order of these does not matter as long as both factors have the same: the first half of
   a pair goes where an instruction wants k = lane % 4, the second where it wants k = lane % 4 + 4. */
template <class T> INLINE void multiply_fragments(float (&sum)[4], const unsigned (&left)[8], const unsigned (&right)[4])
{
    const unsigned first[4] = {left[0], left[2], left[1], left[3]}, second[4] = {left[4], left[6], left[5], left[7]};
    const unsigned above[2] = {right[0], right[1]}, below[2] = {right[2], right[3]};
    mma_m16n8k8(sum, first, above);
    mma_m16n8k8(sum, second, below);
}

/* A left factor that lies in registers as the sums of another product: those of two neighbouring tiles of 16 x 8, whose columns are
   16 values of k, lie in the lanes as a fragment does. */
template <class T> INLINE void fragment_of_sums(unsigned (&part)[4], const float (&first)[4], const float (&second)[4])
{
    part[0] = pack<T>(first[0], first[1]);
    part[1] = pack<T>(first[2], first[3]);
    part[2] = pack<T>(second[0], second[1]);
    part[3] = pack<T>(second[2], second[3]);
}

/* From tiles that ldmatrix cannot read: any strides, any type, any memory. `corner` is the place of the fragment's first element;
   `rows` and `depth` say how far the factor reaches from there, `end` where its memory ends if that may be within it: what lies
   there is 0. */

/* Values k and k + 1 of a row as a pair of T; those at or beyond `depth` are 0. PLACES: Plain or Swizzle. With RUN = 2 they lie
   together, aligned, and both or none are beyond, and so with the end. */
template <class T, class PLACES, int RUN, class S>
INLINE void load_pair(unsigned *pair, const S *tile, long row, int step, int k, int depth, const S *end)
{
    float of_pair[2] = {};
    if constexpr (RUN == 2) {
        const S *const from = tile + PLACES::at(row + k);
        if (k < depth && (end == 0 || from < end))
            load_run<S, 2>(of_pair, from);
    } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const S *const from = tile + PLACES::at(row + (long)(k + i) * step);
            if (k + i < depth && (end == 0 || from < end))
                of_pair[i] = to_float(*from);
        }
    }
    if constexpr (pair_registers<T> == 2) {
        pair[0] = to_tf32(of_pair[0]);
        pair[1] = to_tf32(of_pair[1]);
    } else {
        pair[0] = pack<T>(of_pair[0], of_pair[1]);
    }
}

/* Left factor, 16 rows by 16 values of k. Rows at or beyond `rows` repeat the last one: nothing of them is kept. */
template <class T, class PLACES, int RUN, class S>
INLINE void gather_left(
    unsigned (&part)[4 * pair_registers<T>], const S *tile, long corner, int row_step, int step, int rows, int depth,
    const S *end = 0)
{
    constexpr int registers = pair_registers<T>;
    const int lane = threadIdx.x % 32, k = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = min(lane / 4 + i % 2 * 8, rows - 1);
        load_pair<T, PLACES, RUN>(part + registers * i, tile, corner + (long)row * row_step, step, k + i / 2 * 8, depth, end);
    }
}

/* Right factor, 16 values of k by 8 columns. */
template <class T, class PLACES, int RUN, class S>
INLINE void gather_right(
    unsigned (&part)[2 * pair_registers<T>], const S *tile, long corner, int column_step, int step, int columns, int depth,
    const S *end = 0)
{
    constexpr int registers = pair_registers<T>;
    const int lane = threadIdx.x % 32, k = lane % 4 * 2, column = min(lane / 4, columns - 1);
#pragma unroll
    for (int i = 0; i < 2; ++i)
        load_pair<T, PLACES, RUN>(part + registers * i, tile, corner + (long)column * column_step, step, k + i * 8, depth, end);
}
