/* Fibers: one stack for each thread of a block, and switching between them without the operating system. */
#pragma once

#include <cstddef>

namespace emulation {

constexpr int kMaxThreads = 1024;
constexpr std::size_t kStackBytes = 1 << 17;

/* Start `entry` on the stack of fiber `number` when it is next switched to; what ran there before is forgotten. */
void prepare_fiber(int number, void (*entry)());

/* Leave the running fiber for another. kMain is the caller of the emulator. */
constexpr int kMain = kMaxThreads;
void switch_fiber(int from, int to);

/* Give the stacks' memory back to the system until fibers are prepared again. */
void release_stacks();

/* Whether an address lies in the stack of some fiber. */
bool on_fiber_stack(const void *address);

} // namespace emulation
