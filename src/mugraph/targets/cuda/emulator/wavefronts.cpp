#include "wavefronts.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "block.h"
#include "fibers.h"

namespace emulation {

bool counting;

namespace {

constexpr std::int64_t kBanks = 32, kWord = 4;

struct Access {
    std::int64_t offset;
    std::uint32_t bytes;
};
/* Lanes of a warp that reach an instruction for the same time access memory together, in whatever order they take turns. */
using Together = std::tuple<const void *, int, int>;
std::map<Together, std::map<int, Access>> accesses;
std::unordered_map<const void *, int> times[kMaxThreads];

/* Each wavefront gives every bank one word; lanes that want more than 4 bytes go in groups that want 128 together. */
std::int64_t wavefronts(const std::vector<Access> &lanes)
{
    const std::size_t group = std::clamp<std::size_t>(kBanks * kWord / lanes[0].bytes, 1, kLanes);
    std::int64_t total = 0;
    for (std::size_t first = 0; first < lanes.size(); first += group) {
        std::set<std::int64_t> words;
        for (std::size_t lane = first; lane < std::min(first + group, lanes.size()); ++lane)
            for (std::int64_t byte = 0; byte < lanes[lane].bytes; byte += kWord)
                words.insert((lanes[lane].offset + byte) / kWord);
        std::int64_t taken[kBanks] = {}, most = 0;
        for (const std::int64_t word : words)
            most = std::max(most, ++taken[word % kBanks]);
        total += most;
    }
    return total;
}

} // namespace

void count_access(std::int64_t offset, std::uint32_t bytes, const void *site)
{
    accesses[{site, thread / kLanes, times[thread][site]++}][thread % kLanes] = {offset, bytes};
}

std::int64_t take_wavefronts()
{
    std::int64_t total = 0;
    for (const auto &[_, of_lanes] : accesses) {
        std::vector<Access> lanes;
        for (const auto &[_, access] : of_lanes)
            lanes.push_back(access);
        total += wavefronts(lanes);
    }
    accesses.clear();
    for (auto &of_thread : times)
        of_thread.clear();
    return total;
}

} // namespace emulation
