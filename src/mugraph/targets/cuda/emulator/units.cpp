/* The device functions that need more than the calling thread's registers: copies, shuffles, matrices. */

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>

#include "block.h"
#include "fibers.h"
#include "findings.h"
#include "memory.h"
#include "units.h"

namespace emulation {

Statistics statistics;

namespace {

constexpr unsigned kBanks = 32, kBankBytes = 4, kRowBytes = 16;

struct Copy {
    unsigned char *to;
    std::uint32_t bytes, group;
    unsigned char data[16];
};
struct Queue {
    std::uint32_t groups; /* closed so far */
    std::deque<Copy> copies;
};
Queue queues[kMaxThreads];

struct Shuffle {
    float value, result;
    int mask;
};
void shuffle(void *const *lanes)
{
    for (int lane = 0; lane < kLanes; ++lane) {
        auto *const mine = static_cast<Shuffle *>(lanes[lane]);
        mine->result = static_cast<const Shuffle *>(lanes[(lane ^ mine->mask) & (kLanes - 1)])->value;
    }
}

struct Load {
    unsigned *parts;
    const void *row, *site;
    int matrices;
    bool transposed;
};

/* Rows that start in the same bank are read one after the other; lanes that want the same row share it. */
void count_conflicts(void *const *lanes, int matrix)
{
    constexpr unsigned kStarts = kBanks * kBankBytes / kRowBytes;
    const void *rows[8];
    unsigned taken[kStarts] = {}, most = 0;
    for (int row = 0; row < 8; ++row) {
        rows[row] = static_cast<const Load *>(lanes[8 * matrix + row])->row;
        if (std::find(rows, rows + row, rows[row]) == rows + row)
            most = std::max(most, ++taken[reinterpret_cast<std::uintptr_t>(rows[row]) / kRowBytes % kStarts]);
    }
    ++statistics.matrices;
    statistics.conflicts += most - 1;
}

void load_matrices(void *const *lanes)
{
    const Load &common = *static_cast<const Load *>(lanes[0]);
    const int self = thread;
    for (int matrix = 0; matrix < common.matrices; ++matrix) {
        std::uint16_t elements[8][8];
        count_conflicts(lanes, matrix);
        for (int row = 0; row < 8; ++row) {
            const int lane = 8 * matrix + row;
            const Load &load = *static_cast<const Load *>(lanes[lane]);
            thread = self / kLanes * kLanes + lane;
            read(load.row, kRowBytes, kRowBytes, load.site);
            std::memcpy(elements[row], load.row, kRowBytes);
        }
        thread = self;
        for (int lane = 0; lane < kLanes; ++lane) {
            const int row = lane / 4, column = lane % 4 * 2;
            const std::uint32_t low = common.transposed ? elements[column][row] : elements[row][column];
            const std::uint32_t high = common.transposed ? elements[column + 1][row] : elements[row][column + 1];
            static_cast<Load *>(lanes[lane])->parts[matrix] = low | high << 16;
        }
    }
}

struct Product {
    float *sum;
    const unsigned *left, *right;
};

template <bool is_bf16> float element(unsigned word, int half)
{
    const auto bits = static_cast<std::uint16_t>(word >> 16 * half);
    if constexpr (is_bf16) {
        const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &wide, sizeof value);
        return value;
    }
    return from_fp16(bits);
}

/* A number in TF32; NaN where bits are set that TF32 does not have: what a matrix unit makes of them is not specified. */
float tf32(unsigned word)
{
    float value;
    std::memcpy(&value, &word, sizeof value);
    return word & 0x1fff ? NAN : value;
}

/* Products of numbers of 11 bits are exact in fp32; sums are rounded once for each term. */
template <int DEPTH> void add_product(void *const *lanes, const float (&left)[16][DEPTH], const float (&right)[DEPTH][8])
{
    float sum[16][8];
    for (int lane = 0; lane < kLanes; ++lane)
        for (int part = 0; part < 4; ++part)
            sum[lane / 4 + part / 2 * 8][lane % 4 * 2 + part % 2] = static_cast<const Product *>(lanes[lane])->sum[part];
    for (int row = 0; row < 16; ++row)
        for (int inner = 0; inner < DEPTH; ++inner)
            for (int column = 0; column < 8; ++column)
                sum[row][column] += left[row][inner] * right[inner][column];
    for (int lane = 0; lane < kLanes; ++lane)
        for (int part = 0; part < 4; ++part)
            static_cast<const Product *>(lanes[lane])->sum[part] = sum[lane / 4 + part / 2 * 8][lane % 4 * 2 + part % 2];
}

template <bool is_bf16> void multiply(void *const *lanes)
{
    float left[16][16], right[16][8];
    for (int lane = 0; lane < kLanes; ++lane) {
        const Product &part = *static_cast<const Product *>(lanes[lane]);
        const int group = lane / 4, pair = lane % 4 * 2;
        for (int half = 0; half < 2; ++half) {
            for (int word = 0; word < 4; ++word)
                left[group + word % 2 * 8][pair + word / 2 * 8 + half] = element<is_bf16>(part.left[word], half);
            for (int word = 0; word < 2; ++word)
                right[pair + word * 8 + half][group] = element<is_bf16>(part.right[word], half);
        }
    }
    add_product(lanes, left, right);
}

void multiply_tf32(void *const *lanes)
{
    float left[16][8], right[8][8];
    for (int lane = 0; lane < kLanes; ++lane) {
        const Product &part = *static_cast<const Product *>(lanes[lane]);
        const int group = lane / 4, inner = lane % 4;
        for (int word = 0; word < 4; ++word)
            left[group + word % 2 * 8][inner + word / 2 * 4] = tf32(part.left[word]);
        for (int word = 0; word < 2; ++word)
            right[inner + word * 4][group] = tf32(part.right[word]);
    }
    add_product(lanes, left, right);
}

} // namespace

