/* How often the banks of shared memory are asked: accesses of a warp's lanes put together as the hardware would. */
#pragma once

#include <cstdint>

namespace emulation {

/* Whether accesses are counted; counting takes several times as long as running. */
extern bool counting;

/* The calling thread accesses shared memory at an offset; `site` tells the instructions of the kernel apart. */
void count_access(std::int64_t offset, std::uint32_t bytes, const void *site);

/* Wavefronts of the block that has ended, whose accesses are forgotten. */
std::int64_t take_wavefronts();

} // namespace emulation
