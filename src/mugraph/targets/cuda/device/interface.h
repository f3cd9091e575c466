/* Everything a generated CUDA kernel may call, declared once and defined twice: by PTX (ptx.h) for a GPU and by
   emulation for a CPU. Kernels include no header; besides these functions they use threadIdx.x, blockIdx.{x,y,z},
   __syncthreads(), __syncwarp(), __launch_bounds__, #pragma unroll, and these functions of the CUDA math library:
   exp, log, tanh, erf, sqrt, abs, max, min, fma, each on floats.

   Rules both sides rely on:
   - blocks are one-dimensional, a whole number of warps of 32 threads; grids have up to three dimensions;
   - shared memory is the dynamic one alone, shared_memory(); it holds garbage when a block starts;
   - the functions marked "warp" are called by all 32 threads of a warp together;
   - warp functions and asynchronous copies order no memory accesses: __syncthreads() and __syncwarp() do. */

#define INLINE __device__ __forceinline__

/* Before loops whose turns hold what they load in registers: over the steps of a panel, which are unrolled as a whole, and over runs of
   k, unrolled as the compiler likes. Kernels that spill registers so are compiled where SPARING is 1: both are read where they are
   used, so that each kernel of a text may have its own. */
#define SPARING 0
#define UNROLLED_STEPS CHOSEN(STEPS_, SPARING)
#define UNROLLED_RUNS CHOSEN(RUNS_, SPARING)
#define CHOSEN(loop, sparing) PASTED(loop, sparing)
#define PASTED(loop, sparing) loop##sparing
#define STEPS_0 _Pragma("unroll")
#define STEPS_1 _Pragma("unroll 4")
#define RUNS_0
#define RUNS_1 _Pragma("unroll 2")

/* Stored element types; arithmetic is in fp32. */
typedef float fp32_t;
struct fp16_t { unsigned short bits; };
struct bf16_t { unsigned short bits; };
struct bool_t { unsigned char bits; };
struct int8_t { signed char bits; };
struct uint8_t { unsigned char bits; };
struct e4m3fn_t { unsigned char bits; };
struct e5m2_t { unsigned char bits; };

/* N 32-bit registers: N floats, or 2 N 16-bit elements, the one at the lower address in the lower half of its word. */
template <int N> struct words { unsigned word[N]; };

/* The block's dynamic shared memory, aligned to 1024 bytes. */
INLINE unsigned char *shared_memory();

/* Conversions; to 16 bits they round to nearest even. */
INLINE float to_float(fp32_t x);
INLINE float to_float(fp16_t x);
INLINE float to_float(bf16_t x);
INLINE float to_float(bool_t x) { return (float)x.bits; }
INLINE float to_float(int8_t x) { return (float)x.bits; }
INLINE float to_float(uint8_t x) { return (float)x.bits; }
INLINE float to_float(e4m3fn_t x);
INLINE float to_float(e5m2_t x);
template <class T> INLINE T from_float(float x); /* T: all of these; to fp8 only numbers that it has */

/* Two 16-bit elements in one word. T: fp16_t, bf16_t. */
template <class T> INLINE unsigned pack(float low, float high);
template <class T> INLINE float low_half(unsigned pair);
template <class T> INLINE float high_half(unsigned pair);
INLINE float as_float(unsigned bits);
INLINE unsigned as_bits(float x);

/* The number of a code of e4m3fn, and the code of a number that it has: a sign, 4 bits of the exponent, 3 of the mantissa. */
INLINE float e4m3fn_to_float(unsigned code)
{
    const unsigned size = code & 0x7f, sign = (code & 0x80) << 24;
    if (size == 0x7f)
        return as_float(0x7fc00000u | sign);
    const float small = (float)size * 0x1p-9f;
    return as_float((size < 8 ? as_bits(small) : (size << 20) + (120u << 23)) | sign);
}
INLINE unsigned e4m3fn_of(float x)
{
    const unsigned bits = as_bits(x), size = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
    if (x != x)
        return 0x7f | sign;
    return (size < (121u << 23) ? (unsigned)(as_float(size) * 0x1p9f) : (size >> 20) - (120u << 3)) | sign;
}

/* x, which is not put into one instruction with a sum that reads it: a product is rounded before. */
INLINE float rounded(float x);

