/* A driver of GPUs that are not there: what NVIDIA's bindings ask of libcuda.so.1 to load and launch kernels, on memory of the host.
 *
 * It keeps the driver's rules that a launcher can break: a launch goes to the context of its stream, or to the current one for
 * stream 0; functions belong to a context; shared memory above 48 KB must be allowed on that device; nothing is loaded while a graph is
 * captured unless the thread says that it may. A launch copies the memory of the first operand to the last, when it runs: at once, or at
 * a replay if it was captured. Tensor maps are what they were encoded of, if the driver's rules allow that. Calls whose names begin with stub_ are the test's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 2, KERNELS = 1024, OPERANDS = 16, MAPS = 4, MAP_WORDS = 16, LAUNCHES = 4096, USUAL_SHARED = 49152, LARGEST_SHARED = 232448, EARLY_LAUNCH = 6 };
enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_SUPPORTED = 801, WHILE_CAPTURING = 900 };

typedef struct { unsigned grid[3], block[3], shared; void *stream; const void *attributes; unsigned attribute_count; } Configuration;
typedef struct { int id, padding, value; } Attribute;
typedef struct { int device; } Context;
typedef struct Kernel Kernel;
typedef struct { Kernel *kernel; int device, loaded; } Function;
struct Kernel { char name[64]; int allowed[DEVICES]; Function functions[DEVICES]; };
typedef struct { char kernel[64]; int device; uint64_t stream; unsigned grid[3], block[3], shared; uint64_t operands[OPERANDS], maps[MAPS][MAP_WORDS]; int early; } Launch;

static Context contexts[DEVICES] = {{0}, {1}};
static Kernel kernels[KERNELS];
static Launch launches[LAUNCHES];
static int kernel_count, launch_count, loads, encodings, retained[DEVICES], operands = 2, maps, copied_bytes, recording = 1;
static int capturing, captured_from;
static char failing[64];
static int failure, failures_left;
static __thread Context *current[8];
static __thread int depth;
static __thread int capture_mode;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int fails(const char *call) {
    if (failures_left == 0 || strcmp(call, failing) != 0) return SUCCESS;
    failures_left--;
    return failure;
}
static int may_not_load(void) { return capturing && capture_mode != 2; }

/* the test's */
void stub_operands(int count) { operands = count; }
void stub_maps(int count) { maps = count; }
int stub_encodings(void) { return encodings; }
void stub_copies(int bytes) { copied_bytes = bytes; }
void stub_records(int whether) { recording = whether; }
void stub_fail(const char *call, int error, int times) { strcpy(failing, call); failure = error; failures_left = times; }
void stub_forget(void) { launch_count = loads = encodings = failures_left = maps = 0; operands = 2; copied_bytes = 0; recording = 1; }
int stub_launches(void) { return launch_count; }
int stub_loads(void) { return loads; }
const Launch *stub_launch(int number) { return &launches[number]; }
int stub_allowed(const char *name, int device) {
    for (int i = 0; i < kernel_count; i++) if (strcmp(kernels[i].name, name) == 0) return kernels[i].allowed[device];
    return -1;
}
void stub_set_device(int device) { current[depth] = &contexts[device]; }
int stub_device(void) { return current[depth] ? current[depth]->device : -1; }
static void run(const Launch *launch) {
    if (copied_bytes) memcpy((void *)launch->operands[operands - 1], (void *)launch->operands[0], copied_bytes);
}
void stub_begin_capture(void) { capturing = 1; captured_from = launch_count; }
int stub_end_capture(void) { capturing = 0; return captured_from; }
void stub_replay(int from, int to) { for (int i = from; i < to; i++) run(&launches[i]); }

