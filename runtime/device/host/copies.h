// Asynchronous copies, as cp.async: nothing arrives before its thread has waited for it.
//
// Each thread has a queue. The target holds NaN until the copy arrives, so that a kernel that reads too early, or that
// forgets to wait, computes NaN; a copy overwrites its target at the wait alone. Addresses must be multiples of the
// bytes copied.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "fibers.h"

namespace tilewright_host {

struct Copy {
    char* to;
    const char* from;  // null for zeros
    unsigned bytes, group;
};

constexpr unsigned MAX_COPIES = 512;  // that one thread has in flight

struct Copies {
    unsigned first, count;  // the queue is a ring
    unsigned group;         // number of the group that is being filled
    Copy queue[MAX_COPIES];

    void clear() { first = count = group = 0; }
};

// The copies of the thread that runs.
inline Copies& own_copies() { return own_queue<Copies, 0>(); }

inline void copy_async(void* to, const void* from, unsigned bytes)
{
    Copies& own = own_copies();
    const bool aligned = !((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes);
    if (own.count == MAX_COPIES || !aligned) abort();
    memset(to, 0xFF, bytes);
    own.queue[(own.first + own.count++) % MAX_COPIES] =
        {static_cast<char*>(to), static_cast<const char*>(from), bytes, own.group};
}

inline void commit_copies() { ++own_copies().group; }

// Waits until all groups have arrived, but for the `pending` ones committed last.
inline void wait_copies(unsigned pending)
{
    Copies& own = own_copies();
    while (own.count && own.queue[own.first].group + pending < own.group) {
        const Copy& copy = own.queue[own.first];
        if (copy.from) memcpy(copy.to, copy.from, copy.bytes);
        else memset(copy.to, 0, copy.bytes);
        own.first = (own.first + 1) % MAX_COPIES;
        --own.count;
    }
}

}  // namespace tilewright_host
