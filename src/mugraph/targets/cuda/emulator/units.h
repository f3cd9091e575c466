/* Numbers the units keep, and conversions of fp16 that need no hardware. */
#pragma once

#include <cstdint>

namespace emulation {

/* Matrices of 8 rows that ldmatrix has read, the extra turns they took because rows shared banks, and all turns of shared
   memory where they were counted. */
struct Statistics {
    std::int64_t matrices, conflicts, wavefronts, blocks;
};
extern Statistics statistics;

/* Drop the asynchronous copies of a block that ended. */
void forget_copies();

float from_fp16(std::uint16_t bits);
/* Rounds to nearest even. */
std::uint16_t to_fp16(float x);

} // namespace emulation
