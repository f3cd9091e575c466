/* What CUDA supplies to a kernel without headers, for a kernel compiled by a host compiler. Stands before interface.h. */

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define TENSOR_MAP const tensor_map_t &

struct Coordinates { unsigned x, y, z; };
extern Coordinates threadIdx, blockIdx, blockDim, gridDim;

extern "C" {
void emulated_syncthreads();
void emulated_syncwarp();
unsigned char *emulated_shared_memory();
void emulated_load(void *to, const void *address, unsigned bytes);
void emulated_store(void *address, const void *from, unsigned bytes);
void emulated_cp_async(void *shared, const void *from, unsigned bytes, bool present);
void emulated_cp_async_commit();
void emulated_cp_async_wait(unsigned pending);
void emulated_mbarrier_init(void *barrier, int arrivals);
void emulated_mbarrier_arrive_expect(void *barrier, int bytes);
void emulated_mbarrier_wait(void *barrier, int parity);
void emulated_bulk_copy(void *shared, const void *from, int bytes, void *barrier);
void emulated_box_copy(void *shared, const void *map, int column, int row, void *barrier);
void emulated_proxy_fence();
void emulated_griddepcontrol_wait();
/* The left factor lies in registers, or, where `left` is null, in shared memory as `left_matrix` says. */
void emulated_wgmma(
    float *sum, int columns, const unsigned *left, unsigned long long left_matrix, unsigned long long matrix, bool columns_first,
    bool is_bf16);
void emulated_wgmma_fence();
void emulated_wgmma_commit();
void emulated_wgmma_wait(unsigned pending);
float emulated_shfl_xor(float value, int mask);
void emulated_ldmatrix(unsigned *parts, int matrices, const void *row, bool transposed);
void emulated_mma_m16n8k16(float *sum, const unsigned *left, const unsigned *right, bool is_bf16);
void emulated_mma_m16n8k8(float *sum, const unsigned *left, const unsigned *right);
float emulated_from_fp16(unsigned short bits);
unsigned short emulated_to_fp16(float x);
}

inline void __syncthreads() { emulated_syncthreads(); }
inline void __syncwarp() { emulated_syncwarp(); }

inline float exp(float x) { return __builtin_expf(x); }
inline float log(float x) { return __builtin_logf(x); }
inline float tanh(float x) { return __builtin_tanhf(x); }
inline float erf(float x) { return __builtin_erff(x); }
inline float erfc(float x) { return __builtin_erfcf(x); }
inline float sin(float x) { return __builtin_sinf(x); }
inline float cos(float x) { return __builtin_cosf(x); }
inline float asin(float x) { return __builtin_asinf(x); }
inline float acos(float x) { return __builtin_acosf(x); }
inline float atan2(float y, float x) { return __builtin_atan2f(y, x); }
inline float exp2(float x) { return __builtin_exp2f(x); }
inline float expm1(float x) { return __builtin_expm1f(x); }
inline float log2(float x) { return __builtin_log2f(x); }
inline float log1p(float x) { return __builtin_log1pf(x); }
inline float floor(float x) { return __builtin_floorf(x); }
inline float rint(float x) { return __builtin_rintf(x); }
inline float fmod(float x, float y) { return __builtin_fmodf(x, y); }
inline float pow(float x, float y) { return __builtin_powf(x, y); }
inline float copysign(float x, float y) { return __builtin_copysignf(x, y); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline float abs(float x) { return __builtin_fabsf(x); }
inline float max(float x, float y) { return __builtin_fmaxf(x, y); }
inline float min(float x, float y) { return __builtin_fminf(x, y); }
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline int max(int x, int y) { return x > y ? x : y; }
inline int min(int x, int y) { return x < y ? x : y; }