/* x / y, at most two units in the last place off: without the tests and branches of a division that is rounded correctly. */
INLINE float quotient(float x, float y);

/* The bits of x rounded to TF32: those of a float of which 10 bits behind the point are kept, to nearest, halves away from 0. */
INLINE unsigned to_tf32(float x);

/* One access of 4 N bytes, N = 1, 2, 4, aligned to its size. */
template <int N> INLINE words<N> load_words(const void *address);
template <int N> INLINE void store_words(void *address, words<N> value);

/* Asynchronous copies from device to shared memory of BYTES = 4, 8, 16, both ends aligned to BYTES. Where `present` is
   false, `from` is not read and zeros are written. A commit closes the group of this thread's copies since its last
   one; a wait returns once all but this thread's PENDING newest groups have landed. The data is there for the thread
   that waited, and for others after a barrier behind its wait.
   LINE = 128, 256, for copies of 16 bytes: the last cache may fetch the LINE bytes around `from`, from a multiple of LINE on, which
   are read soon. */
template <int BYTES, int LINE = 0> INLINE void cp_async(void *shared, const void *from, bool present = true);
INLINE void cp_async_commit();
template <int PENDING> INLINE void cp_async_wait();

/* Copies of whole rows by an engine beside the threads (sm_90 or later), counted by barriers in shared memory.
   A barrier passes phases 0, 1, 2, ...; one is over when `arrivals` arrivals and as many bytes as they expected have been
   counted. Bytes may be counted before they are expected. mbarrier_wait returns once the phase in progress has another parity
   than `parity`, that is, at once for the parity of the phase before: the data of the phases that are over is there for the
   thread that waited, and for others after a barrier behind its wait.
   mbarrier_arrive expects no bytes. Who has waited for a phase knows what was known to those whose arrivals it counts: which
   phases of barriers are over, and which products of warp groups (below) are done. Arrivals and waits order nothing else.
   bulk_copy copies `bytes` from device to shared memory, all three multiples of 16.
   The engine, and with it every barrier it counts for, sees what a thread has written in shared memory only if that thread
   passed a proxy_fence() since. A copy must have been waited for when its block ends. */
struct mbarrier_t { unsigned long long state; };
struct alignas(64) tensor_map_t { unsigned long long opaque[16]; };
INLINE void mbarrier_init(mbarrier_t *barrier, int arrivals);
INLINE void mbarrier_arrive(mbarrier_t *barrier);
INLINE void mbarrier_arrive_expect(mbarrier_t *barrier, int bytes);
INLINE void mbarrier_wait(mbarrier_t *barrier, int parity);
INLINE void bulk_copy(void *shared, const void *from, int bytes, mbarrier_t *barrier);
/* A copy of a box of a matrix in device memory, one instruction. A tensor map, which the host encodes and a kernel takes as a
   parameter, says where the matrix lies and of how many elements, columns by rows, a box is; what of a box lies outside of the matrix
   arrives as 0. A box begins at a multiple of 16 bytes of a row; at another it is an illegal instruction. Its rows of 128, 64 or 32
   bytes lie one behind another in shared memory, from a multiple of 8 rows on, their chunks of 16 bytes exchanged as for warp groups
   (below); all of its bytes are counted. TENSOR_MAP stands before such a parameter's name. */
INLINE void box_copy(void *shared, const tensor_map_t &map, int column, int row, mbarrier_t *barrier);
INLINE void proxy_fence();
/* Warp (sm_90 or later): true for one lane, whichever it is, always the same. The compiler knows that what follows is for one
   thread: copies that several lanes issue would become a loop over these, for the engine takes its operands from uniform registers. */
INLINE bool elected();

/* A kernel may be launched before those before it in a stream are over (sm_90 or later). Behind griddepcontrol_wait() these are, and
   the calling thread sees what they have written; before, it touches no device memory. In a kernel that was launched as any other
   nothing is waited for. Once every block has called griddepcontrol_launch_dependents(), or ended, the next kernel may be launched. */
INLINE void griddepcontrol_wait();
INLINE void griddepcontrol_launch_dependents();

