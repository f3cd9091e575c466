/* The one entry point of a library: run blocks of a kernel's grid, one after another, on copies of its operands. */

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "block.h"
#include "fibers.h"
#include "findings.h"
#include "mbarriers.h"
#include "memory.h"
#include "units.h"
#include "wavefronts.h"
#include "wgmma.h"

struct Coordinates { unsigned x, y, z; };
extern Coordinates threadIdx, blockIdx, blockDim, gridDim;

namespace {

constexpr int kMaxArguments = 24; /* operands and tensor maps */

/* What is read, what is written as a whole or in part, and a number that stands in the place of an address. */
enum OperandKind : std::int32_t { kInput, kOutput, kPartial, kNumber };

struct OperandView {
    void *memory;
    std::int64_t bytes;
    OperandKind kind;
    bool is_written() const { return kind == kOutput || kind == kPartial; }
};

/* A tensor map, in whose place the number of its operand stands. */
struct MapView {
    std::int64_t operand, rows, columns, pitch_bytes, box_rows, box_columns, element_bytes;
};

struct Shape {
    std::int32_t grid[3], threads, shared_bytes;
    std::uint32_t seed;
    std::int32_t count_wavefronts, region_count;
    const emulation::Region *regions;
    /* The blocks to run, numbered with x first; all where there are none. */
    std::int32_t block_count;
    const std::int32_t *blocks;
    /* Bytes of the smallest elements of operands, 1 or 2 or more. */
    std::int32_t element_bytes;
    /* After this time no further block is begun; 0 for no limit. */
    double seconds;
    /* Of matrices in operands, which the kernel takes after these. */
    std::int32_t map_count;
    const MapView *maps;
    /* Whether it is launched before the kernels before it are over. */
    std::int32_t early;
};

void *addresses[kMaxArguments];
int count;
void (*kernel)();

template <std::size_t> using Pointer = void *;
template <std::size_t... I> void call_with(std::index_sequence<I...>)
{
    reinterpret_cast<void (*)(Pointer<I>...)>(kernel)(addresses[I]...);
}
template <int N> void call_if_count()
{
    if constexpr (N >= 0) {
        if (count == N)
            call_with(std::make_index_sequence<N>());
        else
            call_if_count<N - 1>();
    }
}
void call_kernel() { call_if_count<kMaxArguments>(); }

/* An operand between two guards: what is read or written there is out of its bounds. */
class Guarded {
public:
    explicit Guarded(const OperandView &view) : view_(view), bytes_(new unsigned char[view.bytes + kExtra])
    {
        const auto start = reinterpret_cast<std::uintptr_t>(bytes_.get()) + emulation::kGuard;
        memory_ = bytes_.get() + emulation::kGuard + (kAlignment - start % kAlignment);
        unsigned char *const behind = memory_ + view.bytes;
        emulation::poison(bytes_.get(), memory_ - bytes_.get());
        emulation::poison(behind, bytes_.get() + view.bytes + kExtra - behind);
        if (view.is_written())
            emulation::poison(memory_, view.bytes);
        else
            std::memcpy(memory_, view.memory, view.bytes);
    }
    unsigned char *memory() const { return memory_; }
    void copy_back() const
    {
        if (view_.is_written())
            std::memcpy(view_.memory, memory_, view_.bytes);
    }

private:
    static constexpr std::size_t kAlignment = 256; /* of every allocation on a GPU */
    static constexpr std::size_t kExtra = 2 * emulation::kGuard + kAlignment;
    OperandView view_;
    std::unique_ptr<unsigned char[]> bytes_;
    unsigned char *memory_;
};

} // namespace

/* Returns how many findings there are. Not reentrant: the emulator is one machine. */
extern "C" int emulate(void (*entry)(), const Shape *shape, const OperandView *views, int operand_count,
                       emulation::Finding *findings, emulation::Statistics *statistics)
{
    using namespace emulation;
    std::vector<Guarded> copies;
    copies.reserve(operand_count);
    operands.clear();
    cell_shift = shape->element_bytes == 1 ? 0 : 1;
    for (int number = 0; number < operand_count; ++number) {
        const OperandView &view = views[number];
        copies.emplace_back(view);
        addresses[number] = copies.back().memory();
        if (view.kind == kNumber)
            std::memcpy(&addresses[number], view.memory, sizeof addresses[number]);
        operands.push_back({copies.back().memory(), view.bytes, view.is_written(), view.kind == kPartial,
                            Cells(view.is_written() ? view.bytes : 0)});
    }
    std::vector<TensorMap> maps;
    for (const MapView *view = shape->maps; view != shape->maps + shape->map_count; ++view)
        maps.push_back({copies[view->operand].memory(), view->rows, view->columns, view->pitch_bytes, view->box_rows,
                        view->box_columns, view->element_bytes});
    for (std::size_t number = 0; number < maps.size(); ++number)
        addresses[operand_count + number] = &maps[number];
    kernel = entry;
    count = operand_count + shape->map_count;
    shared_bytes = shape->shared_bytes;
    regions.assign(shape->regions, shape->regions + shape->region_count);
    counting = shape->count_wavefronts != 0;
    early = shape->early != 0;
    found = 0;
    abandoned = false;
    emulation::statistics = {};
    blockDim = {static_cast<unsigned>(shape->threads), 1, 1};
    gridDim = {static_cast<unsigned>(shape->grid[0]), static_cast<unsigned>(shape->grid[1]), static_cast<unsigned>(shape->grid[2])};
    threadIdx = {};
    const std::int64_t all = std::int64_t{gridDim.x} * gridDim.y * gridDim.z;
    const std::int64_t chosen = shape->block_count != 0 ? shape->block_count : all;
    const auto begun = std::chrono::steady_clock::now();
    const auto is_over = [&] {
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begun;
        return shape->seconds != 0 && elapsed.count() > shape->seconds;
    };
    std::int64_t turn = 0;
    for (; turn < chosen && !abandoned && !(turn > 0 && is_over()); ++turn) {
        block = shape->block_count != 0 ? shape->blocks[turn] : static_cast<int>(turn);
        blockIdx = {block % gridDim.x, block / gridDim.x % gridDim.y, block / gridDim.x / gridDim.y};
        poison(shared_memory(), shared_bytes);
        forget_waits();
        run_block(shape->threads, shape->seed, call_kernel);
        forget_copies();
        end_mbarriers();
        forget_products();
        emulation::statistics.wavefronts += take_wavefronts();
    }
    release_stacks();
    if (!abandoned && turn == all)
        check_outputs();
    for (const Guarded &copy : copies)
        copy.copy_back();
    std::memcpy(findings, emulation::findings, found * sizeof *findings);
    *statistics = emulation::statistics;
    statistics->blocks = turn;
    operands.clear();
    return found;
}
