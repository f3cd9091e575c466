#include "mbarriers.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "block.h"
#include "fibers.h"
#include "findings.h"
#include "memory.h"
#include "units.h"
#include "wgmma.h"

namespace emulation {
namespace {

constexpr std::uint32_t kBarrierBytes = 8, kCopyUnit = 16;
/* Boxes begin at lines of 128 bytes, whose number says how chunks are exchanged. */
constexpr int kLineBits = 7;
/* Numbers of barriers share the field that holds those of threads. */
constexpr std::size_t kMaxBarriers = 1023;

struct BulkCopy {
    unsigned char *to;
    int thread;
    const void *site;
    std::vector<unsigned char> data;
};

/* Which phases of each barrier are over, and which products are done. */
struct Knowledge {
    std::vector<std::uint32_t> phases;
    Done done{};
};

struct Barrier {
    const void *address;
    int number, arrivals, pending, copier;
    std::int64_t bytes; /* expected and not yet copied */
    std::uint32_t phase;
    std::vector<BulkCopy> copies;
    std::vector<std::uint32_t> waited; /* phases that each thread knows to be over */
    Knowledge arrived, told; /* what the arrivals so far knew, and of that what those knew that phases counted which are over */
};
std::deque<Barrier> barriers;

void advance(Barrier &barrier)
{
    if (barrier.pending > 0 || barrier.bytes != 0)
        return;
    ++barrier.phase;
    barrier.pending = barrier.arrivals;
    barrier.told = barrier.arrived;
    announce_progress();
}

/* The barrier counts the calling thread's arrival, and keeps what it knows. */
void arrive(Barrier &barrier)
{
    std::vector<std::uint32_t> &phases = barrier.arrived.phases;
    phases.resize(barriers.size());
    for (std::size_t each = 0; each < phases.size(); ++each)
        phases[each] = std::max(phases[each], barriers[each].waited[thread]);
    for (std::size_t warp = 0; warp < barrier.arrived.done.size(); ++warp)
        barrier.arrived.done[warp] = std::max(barrier.arrived.done[warp], known_done()[warp]);
    --barrier.pending;
}

/* The calling thread has waited for the phases of a barrier that are over. */
void learn_from(Barrier &barrier)
{
    barrier.waited[thread] = barrier.phase;
    for (std::size_t each = 0; each < barrier.told.phases.size(); ++each)
        barriers[each].waited[thread] = std::max(barriers[each].waited[thread], barrier.told.phases[each]);
    learn_done(barrier.told.done);
}

/* The barrier at an address that some thread has set up, which the calling thread must be able to know. */
Barrier &barrier_at(const void *address, const void *site)
{
    read(address, kBarrierBytes, kBarrierBytes, site);
    const auto found =
        std::find_if(barriers.begin(), barriers.end(), [&](const Barrier &each) { return each.address == address; });
    if (found == barriers.end()) {
        report(Kind::uninitialized, address, kBarrierBytes, kShared, -1, site);
        abandon_block();
    }
    return *found;
}

/* Copies land in any order and no earlier than somebody waits; those behind the end of the phase stay under way. */
void land_copies(Barrier &barrier)
{
    const std::uint32_t phase = barrier.phase;
    while (!barrier.copies.empty() && barrier.phase == phase) {
        const BulkCopy copy = std::move(barrier.copies.back());
        barrier.copies.pop_back();
        std::memcpy(copy.to, copy.data.data(), copy.data.size());
        land_counted(copy.to, copy.data.size(), barrier.number, phase);
        barrier.bytes -= static_cast<std::int64_t>(copy.data.size());
        advance(barrier);
    }
}

/* The engine takes `data` to where `shared` is, some time until the barrier's phase is over. */
void begin_copy(Barrier &barrier, void *shared, std::vector<unsigned char> data, std::uint32_t alignment, const void *site)
{
    const std::uint32_t bytes = static_cast<std::uint32_t>(data.size());
    require_fences(shared, bytes, site);
    write(shared, bytes, alignment, site, true);
    poison(shared, bytes);
    barrier.copier = thread;
    barrier.copies.push_back({static_cast<unsigned char *>(shared), thread, site, std::move(data)});
    announce_progress();
}

/* The bytes of a box as they lie in shared memory, behind `shared`: zeros outside of the matrix, and the chunks of its rows exchanged. */
std::vector<unsigned char> box(const TensorMap &map, const unsigned char *shared, int column, int row, const void *site)
{
    const std::int64_t row_bytes = map.box_columns * map.element_bytes, chunks = row_bytes / kCopyUnit;
    std::vector<unsigned char> data(map.box_rows * row_bytes);
    const std::int64_t start = shared - shared_memory();
    const std::int64_t first = std::max<std::int64_t>(0, -column), last = std::min(map.box_columns, map.columns - column);
    for (std::int64_t r = std::max<std::int64_t>(0, -row); r < std::min(map.box_rows, map.rows - row) && first < last; ++r) {
        const unsigned char *const from = map.memory + (row + r) * map.pitch_bytes + column * map.element_bytes;
        read(from + first * map.element_bytes, (last - first) * map.element_bytes, map.element_bytes, site);
        for (std::int64_t c = first; c < last; ++c) {
            const std::int64_t plain = start + r * row_bytes + c * map.element_bytes;
            const std::int64_t place = plain ^ (plain >> kLineBits & (chunks - 1)) * kCopyUnit;
            std::memcpy(data.data() + (place - start), from + c * map.element_bytes, map.element_bytes);
        }
    }
    return data;
}

} // namespace

bool has_waited(int barrier, std::uint32_t phase) { return barriers[barrier].waited[thread] > phase; }

int copier(int barrier) { return barriers[barrier].copier; }

void end_mbarriers()
{
    for (const Barrier &barrier : barriers)
        for (const BulkCopy &copy : barrier.copies) {
            thread = copy.thread;
            if (!abandoned)
                report(Kind::unfinished, copy.to, copy.data.size(), kShared, -1, copy.site);
        }
    barriers.clear();
}

} // namespace emulation

