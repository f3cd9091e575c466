/* The device functions of interface.h for a CPU: calls into the emulator, which knows the thread that calls. */

INLINE unsigned char *shared_memory() { return emulated_shared_memory(); }

INLINE float as_float(unsigned bits)
{
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
INLINE unsigned as_bits(float x)
{
    unsigned bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* x times the reciprocal of y, which is rounded as well: as inexact as hardware may be, and where it may be. */
INLINE float quotient(float x, float y)
{
    int exponent;
    const float reciprocal = 1 / __builtin_frexpf(y, &exponent);
    return (float)__builtin_ldexp((double)x * reciprocal, -exponent);
}
INLINE float rounded(float x)
{
    __asm__("" : "+m"(x));
    return x;
}
INLINE unsigned to_tf32(float x)
{
    const unsigned rounded = as_bits(x) + 0x1000 & ~0x1fffu;
    return x == x ? rounded : 0x7fffe000u;
}

INLINE float to_float(fp32_t x) { return x; }
INLINE float to_float(fp16_t x) { return emulated_from_fp16(x.bits); }
INLINE float to_float(bf16_t x) { return as_float((unsigned)x.bits << 16); }
INLINE float to_float(e4m3fn_t x) { return e4m3fn_to_float(x.bits); }
INLINE float to_float(e5m2_t x) { return emulated_from_fp16((unsigned short)(x.bits << 8)); }
template <> INLINE fp32_t from_float<fp32_t>(float x) { return x; }
template <> INLINE e4m3fn_t from_float<e4m3fn_t>(float x) { return {(unsigned char)e4m3fn_of(x)}; }
template <> INLINE e5m2_t from_float<e5m2_t>(float x) { return {(unsigned char)(emulated_to_fp16(x) >> 8)}; }
template <> INLINE bool_t from_float<bool_t>(float x) { return {(unsigned char)(x != 0.0f)}; }
template <> INLINE int8_t from_float<int8_t>(float x) { return {(signed char)x}; }
template <> INLINE uint8_t from_float<uint8_t>(float x) { return {(unsigned char)x}; }
template <> INLINE fp16_t from_float<fp16_t>(float x) { return {emulated_to_fp16(x)}; }
template <> INLINE bf16_t from_float<bf16_t>(float x)
{
    const unsigned bits = as_bits(x);
    if (x != x)
        return {0x7fff};
    return {(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

template <class T> INLINE unsigned pack(float low, float high)
{
    return from_float<T>(low).bits | (unsigned)from_float<T>(high).bits << 16;
}
template <class T> INLINE float low_half(unsigned pair) { return to_float(T{(unsigned short)pair}); }
template <class T> INLINE float high_half(unsigned pair) { return to_float(T{(unsigned short)(pair >> 16)}); }

template <int N> INLINE words<N> load_words(const void *address)
{
    words<N> value;
    emulated_load(&value, address, sizeof value);
    return value;
}
template <int N> INLINE void store_words(void *address, words<N> value) { emulated_store(address, &value, sizeof value); }

template <int BYTES, int LINE> INLINE void cp_async(void *shared, const void *from, bool present)
{
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "asynchronous copies have 4, 8 or 16 bytes");
    static_assert(LINE == 0 || (BYTES == 16 && (LINE == 128 || LINE == 256)), "copies of 16 bytes have lines of 128 or 256 fetched");
    emulated_cp_async(shared, from, BYTES, present);
}
INLINE void cp_async_commit() { emulated_cp_async_commit(); }
template <int PENDING> INLINE void cp_async_wait() { emulated_cp_async_wait(PENDING); }

INLINE void mbarrier_init(mbarrier_t *barrier, int arrivals) { emulated_mbarrier_init(barrier, arrivals); }
INLINE void mbarrier_arrive(mbarrier_t *barrier) { emulated_mbarrier_arrive_expect(barrier, 0); }
INLINE void mbarrier_arrive_expect(mbarrier_t *barrier, int bytes) { emulated_mbarrier_arrive_expect(barrier, bytes); }
INLINE void mbarrier_wait(mbarrier_t *barrier, int parity) { emulated_mbarrier_wait(barrier, parity); }
INLINE void bulk_copy(void *shared, const void *from, int bytes, mbarrier_t *barrier)
{
    emulated_bulk_copy(shared, from, bytes, barrier);
}
INLINE void box_copy(void *shared, const tensor_map_t &map, int column, int row, mbarrier_t *barrier)
{
    emulated_box_copy(shared, &map, column, row, barrier);
}
INLINE void proxy_fence() { emulated_proxy_fence(); }
/* All lanes meet, which orders nothing; and the lane is not 0, so that what counts on lane 0 shows. */
INLINE bool elected()
{
    emulated_shfl_xor(0.0f, 0);
    return threadIdx.x % 32 == 31;
}

INLINE void griddepcontrol_wait() { emulated_griddepcontrol_wait(); }
INLINE void griddepcontrol_launch_dependents() {}

template <int SWIZZLE> INLINE matrix_t wgmma_matrix(const void *start, int leading, int stride)
{
    static_assert(SWIZZLE == 128 || SWIZZLE == 64 || SWIZZLE == 32, "rows of matrices have 128, 64 or 32 bytes");
    const unsigned long long mode = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : 3;
    const unsigned long long first = (unsigned)((const unsigned char *)start - emulated_shared_memory()) >> 4;
    return {first | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 | mode << 62};
}
template <class T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<bf16_t> = true;
constexpr bool is_wgmma_size(int columns) { return columns >= 8 && columns <= 128 && (columns & (columns - 1)) == 0; }
template <class T, int N, bool columns_first>
INLINE void wgmma_m64k16(float (&sum)[N / 8][4], const unsigned (&left)[4], matrix_t right)
{
    static_assert(is_wgmma_size(N), "products have 8, 16, 32, 64 or 128 columns");
    emulated_wgmma(sum[0], N, left, 0, right.bits, columns_first, is_bf16<T>);
}
template <class T, int N, bool columns_first> INLINE void wgmma_m64k16(float (&sum)[N / 8][4], matrix_t left, matrix_t right)
{
    static_assert(is_wgmma_size(N), "products have 8, 16, 32, 64 or 128 columns");
    emulated_wgmma(sum[0], N, nullptr, left.bits, right.bits, columns_first, is_bf16<T>);
}
template <int N, class R> INLINE void wgmma_registers(R (&)[N][4]) {}
INLINE void wgmma_fence() { emulated_wgmma_fence(); }
INLINE void wgmma_commit() { emulated_wgmma_commit(); }
template <int PENDING> INLINE void wgmma_wait() { emulated_wgmma_wait(PENDING); }

INLINE float shfl_xor(float value, int mask) { return emulated_shfl_xor(value, mask); }

template <int N> INLINE void ldmatrix(unsigned (&part)[N], const void *row)
{
    static_assert(N == 1 || N == 2 || N == 4, "ldmatrix loads 1, 2 or 4 matrices");
    emulated_ldmatrix(part, N, row, false);
}
template <int N> INLINE void ldmatrix_transposed(unsigned (&part)[N], const void *row)
{
    static_assert(N == 1 || N == 2 || N == 4, "ldmatrix loads 1, 2 or 4 matrices");
    emulated_ldmatrix(part, N, row, true);
}

template <> INLINE void mma_m16n8k16<fp16_t>(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2])
{
    emulated_mma_m16n8k16(sum, left, right, false);
}
template <> INLINE void mma_m16n8k16<bf16_t>(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2])
{
    emulated_mma_m16n8k16(sum, left, right, true);
}
INLINE void mma_m16n8k8(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2])
{
    emulated_mma_m16n8k8(sum, left, right);
}
