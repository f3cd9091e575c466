/* The one entry point of a library: run a grid of blocks of a kernel, one after another, on copies of its operands. */

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

constexpr int kMaxOperands = 16;

struct OperandView {
    void *memory;
    std::int64_t bytes;
    std::int32_t output;
};

struct Shape {
    std::int32_t grid[3], threads, shared_bytes;
    std::uint32_t seed;
    std::int32_t count_wavefronts, region_count;
    const emulation::Region *regions;
};

void *addresses[kMaxOperands];
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
void call_kernel() { call_if_count<kMaxOperands>(); }

/* An operand between two guards: what is read or written there is out of its bounds. */
class Guarded {
public:
    explicit Guarded(const OperandView &view) : view_(view), bytes_(new unsigned char[view.bytes + kExtra])
    {
        const auto start = reinterpret_cast<std::uintptr_t>(bytes_.get()) + emulation::kGuard;
        memory_ = bytes_.get() + emulation::kGuard + (kAlignment - start % kAlignment);
        emulation::poison(bytes_.get(), view.bytes + kExtra);
        if (!view.output)
            std::memcpy(memory_, view.memory, view.bytes);
    }
    unsigned char *memory() const { return memory_; }
    void copy_back() const
    {
        if (view_.output)
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
    for (int number = 0; number < operand_count; ++number) {
        const OperandView &view = views[number];
        copies.emplace_back(view);
        addresses[number] = copies.back().memory();
        operands.push_back({copies.back().memory(), view.bytes, view.output != 0, {}});
        if (view.output)
            operands.back().cells.resize((view.bytes + 1) / 2);
    }
    kernel = entry;
    count = operand_count;
    shared_bytes = shape->shared_bytes;
    regions.assign(shape->regions, shape->regions + shape->region_count);
    counting = shape->count_wavefronts != 0;
    found = 0;
    abandoned = false;
    emulation::statistics = {};
    blockDim = {static_cast<unsigned>(shape->threads), 1, 1};
    gridDim = {static_cast<unsigned>(shape->grid[0]), static_cast<unsigned>(shape->grid[1]), static_cast<unsigned>(shape->grid[2])};
    threadIdx = {};
    block = 0;
    for (blockIdx.z = 0; blockIdx.z < gridDim.z && !abandoned; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y && !abandoned; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x && !abandoned; ++blockIdx.x, ++block) {
                poison(shared_memory(), shared_bytes);
                run_block(shape->threads, shape->seed, call_kernel);
                forget_copies();
                end_mbarriers();
                forget_products();
                emulation::statistics.wavefronts += take_wavefronts();
            }
    release_stacks();
    if (!abandoned)
        check_outputs();
    for (const Guarded &copy : copies)
        copy.copy_back();
    std::memcpy(findings, emulation::findings, found * sizeof *findings);
    *statistics = emulation::statistics;
    operands.clear();
    return found;
}
