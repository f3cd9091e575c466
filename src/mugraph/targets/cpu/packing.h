/* Weights, stored anew in the order in which products read them (mugraph/lower/packing.py). Steps are in bytes.
   A strip of a panel follows the other, and lies as a matrix of `width` columns, rows of a `group` beside each other. */

typedef struct {
    const char *from;
    char *to;
    long size, rows, columns, row_step, column_step, depth, width, group, dimensions;
    const long *counts, *steps;
} packing;

typedef unsigned unaligned_4 __attribute__((aligned(1)));
typedef vec unaligned_vec __attribute__((aligned(1)));

/* A strip whose columns are contiguous in memory: rows of vectors are read from LANES columns, and turned. */
static void turned_strip(const char *from, long column_step, unsigned *to, long depth, long width)
{
    const long across = width / LANES * LANES, down = depth / LANES * LANES;
    for (long j = 0; j < across; j += LANES)
        for (long k = 0; k < down; k += LANES) {
            vec rows[LANES];
            for (long i = 0; i < LANES; ++i) {
                const char *place = from + (j + i) * column_step + 4 * k;
                rows[i] = *(const unaligned_vec *)place;
            }
            turn(rows);
            for (long i = 0; i < LANES; ++i)
                *(unaligned_vec *)(to + (k + i) * width + j) = rows[i];
        }
    for (long j = 0; j < width; ++j)
        for (long k = j < across ? down : 0; k < depth; ++k)
            to[k * width + j] = *(const unaligned_4 *)(from + j * column_step + 4 * k);
}

#define DEFINE_STRIP(size, type)                                                                                        \
    typedef type unit_##size __attribute__((aligned(1)));                                                               \
                                                                                                                        \
    static void strip_##size(const packing *p, const char *from, unit_##size *to, long depth, long width)               \
    {                                                                                                                   \
        const long group = p->group, row_step = p->row_step, column_step = p->column_step, part = 256 / size;           \
        if (column_step == size && group == 2)                                                                          \
            for (long k = 0; k < depth; k += 2, to += 2 * width) {                                                      \
                const unit_##size *row = (const unit_##size *)(from + k * row_step);                                    \
                const unit_##size *next = (const unit_##size *)(from + (k + 1) * row_step);                             \
                for (long j = 0; j < width; ++j) {                                                                      \
                    to[2 * j] = row[j];                                                                                 \
                    to[2 * j + 1] = next[j];                                                                            \
                }                                                                                                       \
            }                                                                                                           \
        else if (column_step == size && group == 1)                                                                     \
            for (long k = 0; k < depth; ++k, to += width)                                                               \
                for (long j = 0; j < width; ++j)                                                                        \
                    to[j] = ((const unit_##size *)(from + k * row_step))[j];                                            \
        else                                                                                                            \
            for (long first = 0; first < depth; first += part) {                                                        \
                const long last = first + part < depth ? first + part : depth;                                          \
                for (long j = 0; j < width; ++j) {                                                                      \
                    const char *ahead = from + (j + 8) * column_step + first * row_step;                                \
                    for (long byte = 0; byte < 256; byte += 64)                                                         \
                        __builtin_prefetch(ahead + byte);                                                               \
                    for (long k = first; k < last; k += group)                                                          \
                        for (long g = 0; g < group; ++g)                                                                \
                            to[k * width + j * group + g] =                                                             \
                                *(const unit_##size *)(from + (k + g) * row_step + j * column_step);                    \
                }                                                                                                       \
            }                                                                                                           \
    }
DEFINE_STRIP(1, unsigned char)
DEFINE_STRIP(2, unsigned short)
DEFINE_STRIP(4, unsigned)
DEFINE_STRIP(8, unsigned long long)

static void pack_share(void *data)
{
    const packing *p = data;
    const long panels = (p->rows + p->depth - 1) / p->depth, strips = (p->columns + p->width - 1) / p->width;
    long windows = 1, first, last;
    for (long d = 0; d < p->dimensions; ++d)
        windows *= p->counts[d];
    share(windows * panels * strips, &first, &last);
    for (long task = first; task < last; ++task) {
        long window = task / (panels * strips), number = window, start = 0;
        const long top = task / strips % panels * p->depth, left = task % strips * p->width;
        const long depth = top + p->depth < p->rows ? p->depth : p->rows - top;
        const long width = left + p->width < p->columns ? p->width : p->columns - left;
        for (long d = p->dimensions - 1; d >= 0; number /= p->counts[d--])
            start += number % p->counts[d] * p->steps[d];
        const char *from = p->from + start + top * p->row_step + left * p->column_step;
        char *to = p->to + p->size * (window * p->rows * p->columns + top * p->columns + left * depth);
        switch (p->size) {
        case 1: strip_1(p, from, (unit_1 *)to, depth, width); break;
        case 2: strip_2(p, from, (unit_2 *)to, depth, width); break;
        case 4:
            if (p->group == 1 && p->row_step == 4 && p->column_step != 4)
                turned_strip(from, p->column_step, (unsigned *)to, depth, width);
            else
                strip_4(p, from, (unit_4 *)to, depth, width);
            break;
        default: strip_8(p, from, (unit_8 *)to, depth, width); break;
        }
    }
}

void pack(packing p) { launch(pack_share, &p, 1); }
