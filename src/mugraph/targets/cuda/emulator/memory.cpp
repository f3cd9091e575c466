#include "memory.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "block.h"
#include "fibers.h"
#include "findings.h"
#include "mbarriers.h"
#include "wgmma.h"
#include "wavefronts.h"

namespace emulation {

Finding findings[kMaxFindings];
int found;
bool abandoned;
bool early;
int cell_shift = 1;
std::vector<Operand> operands;
std::size_t shared_bytes;
std::vector<Region> regions;

namespace {

Cell shared_cells[kMaxShared];
/* Proxy fences of each thread of the block. */
std::uint32_t fences[kMaxThreads];
/* Whether a thread of the block has waited for the kernels before this one. */
bool waited_for_kernels[kMaxThreads];

/* Shared memory between two guards, which belong to it and lie out of its bounds. */
unsigned char *shared_region()
{
    static unsigned char *const region = [] {
        void *const pages =
            mmap(nullptr, kMaxShared + 2 * kGuard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (pages == MAP_FAILED)
            throw std::bad_alloc();
        return static_cast<unsigned char *>(pages);
    }();
    return region;
}

/* The addresses this library is loaded at. */
Range find_library()
{
    Range range{0, 0};
    dl_iterate_phdr(
        [](dl_phdr_info *info, std::size_t, void *result) {
            const auto here = reinterpret_cast<std::uintptr_t>(&operands);
            Range found{info->dlpi_addr, 0};
            for (int segment = 0; segment < info->dlpi_phnum; ++segment)
                if (const auto &header = info->dlpi_phdr[segment]; header.p_type == PT_LOAD)
                    found.last = std::max(found.last, found.first + header.p_vaddr + header.p_memsz);
            if (here < found.first || here >= found.last)
                return 0;
            *static_cast<Range *>(result) = found;
            return 1;
        },
        &range);
    return range;
}

struct Window {
    std::int32_t place;
    unsigned char *memory;
    std::int64_t bytes;
    Cell *cells;
    bool writable;
};

/* How many cells so many bytes lie in. */
std::int64_t cells_up_to(std::int64_t bytes) { return (bytes + (1 << cell_shift) - 1) >> cell_shift; }

/* The memory that `address` belongs to or is nearest to; kNowhere for the thread's own variables. */
Window window_of(const void *address)
{
    const auto *const byte = static_cast<const unsigned char *>(address);
    if (static_cast<std::size_t>(byte - shared_region()) < kMaxShared + 2 * kGuard)
        return {kShared, shared_memory(), static_cast<std::int64_t>(shared_bytes), shared_cells, true};
    for (std::size_t number = 0; number < operands.size(); ++number) {
        Operand &operand = operands[number];
        if (static_cast<std::size_t>(byte - operand.memory + kGuard) < operand.bytes + 2 * kGuard)
            return {static_cast<std::int32_t>(number), operand.memory, operand.bytes, operand.cells.data(), operand.output};
    }
    return {kNowhere, nullptr, 0, nullptr, true};
}

bool in_some_region(std::int64_t offset, std::uint32_t bytes)
{
    return regions.empty() || std::any_of(regions.begin(), regions.end(), [&](const Region &region) {
               return region.offset <= offset && offset + bytes <= region.offset + region.bytes;
           });
}

bool is_private(const void *address)
{
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    return on_fiber_stack(address) || (value >= library().first && value < library().last);
}

/* The cells of an access that is allowed; null after reporting why it is not, or where nothing is remembered. */
struct Span {
    Cell *first, *last;
    std::int32_t place;
};
Span cells_of(const void *address, std::uint32_t bytes, std::uint32_t alignment, const void *site, bool writes)
{
    if (is_private(address))
        return {nullptr, nullptr, kNowhere};
    const Window window = window_of(address);
    if (window.place == kNowhere) {
        report(Kind::out_of_bounds, address, bytes, kNowhere, -1, site);
        abandon_block();
    }
    const std::int64_t offset = static_cast<const unsigned char *>(address) - window.memory;
    if (offset < 0 || offset + bytes > window.bytes || (window.place == kShared && !in_some_region(offset, bytes))) {
        report(Kind::out_of_bounds, address, bytes, window.place, -1, site);
        return {nullptr, nullptr, window.place};
    }
    if (early && window.place != kShared && !waited_for_kernels[thread])
        report(Kind::early, address, bytes, window.place, -1, site);
    if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0)
        report(Kind::misaligned, address, bytes, window.place, -1, site);
    if (writes && !window.writable)
        report(Kind::input_written, address, bytes, window.place, -1, site);
    if (window.place == kShared && counting)
        count_access(offset, bytes, site);
    if (window.cells == nullptr)
        return {nullptr, nullptr, window.place};
    return {window.cells + (offset >> cell_shift), window.cells + cells_up_to(offset + bytes), window.place};
}

bool by_unit(const Access &access) { return access.thread >= kMaxThreads; }

/* The thread that wrote, or told a unit to. */
int writer_of(const Access &access)
{
    return by_unit(access) ? copier(access.thread - kMaxThreads) : static_cast<int>(access.thread);
}

bool happened(const Access &access, std::int32_t place) { return access.epoch >= (place == kShared ? first_epoch : 1); }

/* Whether nothing orders an earlier access before the calling thread. Blocks are never ordered. */
bool concurrent(const Access &access, std::int32_t place)
{
    if (!happened(access, place))
        return false;
    if (access.epoch < first_epoch)
        return true;
    if (by_unit(access))
        return access.epoch == epoch && !has_waited(access.thread - kMaxThreads, access.warp_epoch);
    if (access.epoch < epoch || static_cast<int>(access.thread) == thread)
        return false;
    return static_cast<int>(access.thread) / kLanes != thread / kLanes || access.warp_epoch >= warp_epoch(thread);
}

Access this_access(bool flight)
{
    return {epoch, warp_epoch(thread), static_cast<std::uint64_t>(thread), flight};
}

void remember_read(Cell &cell, const Access &access)
{
    const Access last = cell.reads[0];
    if (last.epoch == access.epoch && last.thread != access.thread) {
        if (last.thread / kLanes == access.thread / kLanes)
            cell.reads[1] = last;
        else
            cell.other_warp = last;
    }
    cell.reads[0] = access;
}

/* The cells of shared memory from an address on. */
Cell *shared_cells_of(const void *address)
{
    return shared_cells + ((static_cast<const unsigned char *>(address) - shared_memory()) >> cell_shift);
}

/* Whether all bytes belong to the shared memory of the block. */
bool is_shared(const void *address, std::uint32_t bytes)
{
    const auto offset = static_cast<const unsigned char *>(address) - shared_memory();
    return offset >= 0 && offset + bytes <= static_cast<std::int64_t>(shared_bytes);
}

template <class Change> void for_each_cell(const void *address, std::uint32_t bytes, Change change)
{
    if (is_shared(address, bytes))
        std::for_each_n(shared_cells_of(address), cells_up_to(bytes), change);
}

template <class Change> void for_each_in_flight(const void *address, std::uint32_t bytes, Change change)
{
    for_each_cell(address, bytes, [&](Cell &cell) {
        if (cell.write.flight)
            change(cell);
    });
}

} // namespace

const Range &library()
{
    static const Range range = find_library();
    return range;
}

unsigned char *shared_memory() { return shared_region() + kGuard; }

void poison(void *memory, std::size_t bytes) { std::memset(memory, 0xff, bytes); }

void report(Kind kind, const void *address, std::uint32_t bytes, std::int32_t place, std::int32_t other, const void *site)
{
    const auto where = site == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(site) - library().first;
    for (int known = 0; known < found; ++known)
        if (findings[known].kind == kind && findings[known].site == where && findings[known].place == place) {
            ++findings[known].count;
            return;
        }
    if (found == kMaxFindings)
        return;
    std::int64_t offset = 0;
    if (place == kShared)
        offset = static_cast<const unsigned char *>(address) - shared_memory();
    else if (place != kNowhere && address != nullptr)
        offset = static_cast<const unsigned char *>(address) - operands[place].memory;
    const auto size = static_cast<std::int32_t>(bytes);
    findings[found++] = {kind, place, thread, other, block, size, epoch - first_epoch, offset, 1, where};
}

namespace {

/* What is read must be there for the calling thread. */
Span require_written(const void *address, std::uint32_t bytes, std::uint32_t alignment, const void *site)
{
    const Span span = cells_of(address, bytes, alignment, site, false);
    bool told = false;
    const auto tell = [&](Kind kind, int other) {
        if (!told)
            report(kind, address, bytes, span.place, other, site);
        told = true;
    };
    for (Cell *cell = span.first; cell != span.last; ++cell) {
        const Access before = cell->write;
        if (!happened(before, span.place))
            tell(Kind::uninitialized, -1);
        else if (before.flight)
            tell(Kind::in_flight, writer_of(before));
        else if (concurrent(before, span.place))
            tell(by_unit(before) ? Kind::in_flight : Kind::race, writer_of(before));
    }
    return span;
}

} // namespace

void read(const void *address, std::uint32_t bytes, std::uint32_t alignment, const void *site)
{
    const Span span = require_written(address, bytes, alignment, site);
    for (Cell *cell = span.first; cell != span.last; ++cell)
        remember_read(*cell, this_access(false));
}

void write(const void *address, std::uint32_t bytes, std::uint32_t alignment, const void *site, bool flight)
{
    const Span span = cells_of(address, bytes, alignment, site, true);
    bool told = false;
    const auto tell = [&](Kind kind, const Access &earlier) {
        if (!told)
            report(kind, address, bytes, span.place, writer_of(earlier), site);
        told = true;
    };
    const auto tell_of_product = [&](Standing standing, std::uint32_t product) {
        if (!told)
            report(standing == Standing::pending ? Kind::in_flight : Kind::race, address, bytes, span.place, reader_of(product), site);
        told = true;
    };
    for (Cell *cell = span.first; cell != span.last; ++cell) {
        if (cell->write.flight && happened(cell->write, span.place))
            tell(Kind::in_flight, cell->write);
        for (const std::uint32_t product : cell->products)
            if (const Standing standing = standing_of(product); standing != Standing::known)
                tell_of_product(standing, product);
        for (const Access &earlier : {cell->write, cell->reads[0], cell->reads[1], cell->other_warp})
            if (concurrent(earlier, span.place))
                tell(Kind::race, earlier);
        cell->write = this_access(flight);
        cell->fences = fences[thread];
    }
}

void land(const void *address, std::uint32_t bytes)
{
    for_each_in_flight(address, bytes, [](Cell &cell) {
        cell.write = this_access(false);
        cell.fences = fences[thread];
    });
}

void land_counted(const void *address, std::uint32_t bytes, int barrier, std::uint32_t phase)
{
    const auto writer = static_cast<std::uint64_t>(kMaxThreads + barrier);
    for_each_in_flight(address, bytes, [&](Cell &cell) { cell.write = {epoch, phase, writer, false}; });
}

void require_fences(const void *address, std::uint32_t bytes, const void *site)
{
    bool told = false;
    for_each_cell(address, bytes, [&](const Cell &cell) {
        const Access writer = cell.write;
        const bool by_thread = happened(writer, kShared) && !by_unit(writer) && !writer.flight;
        if (by_thread && fences[writer.thread] == cell.fences && !told) {
            report(Kind::unfenced, address, bytes, kShared, static_cast<int>(writer.thread), site);
            told = true;
        }
    });
}

void read_by_unit(const void *address, std::uint32_t bytes, std::uint32_t product, const void *site)
{
    require_fences(address, bytes, site);
    const bool counted = std::exchange(counting, false); /* units read whole rows, one a turn */
    require_written(address, bytes, bytes, site);
    counting = counted;
    for_each_cell(address, bytes, [&](Cell &cell) { cell.products[thread / kGroup % kProductsTold] = product; });
}

void fence_writes() { ++fences[thread]; }

void forget_waits() { std::fill(std::begin(waited_for_kernels), std::end(waited_for_kernels), false); }

void check_outputs()
{
    for (std::size_t number = 0; number < operands.size(); ++number) {
        const Operand &operand = operands[number];
        for (std::size_t cell = 0; !operand.partial && cell < operand.cells.size(); ++cell)
            if (operand.cells.data()[cell].write.epoch == 0)
                report(Kind::unwritten, operand.memory + (cell << cell_shift), 1 << cell_shift, static_cast<std::int32_t>(number), -1, nullptr);
    }
}

extern "C" void emulated_griddepcontrol_wait() { waited_for_kernels[thread] = true; }

} // namespace emulation

