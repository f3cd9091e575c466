#include "block.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "fibers.h"
#include "findings.h"
#include "wgmma.h"

struct Coordinates { unsigned x, y, z; };
Coordinates threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

std::uint32_t epoch, first_epoch;
int thread, block;

namespace {

enum class State : unsigned char { ready, at_warp, at_barrier, at_memory, finished };

/* Where threads bring operands for a unit; the last one finds all there. */
struct Meeting {
    int arrived;
    Unit unit;
    void *operands[kGroup];
};
struct Warp {
    Meeting meeting;
    std::uint32_t epoch;
};

int threads, running, at_barrier;
State states[kMaxThreads];
Warp warps[kMaxThreads / kLanes];
Meeting groups[kMaxThreads / kGroup];
/* Threads in the order they take turns, and the place of each in it. */
int order[kMaxThreads], place[kMaxThreads];
void (*kernel)();

void resume(int next)
{
    const int from = thread;
    if (next == from)
        return;
    thread = next;
    if (next != kMain)
        threadIdx.x = next;
    switch_fiber(from, next);
}

/* Let the next thread that can run continue; when there is none, the main fiber finds out why. */
void yield()
{
    for (int turn = 1; turn <= threads; ++turn) {
        const int next = order[(place[thread] + turn) % threads];
        if (states[next] == State::ready)
            return resume(next);
    }
    resume(kMain);
}

void run_thread()
{
    kernel();
    states[thread] = State::finished;
    --running;
    yield();
}

/* Warps take turns in a random order, and in half of the orders lanes run backwards: what depends on it is a race. */
void choose_order(unsigned seed)
{
    std::iota(order, order + threads, 0);
    if (seed != 0) {
        std::mt19937 random(seed);
        int warp_order[kMaxThreads / kLanes];
        std::iota(warp_order, warp_order + threads / kLanes, 0);
        std::shuffle(warp_order, warp_order + threads / kLanes, random);
        const int flip = random() % 2 ? kLanes - 1 : 0;
        for (int turn = 0; turn < threads; ++turn)
            order[turn] = warp_order[turn / kLanes] * kLanes + (turn % kLanes ^ flip);
    }
    for (int turn = 0; turn < threads; ++turn)
        place[order[turn]] = turn;
}

void report_stuck()
{
    for (const State waiting : {State::at_warp, State::at_memory, State::at_barrier})
        for (int stuck = 0; stuck < threads; ++stuck)
            if (states[stuck] == waiting) {
                thread = stuck;
                abandoned = true;
                return report(Kind::divergence, nullptr, 0, kNowhere, -1, nullptr);
            }
}

void open_barrier()
{
    at_barrier = 0;
    ++epoch;
    share_done(threads);
    for (int waiting = 0; waiting < threads; ++waiting)
        if (states[waiting] == State::at_barrier)
            states[waiting] = State::ready;
    for (Warp &warp : warps)
        warp.epoch = 0;
}

/* Join `size` neighbouring threads. */
void meet(Meeting &meeting, int size, Unit unit, void *operands)
{
    if (meeting.arrived > 0 && meeting.unit != unit) {
        report(Kind::divergence, nullptr, 0, kNowhere, -1, nullptr);
        abandon_block();
    }
    meeting.unit = unit;
    meeting.operands[thread % size] = operands;
    if (++meeting.arrived < size) {
        states[thread] = State::at_warp;
        return yield();
    }
    meeting.arrived = 0;
    unit(meeting.operands);
    std::fill_n(states + thread / size * size, size, State::ready);
}

void open_warp_barrier(void *const *) { ++warps[thread / kLanes].epoch; }

} // namespace

std::uint32_t warp_epoch(int of_thread) { return warps[of_thread / kLanes].epoch; }

void run_block(int count, unsigned seed, void (*entry)())
{
    threads = running = count;
    at_barrier = 0;
    kernel = entry;
    first_epoch = ++epoch;
    choose_order(seed);
    for (Warp &warp : warps)
        warp = {};
    for (Meeting &group : groups)
        group = {};
    for (int each = 0; each < count; ++each) {
        states[each] = State::ready;
        prepare_fiber(each, run_thread);
    }
    thread = kMain;
    resume(order[0]);
    if (running > 0 && !abandoned)
        report_stuck();
}

void gather(Unit unit, void *operands) { meet(warps[thread / kLanes].meeting, kLanes, unit, operands); }

void gather_group(Unit unit, void *operands) { meet(groups[thread / kGroup], kGroup, unit, operands); }

void wait_for_progress()
{
    states[thread] = State::at_memory;
    yield();
}

void announce_progress() { std::replace(states, states + threads, State::at_memory, State::ready); }

void abandon_block()
{
    abandoned = true;
    resume(kMain);
    __builtin_unreachable();
}

extern "C" void emulated_syncthreads()
{
    if (running < threads)
        report(Kind::divergence, nullptr, 0, kNowhere, -1, __builtin_return_address(0));
    states[thread] = State::at_barrier;
    if (++at_barrier == running)
        open_barrier();
    else
        yield();
}

extern "C" void emulated_syncwarp() { gather(open_warp_barrier, nullptr); }

} // namespace emulation