void forget_copies()
{
    for (Queue &queue : queues) {
        queue.groups = 0;
        queue.copies.clear();
    }
}

float from_fp16(std::uint16_t bits)
{
    const std::uint32_t sign = bits >> 15, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 0) {
        const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    const std::uint32_t wide = sign << 31 | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

std::uint16_t to_fp16(float x)
{
    const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    if (std::isnan(x))
        return 0x7fff;
    const float magnitude = std::fabs(x);
    if (magnitude >= 65520.0f)
        return sign | 0x7c00;
    /* The spacing of fp16 numbers in this binade is 2^unit; below the smallest normal number it stays the same. */
    const int unit = magnitude < 0x1p-14f ? -24 : std::ilogb(magnitude) - 10;
    const auto steps = static_cast<std::uint16_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
    return sign | static_cast<std::uint16_t>(steps + (unit + 24) * 1024);
}

} // namespace emulation

using namespace emulation;

extern "C" {

unsigned char *emulated_shared_memory() { return shared_memory(); }

void emulated_load(void *to, const void *address, unsigned bytes)
{
    read(address, bytes, bytes, __builtin_return_address(0));
    std::memcpy(to, address, bytes);
}

void emulated_store(void *address, const void *from, unsigned bytes)
{
    write(address, bytes, bytes, __builtin_return_address(0));
    std::memcpy(address, from, bytes);
}

void emulated_cp_async(void *shared, const void *from, unsigned bytes, bool present)
{
    const void *const site = __builtin_return_address(0);
    Copy copy{static_cast<unsigned char *>(shared), bytes, queues[thread].groups, {}};
    if (present) {
        read(from, bytes, bytes, site);
        std::memcpy(copy.data, from, bytes);
    }
    write(shared, bytes, bytes, site, true);
    poison(shared, bytes);
    queues[thread].copies.push_back(copy);
}

void emulated_cp_async_commit() { ++queues[thread].groups; }

void emulated_cp_async_wait(unsigned pending)
{
    Queue &queue = queues[thread];
    while (!queue.copies.empty() && queue.copies.front().group + pending < queue.groups) {
        const Copy &copy = queue.copies.front();
        std::memcpy(copy.to, copy.data, copy.bytes);
        land(copy.to, copy.bytes);
        queue.copies.pop_front();
    }
}

float emulated_shfl_xor(float value, int mask)
{
    Shuffle operands{value, 0, mask};
    gather(shuffle, &operands);
    return operands.result;
}

void emulated_ldmatrix(unsigned *parts, int matrices, const void *row, bool transposed)
{
    Load operands{parts, row, __builtin_return_address(0), matrices, transposed};
    gather(load_matrices, &operands);
}

void emulated_mma_m16n8k16(float *sum, const unsigned *left, const unsigned *right, bool is_bf16)
{
    Product operands{sum, left, right};
    gather(is_bf16 ? multiply<true> : multiply<false>, &operands);
}

void emulated_mma_m16n8k8(float *sum, const unsigned *left, const unsigned *right)
{
    Product operands{sum, left, right};
    gather(multiply_tf32, &operands);
}

float emulated_from_fp16(unsigned short bits) { return from_fp16(bits); }
unsigned short emulated_to_fp16(float x) { return to_fp16(x); }
}