/* the driver's */
int cuInit(unsigned flags) { return SUCCESS; }
int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cuDeviceGet(int *device, int ordinal) {
    if (ordinal < 0 || ordinal >= DEVICES) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(Context **context, int device) { retained[device]++; *context = &contexts[device]; return SUCCESS; }
int cuCtxGetCurrent(Context **context) { *context = current[depth]; return SUCCESS; }
int cuCtxSetCurrent(Context *context) { current[depth] = context; return SUCCESS; }
int cuCtxPushCurrent_v2(Context *context) { current[++depth] = context; return SUCCESS; }
int cuCtxPopCurrent_v2(Context **context) {
    if (depth == 0) return INVALID_CONTEXT;
    *context = current[depth];
    current[depth--] = NULL;
    return SUCCESS;
}
int cuThreadExchangeStreamCaptureMode(int *mode) { int old = capture_mode; capture_mode = *mode; *mode = old; return SUCCESS; }
int cuLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
    int error = fails("cuLibraryLoadData");
    if (error) return error;
    if (may_not_load()) return WHILE_CAPTURING;
    loads++;
    *library = (void *)(uintptr_t)(0x100 + loads);
    return SUCCESS;
}
int cuLibraryGetKernel(Kernel **kernel, void *library, const char *name) {
    if (!library) return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    if (kernel_count == KERNELS) abort();
    *kernel = &kernels[kernel_count++];
    memset(*kernel, 0, sizeof **kernel);
    snprintf((*kernel)->name, sizeof (*kernel)->name, "%s", name);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuKernelSetAttribute(int attribute, int value, Kernel *kernel, int device) {
    int error = fails("cuKernelSetAttribute");
    if (error) return error;
    if (attribute != 8 || value > LARGEST_SHARED) return INVALID_VALUE;
    kernel->allowed[device] = value;
    return SUCCESS;
}
int cuKernelGetFunction(Function **function, Kernel *kernel) {
    int error = fails("cuKernelGetFunction");
    if (error) return error;
    if (!current[depth]) return INVALID_CONTEXT;
    int device = current[depth]->device;
    kernel->functions[device] = (Function){kernel, device, 0};
    *function = &kernel->functions[device];
    return SUCCESS;
}
int cuFuncLoad(Function *function) {
    if (may_not_load()) return WHILE_CAPTURING;
    function->loaded = 1;
    return SUCCESS;
}
int cuLaunchKernelEx(const Configuration *configuration, Function *function, void **parameters, void **extra) {
    int error = fails("cuLaunchKernelEx");
    if (error) return error;
    uint64_t stream = (uint64_t)configuration->stream;  /* of device 1 from 0x2000 on, of device 0 from 0x1000 on */
    if (!stream && !current[depth]) return INVALID_CONTEXT;
    int device = stream ? (int)(stream >> 12) - 1 : current[depth]->device;
    if (device != function->device || !parameters) return INVALID_HANDLE;
    const Attribute *attribute = configuration->attributes;
    int early = configuration->attribute_count == 1;
    if (configuration->attribute_count > 1 || (early && (attribute->id != EARLY_LAUNCH || attribute->value != 1))) return INVALID_VALUE;
    if (configuration->shared > USUAL_SHARED && (int)configuration->shared > function->kernel->allowed[device]) return INVALID_VALUE;
    if (capturing && !function->loaded) return WHILE_CAPTURING;
    if (!recording) return SUCCESS;
    pthread_mutex_lock(&lock);
    Launch *launch = &launches[launch_count++ % LAUNCHES];
    pthread_mutex_unlock(&lock);
    strcpy(launch->kernel, function->kernel->name);
    launch->device = device;
    launch->stream = stream;
    launch->early = early;
    launch->shared = configuration->shared;
    memcpy(launch->grid, configuration->grid, sizeof launch->grid);
    memcpy(launch->block, configuration->block, sizeof launch->block);
    for (int i = 0; i < operands; i++) launch->operands[i] = *(uint64_t *)parameters[i];
    for (int i = 0; i < maps; i++) memcpy(launch->maps[i], parameters[operands + i], sizeof launch->maps[i]);
    if (!capturing) run(launch);
    return SUCCESS;
}
/* Of elements of 16 bits, rank 2, whose boxes are swizzled: more is never asked for. */
int cuTensorMapEncodeTiled(uint64_t *map, int type, unsigned rank, void *address, const uint64_t *sizes, const uint64_t *strides,
                           const unsigned *box, const unsigned *steps, int interleave, int swizzle, int promotion, int fill) {
    int error = fails("cuTensorMapEncodeTiled");
    if (error) return error;
    if ((uintptr_t)map % 64 || (uintptr_t)address % 16 || rank != 2 || (type != 6 && type != 9) || interleave || fill) return INVALID_VALUE;
    if (swizzle < 1 || swizzle > 3 || 2 * box[0] > 16u << swizzle || 2 * box[0] % 16) return INVALID_VALUE;
    if (strides[0] % 16 || strides[0] >> 40 || strides[0] < 2 * sizes[0]) return INVALID_VALUE;
    for (int i = 0; i < 2; i++)
        if (!sizes[i] || sizes[i] > 1ull << 32 || !box[i] || box[i] > 256 || steps[i] != 1) return INVALID_VALUE;
    const uint64_t words[] = {(uintptr_t)address, type, sizes[0], sizes[1], strides[0], box[0], box[1], swizzle};
    memset(map, 0, MAP_WORDS * sizeof *map);
    memcpy(map, words, sizeof words);
    encodings++;
    return SUCCESS;
}
static int not_supported(void) { return NOT_SUPPORTED; }
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
    static void *self;
    char versioned[128];
    if (!self) {
        Dl_info information;
        dladdr((void *)cuInit, &information);
        self = dlopen(information.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    *function = dlsym(self, versioned);
    if (!*function) *function = dlsym(self, name);
    if (!*function) *function = (void *)not_supported;  /* cuda-core calls without asking whether there is one */
    if (found) *found = 0;
    return SUCCESS;
}
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
