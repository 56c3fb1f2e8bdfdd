// Launches: blocks one after another, or the blocks of a cluster in turns, each with its own shared memory.
#pragma once

#include "tma.h"
#include "fibers.h"

namespace tilewright_host {

// ---- Shared memory ---------------------------------------------------------------------------------------------

// `__shared__` names one place, which holds the variables of the block that runs. The variables of the cluster's other
// blocks are kept aside meanwhile. Memory named by `extern __shared__` lies apart for each block.
struct Memory {
    char *dynamic, *aside;
};

static Memory shared[MAX_CLUSTER];
static char* dynamic_shared;  // of the block that runs
static size_t dynamic_bytes;
extern "C" __attribute__((weak, visibility("hidden"))) char __start_tilewright_shared[], __stop_tilewright_shared[];

static size_t static_bytes()
{
    return __start_tilewright_shared ? __stop_tilewright_shared - __start_tilewright_shared : 0;
}

// The next functions also go over the gaps between variables, where a sanitizer would report memcpy and memset. They
// are optimized even where the kernel is not, as every block starts and ends with them.
#ifndef __clang__
#pragma GCC push_options
#pragma GCC optimize("O2")
#endif

__attribute__((no_sanitize("address", "undefined"))) static void copy(char* to, const char* from, size_t size)
{
#ifdef TILEWRIGHT_ASAN
    typedef uint64_t __attribute__((aligned(1), may_alias)) Word;
    for (; size >= 8; size -= 8, to += 8, from += 8) *(volatile Word*)to = *(const volatile Word*)from;
    for (; size; --size) *(volatile char*)to++ = *(const volatile char*)from++;
#else
    memcpy(to, from, size);
#endif
}

// Shared memory is NaN when a block starts and when it has ended: on a GPU it holds what another block left there.
__attribute__((no_sanitize("address", "undefined"))) static void poison(char* from, size_t size)
{
#ifdef TILEWRIGHT_ASAN
    typedef uint64_t __attribute__((aligned(1), may_alias)) Word;
    for (; size >= 8; size -= 8, from += 8) *(volatile Word*)from = ~uint64_t(0);
    for (; size; --size) *(volatile char*)from++ = char(0xFF);
#else
    memset(from, 0xFF, size);
#endif
}

#ifndef __clang__
#pragma GCC pop_options
#endif

static void poison_block()
{
    poison(__start_tilewright_shared, static_bytes());
    poison(dynamic_shared, dynamic_bytes);
}

// The place in the shared memory of block `rank` of the cluster that corresponds to `place` in the running block.
template <class V> const V* peer(const V* place, unsigned rank)
{
    const char* from = reinterpret_cast<const char*>(place);
    if (rank >= cluster) abort();
    if (&blocks[rank] == block) return place;
    if (dynamic_shared <= from && from < dynamic_shared + dynamic_bytes) {
        return reinterpret_cast<const V*>(shared[rank].dynamic + (from - dynamic_shared));
    }
    return reinterpret_cast<const V*>(shared[rank].aside + (from - __start_tilewright_shared));
}

// The address of a place in shared memory, as instructions take it: 18 bits. In static memory it is the lower bits of
// the place's own address. These suffice to find the place again near the one whose address was taken last: a kernel
// takes addresses in one array alone, which holds less than 64 KiB.
constexpr size_t STATIC_WINDOW = 128 << 10;
static const char* last_place;

inline size_t shared_address(const void* place)
{
    last_place = static_cast<const char*>(place);
    if (dynamic_shared <= last_place && last_place < dynamic_shared + dynamic_bytes) return last_place - dynamic_shared;
    return reinterpret_cast<size_t>(place) % STATIC_WINDOW;
}

// The place at an address.
inline const char* shared_place(size_t address)
{
    if (dynamic_shared <= last_place && last_place < dynamic_shared + dynamic_bytes) return dynamic_shared + address;
    const size_t further = (address - reinterpret_cast<size_t>(last_place)) % STATIC_WINDOW;
    return last_place + further - (further < STATIC_WINDOW / 2 ? 0 : STATIC_WINDOW);
}

// ---- Blocks ----------------------------------------------------------------------------------------------------

struct Launch {
    uint3 grid, block;
    uint64_t dynamic_bytes;
    char* memory;     // for its threads, as fibers.h says
    uint64_t number;  // that no other launch in that memory has had, and not 0
};

static const char* why()
{
    static char text[256], what[176];
    const Block& at = *block;
    unsigned named = 0;
    for (unsigned waiting : at.named_arrived) named += waiting;
    const unsigned elsewhere = threads - at.returned - at.arrived - named;
    const char* where = cluster > 1 ? "a warp collective or for the cluster" : "a warp collective or for copies";
    char by_number[40] = "";
    if (named) snprintf(by_number, sizeof by_number, "%u wait at barriers by number, ", named);
    switch (failure) {
    case NO: return nullptr;
    case STUCK:
        snprintf(what, sizeof what, "of %u threads %u wait at line %d, %s%u have returned, %u wait in %s",
                 threads, at.arrived, at.arrived ? at.arrived_line : 0, by_number, at.returned, elsewhere, where);
        break;
    case TWO_LINES:
        snprintf(what, sizeof what, "threads wait at lines %d and %u", at.arrived_line, failed_at);
        break;
    case NO_LANE: snprintf(what, sizeof what, "a warp collective reads lane %u, which takes no part", failed_at); break;
    }
    snprintf(text, sizeof text, "divergent barrier in block (%u, %u, %u): %s", at.index.x, at.index.y, at.index.z, what);
    return text;
}

// Makes `next` the block that runs.
static void enter(Block* next)
{
    if (next != block) {
        copy(shared[block - blocks].aside, __start_tilewright_shared, static_bytes());
        copy(__start_tilewright_shared, shared[next - blocks].aside, static_bytes());
    }
    block = next;
    blockIdx = next->index;
    dynamic_shared = shared[next - blocks].dynamic;
}

// Runs the cluster that begins with block (x, y, z): each block in turn, until it has to wait for the others.
static void run_cluster(unsigned x, unsigned y, unsigned z)
{
    const bool backwards = x / cluster % 2;  // a race that one order hides the other may show
    unsigned fibers_used = 0, waiting = 0;   // blocks in a row that could not go on
    cluster_arrived = 0;
    for (unsigned turn = 0; waiting < cluster; ++turn) {
        const unsigned place = turn % cluster, rank = backwards ? cluster - 1 - place : place;
        enter(&blocks[rank]);
        unsigned next = NONE;
        if (turn < cluster) {
            block->index = blockIdx = {x + rank, y, z};
            block->first = fibers_used;
            block->used = block->started = block->returned = block->left = block->found = 0;
            memset(block->lanes_returned, 0, sizeof block->lanes_returned);
            poison_block();
            forget_boxes();
            begin();
            next = current;
        } else if (block->returned < threads) {
            next = ready(block->first);
        }
        if (next == NONE) {
            ++waiting;
            continue;
        }
        waiting = 0;
        current = next;
        change(caller, fibers[current].context);
        if (failure) return;
        if (turn < cluster) fibers_used += block->used;
        if (block->returned == threads && cluster > 1) poison_block();
    }
    for (unsigned rank = 0; rank < cluster; ++rank) {
        if (blocks[rank].returned == threads) continue;
        block = &blocks[rank];
        failure = STUCK;
        return;
    }
}

// Allocates shared memory for the blocks of a cluster. Returns null, or the reason of a failure.
static const char* allocate()
{
    for (unsigned rank = 0; rank < cluster; ++rank) {
        void *dynamic = nullptr, *aside = nullptr;
        if (dynamic_bytes && posix_memalign(&dynamic, 1024, dynamic_bytes)) return "no memory for dynamic shared memory";
        shared[rank].dynamic = static_cast<char*>(dynamic);
        if (cluster > 1 && posix_memalign(&aside, 1024, static_bytes() + 1)) return "no memory for a cluster";
        shared[rank].aside = static_cast<char*>(aside);
    }
    return nullptr;
}

static void release()
{
    for (Memory& each : shared) {
        const Memory old = each;
        each = {};  // first: a process that is forked in between must not free it again
        free(old.dynamic);
        free(old.aside);
    }
}

// Runs a launch. It trusts nothing that the launch before it left: in a forked process that one may never have ended.
static const char* run(const Launch& launch, unsigned blocks_together, void (*body)(void**), void** arguments)
{
    release();
    const uint3 grid = gridDim = launch.grid;
    if (grid.x % blocks_together) return "the grid is not made of whole clusters";
    blockDim = launch.block;
    threads = launch.block.x * launch.block.y * launch.block.z;
    cluster = blocks_together;
    dynamic_bytes = launch.dynamic_bytes;
    call = body;
    call_arguments = arguments;
    memory = launch.memory;
    number = launch.number;
    made = 0;
    failure = NO;
    block = blocks;
    for (unsigned rank = 0; rank < cluster; ++rank) {
        blocks[rank].arrived = 0;
        memset(blocks[rank].named_arrived, 0, sizeof blocks[rank].named_arrived);
        memset(blocks[rank].lanes_arrived, 0, sizeof blocks[rank].lanes_arrived);
    }
    const char* missing = allocate();
    for (unsigned z = 0; z < grid.z && !failure && !missing; ++z)
        for (unsigned y = 0; y < grid.y && !failure; ++y)
            for (unsigned x = 0; x < grid.x && !failure; x += cluster) run_cluster(x, y, z);
    release();
    unmark_stacks();
    return missing ? missing : why();
}

}  // namespace tilewright_host
