/* Products of warp groups, which run beside the threads until they are waited for. */
#pragma once

#include <cstdint>

namespace emulation {

/* Whether a product, by its number, may still read its matrix. */
bool is_pending(std::uint32_t product);

/* Drop the products of a block that ended. */
void forget_products();

} // namespace emulation
