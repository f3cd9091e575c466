/* Factors of a product as the registers of mma_m16n8k16, from tiles that ldmatrix cannot read: any strides, any type,
   any memory. `corner` is the place of the fragment's first element; `rows` and `depth` say how far the factor reaches
   from there. */

/* Values k and k + 1 of a row as a pair of T; those at or beyond `depth` are 0. PLACES: Plain or Swizzle. */
template <class T, class PLACES, class S> INLINE unsigned pair_at(const S *tile, long row, int step, int k, int depth)
{
    const float low = k < depth ? to_float(tile[PLACES::at(row + (long)k * step)]) : 0.0f;
    const float high = k + 1 < depth ? to_float(tile[PLACES::at(row + (long)(k + 1) * step)]) : 0.0f;
    return pack<T>(low, high);
}

/* Left factor, 16 rows by 16 values of k. Rows at or beyond `rows` repeat the last one: nothing of them is kept. */
template <class T, class PLACES, class S>
INLINE void gather_left(unsigned (&part)[4], const S *tile, long corner, int row_step, int step, int rows, int depth)
{
    const int lane = threadIdx.x % 32, k = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = min(lane / 4 + i % 2 * 8, rows - 1);
        part[i] = pair_at<T, PLACES>(tile, corner + (long)row * row_step, step, k + i / 2 * 8, depth);
    }
}

/* Right factor, 16 values of k by 8 columns. */
template <class T, class PLACES, class S>
INLINE void gather_right(unsigned (&part)[2], const S *tile, long corner, int column_step, int step, int columns, int depth)
{
    const int lane = threadIdx.x % 32, k = lane % 4 * 2, column = min(lane / 4, columns - 1);
#pragma unroll
    for (int i = 0; i < 2; ++i)
        part[i] = pair_at<T, PLACES>(tile, corner + (long)column * column_step, step, k + i * 8, depth);
}
