/* The device functions of interface.h for a GPU, sm_80 or later, by inline PTX. */

INLINE unsigned shared_address(const void *pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

INLINE unsigned char *shared_memory()
{
    extern __shared__ __align__(1024) unsigned char bytes[];
    return bytes;
}

INLINE float as_float(unsigned bits) { return __uint_as_float(bits); }
INLINE unsigned as_bits(float x) { return __float_as_uint(x); }
INLINE float rounded(float x)
{
    asm("" : "+f"(x));
    return x;
}
INLINE float quotient(float x, float y)
{
    float found;
    asm("div.full.f32 %0, %1, %2;" : "=f"(found) : "f"(x), "f"(y));
    return found;
}
INLINE unsigned to_tf32(float x)
{
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return rounded;
}

INLINE float to_float(fp32_t x) { return x; }
INLINE float to_float(bf16_t x) { return as_float((unsigned)x.bits << 16); }
INLINE float to_float(fp16_t x)
{
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}

/* From compute capability 8.9 on one instruction widens two numbers of fp8. */
#if __CUDA_ARCH__ >= 890
INLINE float low_of_fp16(unsigned pair) { return to_float(fp16_t{(unsigned short)pair}); }
INLINE float to_float(e4m3fn_t x)
{
    unsigned pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)x.bits));
    return low_of_fp16(pair);
}
INLINE float to_float(e5m2_t x)
{
    unsigned pair;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)x.bits));
    return low_of_fp16(pair);
}
#else
INLINE float to_float(e4m3fn_t x) { return e4m3fn_to_float(x.bits); }
INLINE float to_float(e5m2_t x) { return to_float(fp16_t{(unsigned short)(x.bits << 8)}); }
#endif

template <> INLINE fp32_t from_float<fp32_t>(float x) { return x; }
template <> INLINE bool_t from_float<bool_t>(float x) { return {(unsigned char)(x != 0.0f)}; }
template <> INLINE int8_t from_float<int8_t>(float x) { return {(signed char)x}; }
template <> INLINE uint8_t from_float<uint8_t>(float x) { return {(unsigned char)x}; }
template <> INLINE fp16_t from_float<fp16_t>(float x)
{
    fp16_t narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}
template <> INLINE e4m3fn_t from_float<e4m3fn_t>(float x) { return {(unsigned char)e4m3fn_of(x)}; }
template <> INLINE e5m2_t from_float<e5m2_t>(float x) { return {(unsigned char)(from_float<fp16_t>(x).bits >> 8)}; }
template <> INLINE bf16_t from_float<bf16_t>(float x)
{
    bf16_t narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}

template <> INLINE unsigned pack<fp16_t>(float low, float high)
{
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
template <> INLINE unsigned pack<bf16_t>(float low, float high)
{
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
template <class T> INLINE float low_half(unsigned pair) { return to_float(T{(unsigned short)pair}); }
template <class T> INLINE float high_half(unsigned pair) { return to_float(T{(unsigned short)(pair >> 16)}); }
template <> INLINE float high_half<bf16_t>(unsigned pair) { return as_float(pair & 0xffff0000u); }

template <> INLINE words<1> load_words<1>(const void *address) { return *(const words<1> *)address; }
template <> INLINE words<2> load_words<2>(const void *address)
{
    const uint2 value = *(const uint2 *)address;
    return {{value.x, value.y}};
}
template <> INLINE words<4> load_words<4>(const void *address)
{
    const uint4 value = *(const uint4 *)address;
    return {{value.x, value.y, value.z, value.w}};
}

template <> INLINE void store_words<1>(void *address, words<1> value) { *(words<1> *)address = value; }
template <> INLINE void store_words<2>(void *address, words<2> value)
{
    *(uint2 *)address = make_uint2(value.word[0], value.word[1]);
}
template <> INLINE void store_words<4>(void *address, words<4> value)
{
    *(uint4 *)address = make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]);
}

/* Copies of 16 bytes go past the first-level cache; the hardware offers that for no other size. */
template <int BYTES, int LINE> INLINE void cp_async(void *shared, const void *from, bool present)
{
    static_assert(LINE == 0 || (BYTES == 16 && (LINE == 128 || LINE == 256)), "copies of 16 bytes have lines of 128 or 256 fetched");
    const unsigned to = shared_address(shared), read = present ? BYTES : 0;
    const unsigned long long source = __cvta_generic_to_global(from);
    if constexpr (LINE == 128)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(source), "r"(read) : "memory");
    else if constexpr (LINE == 256)
        asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(source), "r"(read) : "memory");
    else if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(source), "r"(read) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(source), "n"(BYTES), "r"(read) : "memory");
}
INLINE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> INLINE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

INLINE void mbarrier_init(mbarrier_t *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
INLINE void mbarrier_arrive(mbarrier_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
INLINE void mbarrier_arrive_expect(mbarrier_t *barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
INLINE void mbarrier_wait(mbarrier_t *barrier, int parity)
{
    unsigned over;
    do
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(over) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    while (!over);
}
/* A block is a cluster of its own, so its addresses are addresses of the cluster. */
INLINE void bulk_copy(void *shared, const void *from, int bytes, mbarrier_t *barrier)
{
    const unsigned long long source = __cvta_generic_to_global(from);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(shared)), "l"(source), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
#define TENSOR_MAP const __grid_constant__ tensor_map_t
INLINE void box_copy(void *shared, const tensor_map_t &map, int column, int row, mbarrier_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared_address(shared)), "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)) : "memory");
}
INLINE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
INLINE bool elected()
{
    unsigned chosen;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(chosen));
    return chosen;
}

INLINE void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
INLINE void griddepcontrol_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

template <int SWIZZLE> INLINE matrix_t wgmma_matrix(const void *start, int leading, int stride)
{
    constexpr unsigned long long mode = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : 3;
    const unsigned long long first = (shared_address(start) & 0x3ffff) >> 4;
    return {first | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 | mode << 62};
}
INLINE void hold_register(float &part) { asm volatile("" : "+f"(part)::"memory"); }
INLINE void hold_register(unsigned &part) { asm volatile("" : "+r"(part)::"memory"); }
template <int N, class R> INLINE void wgmma_registers(R (&parts)[N][4])
{
#pragma unroll
    for (int number = 0; number < 4 * N; ++number)
        hold_register(parts[number / 4][number % 4]);
}
INLINE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> INLINE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

INLINE float shfl_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

template <> INLINE void ldmatrix<1>(unsigned (&part)[1], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(part[0]) : "r"(shared_address(row)) : "memory");
}
template <> INLINE void ldmatrix<2>(unsigned (&part)[2], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(part[0]), "=r"(part[1]) : "r"(shared_address(row)) : "memory");
}
template <> INLINE void ldmatrix<4>(unsigned (&part)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(part[0]), "=r"(part[1]), "=r"(part[2]), "=r"(part[3]) : "r"(shared_address(row)) : "memory");
}
template <> INLINE void ldmatrix_transposed<1>(unsigned (&part)[1], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(part[0]) : "r"(shared_address(row)) : "memory");
}
template <> INLINE void ldmatrix_transposed<2>(unsigned (&part)[2], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(part[0]), "=r"(part[1]) : "r"(shared_address(row)) : "memory");
}
template <> INLINE void ldmatrix_transposed<4>(unsigned (&part)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(part[0]), "=r"(part[1]), "=r"(part[2]), "=r"(part[3]) : "r"(shared_address(row)) : "memory");
}

template <> INLINE void mma_m16n8k16<fp16_t>(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}
template <> INLINE void mma_m16n8k16<bf16_t>(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}
INLINE void mma_m16n8k8(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}
