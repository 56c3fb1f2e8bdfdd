// Barriers in shared memory that count bytes, and TMA copies of boxes that arrive at them (mbarrier, cp.async.bulk.tensor).
//
// A copy is under way until no thread can go on without it. The target holds NaN meanwhile, so that a kernel
// that reads too early, or fills a stage that is still read, computes NaN.
#pragma once

#include "fibers.h"

namespace tilewright_host {

// A tensor map of 128 bytes, as host.py packs it: rows of `cols` elements, `pitch` bytes apart,
// of which one copy brings `box_rows` x `box_cols`.
struct TensorMap {
    const char* first;
    uint64_t pitch;
    uint32_t rows, cols, box_rows, box_cols, element_bytes, swizzled;
    char rest[88];
};
static_assert(sizeof(TensorMap) == 128, "as large as CUDA's");

struct Mbarrier {
    unsigned phase;           // how often it has opened
    uint8_t count, pending;   // arrivals that complete a phase; those to come
    uint16_t granules;        // of 16 bytes each, on their way
};
static_assert(sizeof(Mbarrier) == 8, "as large as CUDA's");

struct BoxCopy {
    char* to;
    TensorMap map;  // the kernel's own may be gone by then
    int col, row;
    Mbarrier* barrier;
};

constexpr unsigned MAX_BOXES = 256;  // that one block has in flight
static BoxCopy box_copies[MAX_CLUSTER][MAX_BOXES];
static unsigned box_count[MAX_CLUSTER];

inline void forget_boxes() { box_count[block - blocks] = 0; }

inline void open_if_complete(Mbarrier& barrier)
{
    if (barrier.pending || barrier.granules) return;
    barrier.pending = barrier.count;
    ++barrier.phase;
}

inline void init_barrier(void* at, unsigned count)
{
    if (count < 1 || count > 255) abort();
    *static_cast<Mbarrier*>(at) = {0, uint8_t(count), uint8_t(count), 0};
}

// Counts one arrival, and lets the phase wait for more bytes.
inline void arrive_barrier(void* at, unsigned bytes = 0)
{
    Mbarrier& barrier = *static_cast<Mbarrier*>(at);
    if (!barrier.pending || bytes % 16 || barrier.granules + bytes / 16 > 0xFFFF) abort();
    barrier.granules += bytes / 16;
    --barrier.pending;
    open_if_complete(barrier);
}

// The place of a byte in a target that is swizzled in spans of 128 bytes: 16-byte piece i of row r is at i ^ (r % 8).
inline unsigned swizzle(unsigned at) { return at ^ (at / 128 % 8 * 16); }

inline void deliver(const BoxCopy& copy)
{
    const TensorMap& map = copy.map;
    const unsigned size = map.element_bytes, row_bytes = map.box_cols * size;
    for (unsigned r = 0; r < map.box_rows; ++r)
        for (unsigned c = 0; c < map.box_cols; ++c) {
            const int64_t row = int64_t(copy.row) + r, col = int64_t(copy.col) + c;
            const bool inside = 0 <= row && row < map.rows && 0 <= col && col < map.cols;
            const unsigned at = r * row_bytes + c * size;
            char* to = copy.to + (map.swizzled ? swizzle(at) : at);
            if (inside) memcpy(to, map.first + row * map.pitch + col * size, size);
            else memset(to, 0, size);
        }
    copy.barrier->granules -= map.box_rows * row_bytes / 16;
    open_if_complete(*copy.barrier);
}

// Starts to copy the box whose first element is (row, col); what lies outside the matrix becomes 0.
inline void copy_box(void* to, const void* map_at, int col, int row, void* barrier)
{
    const TensorMap& map = *static_cast<const TensorMap*>(map_at);
    const unsigned bytes = map.box_rows * map.box_cols * map.element_bytes;
    const size_t target = reinterpret_cast<size_t>(to);
    if (!bytes || bytes % 16 || target % (map.swizzled ? 1024 : 128)) abort();
    if (map.swizzled && map.box_cols * map.element_bytes != 128) abort();
    unsigned& count = box_count[block - blocks];
    if (count == MAX_BOXES) abort();
    memset(to, 0xFF, bytes);
    box_copies[block - blocks][count++] =
        {static_cast<char*>(to), map, col, row, static_cast<Mbarrier*>(barrier)};
}

// Starts to copy a run of memory.
inline void copy_bulk(void* to, const void* from, unsigned bytes, void* barrier)
{
    const size_t target = reinterpret_cast<size_t>(to), source = reinterpret_cast<size_t>(from);
    if (!bytes || bytes % 16 || target % 16 || source % 16) abort();
    unsigned& count = box_count[block - blocks];
    if (count == MAX_BOXES) abort();
    memset(to, 0xFF, bytes);
    const TensorMap run = {static_cast<const char*>(from), bytes, 1, 1, 1, 1, bytes, 0, {}};  // of one large element
    box_copies[block - blocks][count++] = {static_cast<char*>(to), run, 0, 0, static_cast<Mbarrier*>(barrier)};
}

// Lets all copies of the block arrive; false where none is under way.
inline bool deliver_all()
{
    unsigned& count = box_count[block - blocks];
    for (unsigned i = 0; i < count; ++i) deliver(box_copies[block - blocks][i]);
    const bool some = count != 0;
    count = 0;
    return some;
}

// Waits until the phase of this parity, 0 for the first, is complete. Copies arrive when no thread can go on without.
inline void wait_barrier(void* at, unsigned parity)
{
    last_resort = deliver_all;
    Mbarrier& barrier = *static_cast<Mbarrier*>(at);
    while (barrier.phase % 2 == parity) wait(barrier.phase);
}

}  // namespace tilewright_host
