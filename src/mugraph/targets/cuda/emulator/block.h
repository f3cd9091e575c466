/* The threads of the block that is running: which one runs, who waits for whom, and what orders their accesses. */
#pragma once

#include <cstdint>

namespace emulation {

constexpr int kLanes = 32;

/* Counts the barriers of the block since the launch: accesses of different epochs are ordered. */
extern std::uint32_t epoch;
/* The epoch the running block began with. */
extern std::uint32_t first_epoch;
/* The running thread of the block, and the running block of the grid. */
extern int thread;
extern int block;

/* Barriers of the calling thread's warp since the last barrier of the block. */
std::uint32_t warp_epoch(int of_thread);

/* Run one block to its end, or until something is found that it cannot survive. */
void run_block(int threads, unsigned seed, void (*kernel)());

/* Wait for the 32 lanes of the warp. Each brings its operands; the last one to come runs `unit` on all of them. */
using Unit = void (*)(void *const *lanes);
void gather(Unit unit, void *operands);

/* The same for the four warps of a group. */
constexpr int kGroup = 4 * kLanes;
void gather_group(Unit unit, void *operands);

/* Wait until some thread announces progress, as a barrier in memory makes it. */
void wait_for_progress();
void announce_progress();

/* Give up the block: the caller never continues. */
[[noreturn]] void abandon_block();

} // namespace emulation