/* What the compiler calls before every access of the kernel when it instruments for races. The real library behind
   these names is not linked. */
#define ACCESS(name, function, bytes, alignment)                                                                        \
    extern "C" void name(void *address)                                                                                 \
    {                                                                                                                   \
        emulation::function(address, bytes, alignment, __builtin_return_address(0));                                    \
    }
ACCESS(__tsan_read1, read, 1, 1)
ACCESS(__tsan_read2, read, 2, 2)
ACCESS(__tsan_read4, read, 4, 4)
ACCESS(__tsan_read8, read, 8, 8)
ACCESS(__tsan_read16, read, 16, 16)
ACCESS(__tsan_write1, write, 1, 1)
ACCESS(__tsan_write2, write, 2, 2)
ACCESS(__tsan_write4, write, 4, 4)
ACCESS(__tsan_write8, write, 8, 8)
ACCESS(__tsan_write16, write, 16, 16)
/* Accesses to types whose alignment is smaller than their size: a GPU splits those. */
ACCESS(__tsan_unaligned_read2, read, 2, 1)
ACCESS(__tsan_unaligned_read4, read, 4, 2)
ACCESS(__tsan_unaligned_read8, read, 8, 2)
ACCESS(__tsan_unaligned_read16, read, 16, 2)
ACCESS(__tsan_unaligned_write2, write, 2, 1)
ACCESS(__tsan_unaligned_write4, write, 4, 2)
ACCESS(__tsan_unaligned_write8, write, 8, 2)
ACCESS(__tsan_unaligned_write16, write, 16, 2)
extern "C" void __tsan_read_range(void *address, std::size_t bytes)
{
    emulation::read(address, static_cast<std::uint32_t>(bytes), 2, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void *address, std::size_t bytes)
{
    emulation::write(address, static_cast<std::uint32_t>(bytes), 2, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit() {}