/* Warp groups (sm_90 alone): four warps, the first of them a multiple of four, that call together (marked "group").
   A matrix in shared memory lies in rows of SWIZZLE = 128, 64 or 32 bytes, each next row behind the one before. Its chunks of 16
   bytes change places: bits 4 and up of an address are combined by exclusive or with bits 7 and up, as many as count the chunks
   of a row. Eight rows start at a multiple of 8 SWIZZLE bytes. For a right factor [16, N],
     - rows along k (columns_first false): row n holds values of k; rows 8 i to 8 i + 7 begin at i * `stride`; `start` is that of
       the 16 values of k in row 0, and `leading` does not matter;
     - rows along n (columns_first true): row k holds values of n; rows 8 to 15 begin at `stride`, and the values of n beyond
       those of a row in other rows, that begin at `leading`.
   A left factor [64, 16] lies as a right one with rows along k, row m holding values of k. */
struct matrix_t { unsigned long long bits; };
template <int SWIZZLE> INLINE matrix_t wgmma_matrix(const void *start, int leading, int stride);

/* Group, all of whose threads name the same matrices: sum += left @ right, [64, 16] @ [16, N], T as above,
   N = 8, 16, 32, 64, 128, warp i of the group holding rows 16 i to 16 i + 15 of left and sum as in mma_m16n8k16, sum[j]
   being columns 8 j to 8 j + 7. It runs beside the threads: until a wait, `sum` and `left` may not be touched, nor the matrix
   be written. wgmma_fence stands before the first product and wherever the registers of products have been touched since.
   A commit closes the group of products since the last one, a wait returns once all but the PENDING newest groups are
   done. What threads wrote into the matrix must be behind a proxy_fence().
   The left factor lies in registers or in shared memory, where the same is true of it as of the right one. */
template <class T, int N, bool columns_first>
INLINE void wgmma_m64k16(float (&sum)[N / 8][4], const unsigned (&left)[4], matrix_t right);
template <class T, int N, bool columns_first>
INLINE void wgmma_m64k16(float (&sum)[N / 8][4], matrix_t left, matrix_t right);
INLINE void wgmma_fence();
/* Names registers of products, N fragments, to a compiler that does not know when these are read and written: it moves no use of
   them across. Stands between other uses and the fence, and behind the wait. R: float, unsigned. */
template <int N, class R> INLINE void wgmma_registers(R (&parts)[N][4]);
INLINE void wgmma_commit();
template <int PENDING> INLINE void wgmma_wait();

/* Warp: the value of lane `lane ^ mask`. */
INLINE float shfl_xor(float value, int mask);

/* Warp: N = 1, 2, 4 matrices of 8 x 8 16-bit elements from shared memory. Lane 8 i + r gives the address of row r of
   matrix i, 16 bytes aligned to 16 (the addresses of other lanes are ignored). Lane l receives in part[i] elements
   2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix i, or of its column l / 4 when transposed. */
template <int N> INLINE void ldmatrix(unsigned (&part)[N], const void *row);
template <int N> INLINE void ldmatrix_transposed(unsigned (&part)[N], const void *row);

/* Warp: sum += left @ right on matrix units, left [16, 16], right [16, 8], sum [16, 8] in fp32. T: fp16_t, bf16_t.
   With g = lane / 4 and p = 2 (lane % 4), a lane holds
     left[0] = [g, p..p+1]   left[1] = [g+8, p..p+1]   left[2] = [g, p+8..p+9]   left[3] = [g+8, p+8..p+9]
     right[0] = [p..p+1, g]  right[1] = [p+8..p+9, g]
     sum[0..1] = [g, p..p+1] sum[2..3] = [g+8, p..p+1]
   which is what ldmatrix<4> gives of row-major left (matrices in the order of left[]), ldmatrix<2> of right stored
   column by column, and ldmatrix_transposed<2> of right stored row by row. */
template <class T> INLINE void mma_m16n8k16(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2]);

/* Warp: sum += left @ right on matrix units, left [16, 8], right [8, 8] in TF32, sum as above. With t = lane % 4, a lane holds
     left[0] = [g, t]        left[1] = [g+8, t]        left[2] = [g, t+4]         left[3] = [g+8, t+4]
     right[0] = [t, g]       right[1] = [t+4, g] */
INLINE void mma_m16n8k8(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2]);
