/* Barriers in shared memory that count threads and bytes, and the bulk copies they count. */
#pragma once

#include <cstdint>

namespace emulation {

/* What a tensor map says: a matrix in device memory, and how much of it is a box. */
struct TensorMap {
    unsigned char *memory;
    std::int64_t rows, columns, pitch_bytes, box_rows, box_columns, element_bytes;
};

/* Whether the calling thread has waited until a phase of the barrier of that number was over. */
bool has_waited(int barrier, std::uint32_t phase);

/* The thread that last told the engine to copy for a barrier. */
int copier(int barrier);

/* Report copies that are still on their way at the end of a block; forget its barriers. */
void end_mbarriers();

} // namespace emulation
