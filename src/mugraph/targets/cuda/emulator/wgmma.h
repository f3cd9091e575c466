/* Products of warp groups, which run beside the threads until they are waited for. */
#pragma once

#include <array>
#include <cstdint>

#include "block.h"
#include "fibers.h"

namespace emulation {

/* What the calling thread knows of a product, by its number: it may still read its matrices; it is done, but not all four warps
   that multiplied have told so; or it is known to be done, as are 0 and those of earlier blocks. */
enum class Standing { pending, untold, known };
Standing standing_of(std::uint32_t product);

/* A thread of the group that multiplies. */
int reader_of(std::uint32_t product);

/* For every warp of the block, the newest of its products that is known to be done. */
using Done = std::array<std::uint32_t, kMaxThreads / kLanes>;

/* What the calling thread knows of products, and what it learns where threads meet. */
const Done &known_done();
void learn_done(const Done &done);

/* All threads of the block have met. */
void share_done(int threads);

/* Drop the products of a block that ended. */
void forget_products();

} // namespace emulation
