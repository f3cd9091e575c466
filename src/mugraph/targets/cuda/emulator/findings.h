/* What is wrong with a kernel, collected while it runs; emulator.py mirrors these declarations. */
#pragma once

#include <cstdint>

namespace emulation {

enum class Kind : std::int32_t {
    race,            /* two threads, at least one writes, no barrier between them */
    in_flight,       /* touched while an asynchronous copy may still write it */
    uninitialized,   /* read before anything was written */
    out_of_bounds,   /* outside shared memory and every operand */
    misaligned,      /* the address is no multiple of the access's size */
    input_written,   /* a store to an operand that the kernel may only read */
    divergence,      /* a barrier or warp function that some threads never reach, or a phase that is never over */
    unwritten,       /* part of an output that nobody wrote */
    unfenced,        /* given to an asynchronous unit without a fence after it was written */
    registers,       /* registers given to an asynchronous unit with no fence since they could be touched */
    unfinished,      /* an asynchronous copy that nobody has waited for when its block ends */
    disagreement,    /* threads of a group that name different matrices */
    early,           /* device memory touched while kernels before this one may still run */
};

/* Where: shared memory, the kernel's operand of that number, or nowhere known. */
constexpr std::int32_t kShared = -1, kNowhere = -2;

struct Finding {
    Kind kind;
    std::int32_t place, thread, other, block, bytes;
    std::uint32_t epoch; /* barriers the block has passed */
    std::int64_t offset, count;
    std::uintptr_t site; /* an instruction of the kernel, from the start of the library; 0 for none */
};

constexpr int kMaxFindings = 64;
extern Finding findings[kMaxFindings];
extern int found;
/* Whether the running block was given up. */
extern bool abandoned;

/* Record a finding about the running thread; the same kind at the same site only counts up the first one. `other` is
   the thread of the earlier access or -1. */
void report(Kind kind, const void *address, std::uint32_t bytes, std::int32_t place, std::int32_t other, const void *site);

} // namespace emulation
