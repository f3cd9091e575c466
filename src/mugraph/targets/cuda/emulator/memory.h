/* The memory a kernel may touch, and the history of every cell of it. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace emulation {

constexpr std::size_t kMaxShared = 1 << 20; /* more than any GPU has: buffers may be laid far apart */
/* Bytes before and after each piece of memory where an access is known to have missed it. */
constexpr std::size_t kGuard = 1 << 16;

/* Products that a cell tells apart. */
constexpr int kProductsTold = 2;

/* One access: by which thread, in which epochs. `flight`: an asynchronous copy that has not landed. What a bulk copy has
   written carries kMaxThreads plus its barrier's number for a thread, and the barrier's phase for a warp's epoch. */
struct Access {
    std::uint64_t epoch : 32, warp_epoch : 20, thread : 11, flight : 1;
};

/* The history of `cell_bytes` bytes: the last write, and readers since. Of the readers the last two of one warp are kept, and one
   of another warp: if any reader conflicts with a later write, one of these three does. `fences`: the proxy fences that the
   writer had passed. `products`: the last ones that a unit reads it for, of warp groups with even and with odd numbers. */
struct Cell {
    Access write, reads[2], other_warp;
    std::uint32_t fences, products[kProductsTold];
};

/* log2 of the bytes of a cell: 0 where an operand has elements of one byte, else 1. */
extern int cell_shift;

/* The cells of so many bytes, nothing remembered yet. Where no thread comes they take no memory: it is zero until it is touched. */
class Cells {
public:
    explicit Cells(std::size_t bytes)
        : size_((bytes + (1 << cell_shift) - 1) >> cell_shift), cells_(static_cast<Cell *>(std::calloc(size_ + 1, sizeof(Cell))))
    {
        if (cells_ == nullptr)
            throw std::bad_alloc();
    }
    std::size_t size() const { return size_; }
    /* Null where there are none. */
    Cell *data() const { return size_ == 0 ? nullptr : cells_.get(); }

private:
    struct Free {
        void operator()(Cell *cells) const { std::free(cells); }
    };
    std::size_t size_;
    std::unique_ptr<Cell[], Free> cells_;
};

/* One operand of the kernel. Kernels may write outputs alone, so only they have a history. Of a `partial` one some may be left
   unwritten. */
struct Operand {
    unsigned char *memory;
    std::int64_t bytes;
    bool output, partial;
    Cells cells;
};

/* A buffer in shared memory. */
struct Region {
    std::int64_t offset, bytes;
};

extern std::vector<Operand> operands;
extern std::size_t shared_bytes;
/* What the kernel may touch of its shared memory: all of it where this is empty. */
extern std::vector<Region> regions;

unsigned char *shared_memory();

/* The addresses of this library: instructions and constants of the kernel. */
struct Range {
    std::uintptr_t first, last;
};
const Range &library();

/* Fill with a pattern that is NaN in every element type. */
void poison(void *memory, std::size_t bytes);

/* The calling thread reads or writes; `alignment` is what the address must be a multiple of. */
void read(const void *address, std::uint32_t bytes, std::uint32_t alignment, const void *site);
void write(const void *address, std::uint32_t bytes, std::uint32_t alignment, const void *site, bool flight = false);

/* A copy of the calling thread has landed. */
void land(const void *address, std::uint32_t bytes);

/* Report shared memory that a unit beside the threads is going to touch, although its writer has passed no fence since. */
void require_fences(const void *address, std::uint32_t bytes, const void *site);

/* The barrier of that number has counted a bulk copy in that phase: who has waited for the phase may touch it. */
void land_counted(const void *address, std::uint32_t bytes, int barrier, std::uint32_t phase);

/* A unit reads shared memory for the product of that number, of the calling thread's warp group, some time until it is done. */
void read_by_unit(const void *address, std::uint32_t bytes, std::uint32_t product, const void *site);

/* The calling thread's writes so far may be touched by units beside the threads. */
void fence_writes();

/* Whether the kernels before this one may still run when it begins, and a thread may touch operands only once it has waited for them. */
extern bool early;

/* No thread of the block that begins has waited for the kernels before this one. */
void forget_waits();

/* Report what the kernel left unwritten in its outputs. */
void check_outputs();

} // namespace emulation