using namespace emulation;

extern "C" {

void emulated_mbarrier_init(void *address, int arrivals)
{
    write(address, kBarrierBytes, kBarrierBytes, __builtin_return_address(0));
    if (barriers.size() == kMaxBarriers)
        abandon_block();
    const int number = static_cast<int>(barriers.size());
    barriers.push_back({address, number, arrivals, arrivals, -1, 0, 0, {}, std::vector<std::uint32_t>(kMaxThreads), {}, {}});
}

void emulated_mbarrier_arrive_expect(void *address, int bytes)
{
    Barrier &barrier = barrier_at(address, __builtin_return_address(0));
    barrier.bytes += bytes;
    arrive(barrier);
    advance(barrier);
    announce_progress();
}

void emulated_mbarrier_wait(void *address, int parity)
{
    Barrier &barrier = barrier_at(address, __builtin_return_address(0));
    while (static_cast<int>(barrier.phase % 2) == parity) {
        land_copies(barrier);
        if (static_cast<int>(barrier.phase % 2) == parity)
            wait_for_progress();
    }
    learn_from(barrier);
}

void emulated_bulk_copy(void *shared, const void *from, int bytes, void *address)
{
    const void *const site = __builtin_return_address(0);
    Barrier &barrier = barrier_at(address, site);
    require_fences(address, kBarrierBytes, site);
    const auto *const source = static_cast<const unsigned char *>(from);
    if (bytes <= 0 || bytes % kCopyUnit != 0)
        report(Kind::misaligned, shared, bytes, kShared, -1, site);
    read(from, bytes, kCopyUnit, site);
    begin_copy(barrier, shared, {source, source + bytes}, kCopyUnit, site);
}

void emulated_box_copy(void *shared, const void *map, int column, int row, void *address)
{
    const void *const site = __builtin_return_address(0);
    Barrier &barrier = barrier_at(address, site);
    require_fences(address, kBarrierBytes, site);
    const auto &matrix = *static_cast<const TensorMap *>(map);
    const bool at_a_line = (static_cast<unsigned char *>(shared) - shared_memory()) % (1 << kLineBits) == 0;
    if (!at_a_line || column * matrix.element_bytes % kCopyUnit != 0) {
        report(Kind::misaligned, shared, kCopyUnit, kShared, -1, site);
        abandon_block();
    }
    begin_copy(barrier, shared, box(matrix, static_cast<unsigned char *>(shared), column, row, site), 1 << kLineBits, site);
}

void emulated_proxy_fence() { fence_writes(); }
}
