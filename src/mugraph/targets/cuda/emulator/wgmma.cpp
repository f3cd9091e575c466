#include "wgmma.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "block.h"
#include "fibers.h"
#include "findings.h"
#include "memory.h"
#include "units.h"
#include "wavefronts.h"

namespace emulation {
namespace {

constexpr int kRows = 64, kDepth = 16, kLeftWords = 4;
constexpr std::uint32_t kChunk = 16, kLineBytes = 128;

using Pointers = std::array<void *, kGroup>;

/* What each thread brings: registers of its own, and what is the same for all. */
struct Operands {
    float *sum;
    const unsigned *left; /* null where `left_matrix` says where the left factor lies */
    std::uint64_t left_matrix, matrix;
    int columns;
    bool columns_first, is_bf16;
    const void *site;
};

struct Product {
    std::uint32_t number, batch;
    Operands common;
    Pointers sums, left;
};

struct Group {
    bool fenced;
    std::uint32_t batches; /* committed so far */
    std::deque<Product> products;
    std::map<const void *, std::vector<float>> held; /* what registers hold that products will add to */
};
Group groups[kMaxThreads / kGroup];
std::uint32_t last_product, first_product; /* of all blocks, and of this one */
std::map<std::uint32_t, int> group_of; /* of each product of the block */
Done done[kMaxThreads]; /* what each thread knows */

void learn(Done &known, const Done &more)
{
    for (std::size_t warp = 0; warp < known.size(); ++warp)
        known[warp] = std::max(known[warp], more[warp]);
}

/* Where element (k, n) of a right factor lies, or (k, m) of a left one, as the bits of its descriptor say. */
const unsigned char *element_at(std::uint64_t bits, bool columns_first, int k, int n)
{
    const auto field = [&](int first) { return static_cast<std::uint32_t>(bits >> first & 0x3fff) << 4; };
    const std::uint32_t start = field(0), leading = field(16), stride = field(32);
    const std::uint32_t swizzle = 256u >> (bits >> 62), chunks = swizzle / kChunk;
    std::uint32_t address = start;
    if (columns_first) {
        const int wide = static_cast<int>(swizzle / 2);
        address += n / wide * leading + n % wide * 2 + k / 8 * stride + k % 8 * swizzle;
    } else {
        address += n / 8 * stride + n % 8 * swizzle + k * 2;
    }
    return shared_memory() + (address ^ (address >> 7 & (chunks - 1)) << 4);
}

template <class Visit> void for_each_chunk(std::uint64_t bits, bool columns_first, int columns, Visit visit)
{
    const int depth = columns_first ? 1 : 8, across = columns_first ? 8 : 1;
    for (int k = 0; k < kDepth; k += depth)
        for (int n = 0; n < columns; n += across)
            visit(element_at(bits, columns_first, k, n));
}

/* Those of the factors that lie in shared memory. */
template <class Visit> void for_each_chunk(const Operands &product, Visit visit)
{
    for_each_chunk(product.matrix, product.columns_first, product.columns, visit);
    if (product.left == nullptr)
        for_each_chunk(product.left_matrix, false, kRows, visit);
}

float widened(unsigned bits, bool is_bf16)
{
    if (!is_bf16)
        return from_fp16(static_cast<std::uint16_t>(bits));
    const std::uint32_t wide = bits << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

float element(std::uint64_t bits, bool columns_first, int k, int n, bool is_bf16)
{
    std::uint16_t read;
    std::memcpy(&read, element_at(bits, columns_first, k, n), sizeof read);
    return widened(read, is_bf16);
}

void read_left(const Product &product, float (&left)[kRows][kDepth])
{
    const Operands &common = product.common;
    if (common.left == nullptr) {
        for (int row = 0; row < kRows; ++row)
            for (int k = 0; k < kDepth; ++k)
                left[row][k] = element(common.left_matrix, false, k, row, common.is_bf16);
        return;
    }
    for (int each = 0; each < kGroup; ++each)
        for (int word = 0; word < kLeftWords; ++word)
            for (int half = 0; half < 2; ++half) {
                const int row = each / kLanes * 16 + each % kLanes / 4 + word % 2 * 8;
                const int k = each % 4 * 2 + word / 2 * 8 + half;
                const unsigned bits = static_cast<const unsigned *>(product.left[each])[word];
                left[row][k] = widened(bits >> 16 * half & 0xffff, common.is_bf16);
            }
}

/* Visit each sum that a product adds to, with its row and column. */
template <class Visit> void for_each_sum(Group &group, const Product &product, Visit visit)
{
    for (int each = 0; each < kGroup; ++each) {
        std::vector<float> &sums = group.held[product.sums[each]];
        for (int number = 0; number < product.common.columns / 2; ++number) {
            const int row = each / kLanes * 16 + each % kLanes / 4 + number % 4 / 2 * 8;
            const int column = number / 4 * 8 + each % 4 * 2 + number % 2;
            visit(sums[number], row, column);
        }
    }
}

/* Products of 16-bit numbers are exact in fp32; sums are rounded once for each of the 16 terms, one after the other. */
void multiply(Group &group, const Product &product)
{
    constexpr int kTogether = 8; /* columns: what there are is a multiple of it */
    const Operands &common = product.common;
    const int columns = common.columns;
    std::vector<float> right(kDepth * columns), total(kRows * columns);
    for (int k = 0; k < kDepth; ++k)
        for (int n = 0; n < columns; ++n)
            right[k * columns + n] = element(common.matrix, common.columns_first, k, n, common.is_bf16);
    float left[kRows][kDepth];
    read_left(product, left);
    for_each_sum(group, product, [&](float sum, int row, int column) { total[row * columns + column] = sum; });
    for (int row = 0; row < kRows; ++row)
        for (int first = 0; first < columns; first += kTogether) {
            float sums[kTogether];
            std::copy_n(&total[row * columns + first], kTogether, sums);
            for (int k = 0; k < kDepth; ++k)
                for (int column = 0; column < kTogether; ++column)
                    sums[column] += left[row][k] * right[k * columns + first + column];
            std::copy_n(sums, kTogether, &total[row * columns + first]);
        }
    for_each_sum(group, product, [&](float &sum, int row, int column) { sum = total[row * columns + column]; });
}

Group &own() { return groups[thread / kGroup]; }

void issue(void *const *threads)
{
    Group &group = own();
    Product product{++last_product, group.batches, *static_cast<const Operands *>(threads[0]), {}, {}};
    group_of[product.number] = thread / kGroup;
    if (!group.fenced)
        report(Kind::registers, nullptr, 0, kNowhere, -1, product.common.site);
    for (int each = 0; each < kGroup; ++each) {
        const auto &operands = *static_cast<const Operands *>(threads[each]);
        if (operands.matrix != product.common.matrix || operands.left_matrix != product.common.left_matrix)
            report(Kind::disagreement, nullptr, 0, kNowhere, -1, operands.site);
        product.sums[each] = operands.sum;
        product.left[each] = const_cast<unsigned *>(operands.left);
        const std::size_t count = product.common.columns / 2;
        if (group.held.try_emplace(operands.sum, operands.sum, operands.sum + count).second)
            poison(operands.sum, count * sizeof(float));
    }
    for_each_chunk(product.common, [&](const void *chunk) { read_by_unit(chunk, kChunk, product.number, product.common.site); });
    statistics.wavefronts += counting ? kDepth * product.common.columns * 2 / kLineBytes : 0;
    group.products.push_back(product);
}

struct Wait {
    std::uint32_t pending;
};

/* Give registers back that no product under way adds to any more. */
void give_back(Group &group)
{
    for (auto each = group.held.begin(); each != group.held.end();) {
        bool wanted = false;
        for (const Product &product : group.products)
            for (const void *sum : product.sums)
                wanted = wanted || sum == each->first;
        if (wanted) {
            ++each;
            continue;
        }
        std::memcpy(const_cast<void *>(each->first), each->second.data(), each->second.size() * sizeof(float));
        each = group.held.erase(each);
    }
}

void finish(void *const *threads)
{
    Group &group = own();
    const std::uint32_t pending = static_cast<const Wait *>(threads[0])->pending;
    while (!group.products.empty() && group.products.front().batch + pending < group.batches) {
        const Product product = group.products.front();
        multiply(group, product);
        group.products.pop_front();
        for (int each = 0; each < kGroup; ++each) {
            const int waiting = thread / kGroup * kGroup + each;
            done[waiting][waiting / kLanes] = product.number;
        }
    }
    give_back(group);
    group.fenced = false;
}

void fence(void *const *) { own().fenced = true; }
void commit(void *const *) { ++own().batches; }

} // namespace

int reader_of(std::uint32_t number) { return group_of.at(number) * kGroup; }

Standing standing_of(std::uint32_t number)
{
    if (number <= first_product)
        return Standing::known;
    const int group = group_of.at(number);
    const std::deque<Product> &products = groups[group].products;
    if (!products.empty() && products.front().number <= number)
        return Standing::pending;
    for (int warp = group * kGroup / kLanes; warp < (group + 1) * kGroup / kLanes; ++warp)
        if (done[thread][warp] < number)
            return Standing::untold;
    return Standing::known;
}

const Done &known_done() { return done[thread]; }

void learn_done(const Done &more) { learn(done[thread], more); }

void share_done(int threads)
{
    if (last_product == first_product)
        return;
    Done all{};
    for (int each = 0; each < threads; ++each)
        learn(all, done[each]);
    std::fill_n(done, threads, all);
}

void forget_products()
{
    for (Group &group : groups)
        group = {};
    if (last_product != first_product)
        std::fill_n(done, kMaxThreads, Done{});
    group_of.clear();
    first_product = last_product;
}

} // namespace emulation

using namespace emulation;

extern "C" {

void emulated_wgmma(
    float *sum, int columns, const unsigned *left, unsigned long long left_matrix, unsigned long long matrix, bool columns_first,
    bool is_bf16)
{
    Operands operands{sum, left, left_matrix, matrix, columns, columns_first, is_bf16, __builtin_return_address(0)};
    gather_group(issue, &operands);
}
void emulated_wgmma_fence() { gather_group(fence, nullptr); }
void emulated_wgmma_commit() { gather_group(commit, nullptr); }
void emulated_wgmma_wait(unsigned pending)
{
    Wait operands{pending};
    gather_group(finish, &operands);
}
}
