// The threads of one block as fibers: one processor thread runs the block, and every barrier is a switch of stacks.
//
// A fiber starts threads one after another and stays with a thread that has to wait; only then is the next fiber
// taken. So a kernel without barriers runs whole blocks on one stack, and contexts live on from block to block. Stacks
// lie in memory that the caller lends for one launch, so that all kernels of a process can have the same.
// launch.h runs block after block, or the blocks of a cluster in turns.
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#define TILEWRIGHT_UCONTEXT 1  // twenty times slower: each switch asks the system for the signal mask
#endif
#ifdef TILEWRIGHT_UCONTEXT
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#define TILEWRIGHT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TILEWRIGHT_ASAN 1
#endif
#endif
#ifdef TILEWRIGHT_ASAN
extern "C" void __asan_unpoison_memory_region(void const volatile*, size_t);
#endif

struct uint3 { unsigned x, y, z; };
static uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace tilewright_host {

// ---- Contexts: the registers of a fiber that does not run ------------------------------------------------------

#if defined(TILEWRIGHT_UCONTEXT)
using Context = ucontext_t;
#elif defined(__x86_64__)
struct Context { void* stack_pointer; };
extern "C" __attribute__((visibility("hidden"))) void tilewright_switch(void** from, void* to);
asm(".pushsection .text\n.globl tilewright_switch\n.hidden tilewright_switch\n.type tilewright_switch, @function\n"
    "tilewright_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n.size tilewright_switch, . - tilewright_switch\n.popsection\n");
constexpr int SAVED_WORDS = 8, ENTRY_WORD = 6;  // six registers, where to return to, an empty return address
#else
struct Context { void* stack_pointer; };
extern "C" __attribute__((visibility("hidden"))) void tilewright_switch(void** from, void* to);
asm(".pushsection .text\n.globl tilewright_switch\n.hidden tilewright_switch\n.type tilewright_switch, %function\n"
    "tilewright_switch:\n"
    "    sub sp, sp, #160\n"
    "    stp x19, x20, [sp]\n         stp x21, x22, [sp, #16]\n   stp x23, x24, [sp, #32]\n"
    "    stp x25, x26, [sp, #48]\n    stp x27, x28, [sp, #64]\n   stp x29, x30, [sp, #80]\n"
    "    stp d8, d9, [sp, #96]\n      stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n"
    "    stp d14, d15, [sp, #144]\n"
    "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
    "    ldp x19, x20, [sp]\n         ldp x21, x22, [sp, #16]\n   ldp x23, x24, [sp, #32]\n"
    "    ldp x25, x26, [sp, #48]\n    ldp x27, x28, [sp, #64]\n   ldp x29, x30, [sp, #80]\n"
    "    ldp d8, d9, [sp, #96]\n      ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n"
    "    ldp d14, d15, [sp, #144]\n"
    "    add sp, sp, #160\n"
    "    ret\n.size tilewright_switch, . - tilewright_switch\n.popsection\n");
constexpr int SAVED_WORDS = 20, ENTRY_WORD = 11;  // x19 to x30, the last for where to return to; d8 to d15
#endif

#ifdef TILEWRIGHT_UCONTEXT
static void make(Context& context, char* stack, size_t size, void (*entry)())
{
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = size;
    makecontext(&context, entry, 0);
}
static void change(Context& from, Context& to) { swapcontext(&from, &to); }
#else
static void make(Context& context, char* stack, size_t size, void (*entry)())
{
    void** saved = reinterpret_cast<void**>(stack + size) - SAVED_WORDS;
    memset(saved, 0, SAVED_WORDS * sizeof(void*));
    saved[ENTRY_WORD] = reinterpret_cast<void*>(entry);
    context.stack_pointer = saved;
}
static void change(Context& from, Context& to) { tilewright_switch(&from.stack_pointer, to.stack_pointer); }
#endif

// ---- The block that runs now -----------------------------------------------------------------------------------

constexpr unsigned WARP = 32, MAX_THREADS = 1024, MAX_CLUSTER = 8, NAMED = 16, NONE = ~0u;
#ifdef TILEWRIGHT_ASAN
constexpr size_t STACK = 512 << 10;  // each variable has its own place there, with gaps between them
#else
constexpr size_t STACK = 128 << 10;
#endif
constexpr size_t QUEUES = 16 << 10;              // for copies and products that a thread has under way
constexpr size_t STRIDE = QUEUES + STACK + 320;  // staggered: a power of two apart, stacks would share cache lines

struct Fiber {
    Context context;
    const unsigned* gate;  // counter that this fiber waits for, null where it has no thread
    unsigned seen;         // value of the counter when it began to wait
    unsigned rank;         // thread's number in its block
    unsigned phase;        // of the cluster's barrier when the thread arrived there
    uint3 thread;
};

struct Block {
    uint3 index;
    unsigned first, used;            // its fibers: number of the first, and how many
    unsigned started, returned;      // threads
    unsigned left;                   // threads of warps that have returned as a whole: no barrier waits for them
    unsigned lanes_returned[MAX_THREADS / WARP];
    unsigned arrived, generation;    // threads at the block's barrier; how often it has opened
    int arrived_line;                // line of the text where these threads wait
    unsigned found;                  // whether any of them voted yes
    unsigned named_arrived[NAMED];   // threads at each barrier by number; number 0 is never used
    unsigned named_opened[NAMED];    // how often each of them has opened
    unsigned lanes_arrived[MAX_THREADS / WARP];
    unsigned turn[MAX_THREADS];          // how often a lane's collectives have opened
    const void* published[MAX_THREADS];  // what each lane offers to its warp
};

static Fiber fibers[MAX_THREADS * MAX_CLUSTER];
static Block blocks[MAX_CLUSTER];            // of the cluster that runs
static Block* block = blocks;                // the one that runs
static Context caller;                       // the launch, outside the blocks
static char* memory;                         // the caller's, for this launch: STRIDE bytes for each thread of a cluster
static uint64_t number;                      // of this launch among all that work in that memory, from 1 on
static unsigned made, current;               // fibers that have a context in this launch; the one that runs
static unsigned threads, cluster;            // threads of a block; blocks of a cluster
static unsigned cluster_arrived, cluster_phase;  // threads at the cluster's barrier; how often it has opened
static void (*call)(void**);                 // runs one thread
static void** call_arguments;
static enum { NO, STUCK, TWO_LINES, NO_LANE } failure;  // why the block cannot go on
static unsigned failed_at;                   // the other line, or the lane

static bool (*last_resort)();                // where no fiber can go on: lets copies under way arrive, if there are any

static void threads_on_this_fiber();

static char* stack_of(unsigned fiber) { return memory + fiber * STRIDE + QUEUES; }

// A queue of the thread that runs, `offset` bytes behind the start of the thread's memory. It is empty at its first use
// in a launch, whatever an earlier launch left there.
template <class Queue, size_t offset> Queue& own_queue()
{
    struct Numbered { uint64_t number; Queue queue; };
    static_assert(offset + sizeof(Numbered) <= QUEUES, "more than the memory has room for");
    const unsigned place = (block - blocks) * threads + fibers[current].rank;
    Numbered& own = *reinterpret_cast<Numbered*>(memory + place * STRIDE + offset);
    if (own.number != number) {
        own.number = number;
        own.queue.clear();
    }
    return own.queue;
}

// Gives up the block, and abandons all objects on the fibers' stacks.
static void give_up(decltype(failure) why, unsigned where = 0)
{
    failure = why;
    failed_at = where;
    change(fibers[current].context, caller);
}

// A fiber of the block that can go on, sought from the one after `self` on; NONE where none can.
static unsigned ready(unsigned self)
{
    const unsigned first = block->first, end = first + block->used;
    for (unsigned next = self;;) {
        next = next + 1 < end ? next + 1 : first;
        if (fibers[next].gate && *fibers[next].gate != fibers[next].seen) return next;
        if (next == self) return NONE;
    }
}

// Takes a fiber for the next thread.
static void begin()
{
    current = block->first + block->used++;
    if (current < made) return;
    make(fibers[current].context, stack_of(current), STACK, threads_on_this_fiber);
    ++made;
}

// Runs another fiber: one that starts the next thread, else the next whose gate has opened, else the launch.
static void leave()
{
    const unsigned self = current;
    if (block->started < threads) {
        begin();
        return change(fibers[self].context, fibers[current].context);
    }
    unsigned next = ready(self);
    if (next == NONE && last_resort && last_resort()) next = ready(self);
    if (next != NONE) {
        current = next;
        return change(fibers[self].context, fibers[next].context);
    }
    if (block->returned < threads && cluster == 1) return give_up(STUCK);
    change(fibers[self].context, caller);
}

// After a launch: removes the sanitizer's marks of frames on the stacks, which the memory's next user would meet.
static void unmark_stacks()
{
#ifdef TILEWRIGHT_ASAN
    for (unsigned fiber = 0; fiber < made; ++fiber) {
#ifdef TILEWRIGHT_UCONTEXT
        char* lowest = stack_of(fiber);
#else
        char* lowest = static_cast<char*>(fibers[fiber].context.stack_pointer);
#endif
        __asan_unpoison_memory_region(lowest, stack_of(fiber) + STACK - lowest);
    }
#endif
}

static void wait(const unsigned& gate)
{
    Fiber& self = fibers[current];
    self.gate = &gate;
    self.seen = gate;
    leave();
    threadIdx = self.thread;
}

// A thread has returned. Once all threads of its warp have, the block's barriers open without them, as on a GPU. While
// others of its warp go on, a barrier still waits for it, as a kernel must not leave out a barrier in some threads.
static void leave_barriers(unsigned rank)
{
    ++block->returned;
    const unsigned warp = rank / WARP, lanes = threads - warp * WARP < WARP ? threads - warp * WARP : WARP;
    if (++block->lanes_returned[warp] < lanes) return;
    block->left += lanes;
    if (!block->arrived || block->arrived + block->left < threads) return;
    block->arrived = 0;
    ++block->generation;
}

static void threads_on_this_fiber()
{
    for (;;) {
        Fiber& self = fibers[current];
        while (block->started < threads) {
            // Odd blocks run their threads last to first: a race that one order hides the other may show.
            const unsigned started = block->started++;
            const unsigned rank = blockIdx.x % 2 ? threads - 1 - started : started;
            self.rank = rank;
            const unsigned row = rank / blockDim.x;
            threadIdx = self.thread = {rank % blockDim.x, row % blockDim.y, row / blockDim.y};
            call(call_arguments);
            leave_barriers(rank);
        }
        self.gate = nullptr;
        leave();
    }
}

static void sync_block(int line)
{
    if (block->arrived && line != block->arrived_line) return give_up(TWO_LINES, line);
    block->arrived_line = line;
    if (++block->arrived + block->left < threads) return wait(block->generation);
    block->arrived = 0;
    ++block->generation;
}

// A barrier by number, as `bar.sync id, count`: it opens whenever `count` threads of the block have arrived.
inline void sync_named(unsigned id, unsigned count)
{
    if (id < 1 || id >= NAMED || count % WARP != 0) abort();  // number 0 is that of __syncthreads()
    if (++block->named_arrived[id] < count) return wait(block->named_opened[id]);
    block->named_arrived[id] = 0;
    ++block->named_opened[id];
}

// Counts at a named barrier without waiting there.
inline void arrive_named(unsigned id, unsigned count)
{
    if (id < 1 || id >= NAMED || count % WARP != 0) abort();
    if (++block->named_arrived[id] < count) return;
    block->named_arrived[id] = 0;
    ++block->named_opened[id];
}

// A cluster's barrier opens when every thread of its blocks has arrived; each waits for that later on.
inline void arrive_cluster()
{
    fibers[current].phase = cluster_phase;
    if (++cluster_arrived < threads * cluster) return;
    cluster_arrived = 0;
    ++cluster_phase;
}

inline void wait_cluster()
{
    if (fibers[current].phase == cluster_phase) wait(cluster_phase);
}

// The lanes in `mask` that the block has.
static unsigned present(unsigned mask)
{
    const unsigned first = fibers[current].rank / WARP * WARP;
    return threads - first < WARP ? mask & ((1u << (threads - first)) - 1) : mask;
}

static void sync_warp(unsigned mask)
{
    mask = present(mask);
    const unsigned rank = fibers[current].rank;
    const unsigned warp = rank / WARP, first = warp * WARP, bit = 1u << rank % WARP;
    unsigned& here = block->lanes_arrived[warp];
    here |= bit;
    if (!(mask & bit) || (here & mask) != mask) return wait(block->turn[rank]);
    here &= ~mask;
    for (unsigned lane = 0; lane < WARP; ++lane) block->turn[first + lane] += mask >> lane & 1;
}

// An operation of all lanes of a warp: each offers `mine`, and `use` computes this lane's result with a function that
// returns what another lane offers. The twins of instructions such as mma use it.
template <class V, class Use>
auto warp_collective(unsigned mask, const V& mine, Use use)
{
    const unsigned rank = fibers[current].rank, first = rank / WARP * WARP;
    block->published[rank] = &mine;
    sync_warp(mask);
    auto result = use([=](unsigned lane) -> const V& {
        lane %= WARP;
        if (!(present(mask) >> lane & 1)) give_up(NO_LANE, lane);  // a GPU would give anything
        return *static_cast<const V*>(block->published[first + lane]);
    });
    sync_warp(mask);  // no lane may go on while others still read its value
    return result;
}

inline unsigned lane() { return fibers[current].rank % WARP; }

}  // namespace tilewright_host
