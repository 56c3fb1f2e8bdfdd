// Lets CUDA C++ text compile for the processor, so that a kernel can be checked where there is no GPU.
//
// One processor thread runs the blocks one after another, by launch.h, and the threads of a block, by fibers.h. The text
// does not know of that. Its section "Instructions (PTX)" holds every instruction that only a GPU has (cp.async, mma), a
// function for each; host_compiler.py puts the twins of these functions, in instructions.h, in the section's place.
#pragma once

#include <math.h>

#include <utility>

#include "tma.h"
#include "copies.h"
#include "fibers.h"
#include "instructions.h"
#include "launch.h"
#include "tensor_cores.h"

// ---- The words CUDA adds to C++. `extern __shared__` is no C++ in any spelling: host_compiler.py rewrites that line.

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
// Variables in one section, which is NaN before every block. Without `used` the compiler would trust them to be zero.
#define __shared__ static __attribute__((used, section("tilewright_shared")))

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- Functions -------------------------------------------------------------------------------------------------

inline void __syncthreads(int line = __builtin_LINE()) { tilewright_host::sync_block(line); }
inline int __syncthreads_or(int mine, int line = __builtin_LINE())
{
    unsigned& found = tilewright_host::block->found;
    found |= mine != 0;
    tilewright_host::sync_block(line);
    const int any = int(found);
    tilewright_host::sync_block(line);
    found = 0;
    tilewright_host::sync_block(line);  // before the next vote
    return any;
}
inline void __syncwarp(unsigned mask = ~0u) { tilewright_host::sync_warp(mask); }
inline void __threadfence() {}

// Shuffles inside groups of `width` lanes; a lane that reaches outside its group gets its own value, as on a GPU.
template <class V, class Source>
V tilewright_shuffle(unsigned mask, V value, int width, Source source)
{
    const int lane = int(tilewright_host::lane()), first = lane & ~(width - 1), from = source(lane - first);
    return tilewright_host::warp_collective(
        mask, value, [&](auto of) -> V { return of(0 <= from && from < width ? first + from : lane); });
}
template <class V> V __shfl_sync(unsigned mask, V value, int lane, int width = 32)
{
    return tilewright_shuffle(mask, value, width, [=](int) { return lane & (width - 1); });
}
template <class V> V __shfl_xor_sync(unsigned mask, V value, int bits, int width = 32)
{
    return tilewright_shuffle(mask, value, width, [=](int own) { return own ^ bits; });
}

inline int __any_sync(unsigned mask, int mine)
{
    return tilewright_host::warp_collective(mask, mine, [&](auto of) -> int {
        int any = 0;
        for (int lane = 0; lane < 32; ++lane) any |= mask >> lane & 1 && of(lane);
        return any;
    });
}

inline unsigned __ballot_sync(unsigned mask, int mine)
{
    return tilewright_host::warp_collective(mask, mine, [&](auto of) -> unsigned {
        unsigned lanes = 0;
        for (int lane = 0; lane < 32; ++lane) lanes |= unsigned(mask >> lane & 1 && of(lane)) << lane;
        return lanes;
    });
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }

template <class P, class V> P atomicAdd(P* p, V value)  // no other thread runs meanwhile
{
    const P old = *p;
    *p = old + value;
    return old;
}
template <class P> void atomicMax(P* p, P value) { *p = *p < value ? value : *p; }

// A store that the cache may forget soon. The value may be of another type.
template <class V> void __stcs(V* to, const V& value) { memcpy(to, &value, sizeof value); }

inline size_t __cvta_generic_to_shared(const void* place) { return tilewright_host::shared_address(place); }

// Blocks run one after another, so that none sees another's writes by waiting: the clock makes each wait end soon.
inline long long clock64()
{
    static long long clock;
    return clock += 1ll << 40;
}

template <class A, class B> using tilewright_common = std::decay_t<decltype(true ? A() : B())>;
template <class A, class B> constexpr tilewright_common<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B> constexpr tilewright_common<A, B> max(A a, B b) { return a < b ? b : a; }

// ---- Launches: TILEWRIGHT_EXPORT(kernel, cluster) after the text makes `kernel_on_host`, which host.py calls, and
// `kernel_thread_bytes`, the memory that a launch takes for each thread of a block; `cluster` counts its blocks along x.

namespace tilewright_host {

template <auto kernel, unsigned blocks_together, class Arguments> struct Entry;

template <auto kernel, unsigned blocks_together, class... Ts>
struct Entry<kernel, blocks_together, void (*)(Ts...)> {
    static_assert(1 <= blocks_together && blocks_together <= MAX_CLUSTER, "a cluster has up to 8 blocks");

    template <size_t... I> static void unpack(void** arguments, std::index_sequence<I...>)
    {
        kernel(*static_cast<Ts*>(arguments[I])...);
    }
    static void call(void** arguments) { unpack(arguments, std::index_sequence_for<Ts...>()); }

    // Null where the launch went well, else the reason why not.
    static const char* launch(const Launch* launch, void** arguments, const uint64_t* sizes, uint64_t count)
    {
        constexpr uint64_t wanted[] = {sizeof(Ts)..., 0};
        if (count != sizeof...(Ts)) return "the kernel has another number of arguments";
        for (uint64_t i = 0; i < count; ++i)
            if (sizes[i] != wanted[i]) return "an argument has another size than the kernel's";
        return run(*launch, blocks_together, call, arguments);
    }
};

}  // namespace tilewright_host

#define TILEWRIGHT_EXPORT(kernel, cluster)                                                                        \
    extern "C" __attribute__((visibility("default"))) const char* kernel##_on_host(                               \
        const tilewright_host::Launch* launch, void** arguments, const uint64_t* sizes, uint64_t count)           \
    {                                                                                                             \
        return tilewright_host::Entry<kernel, cluster, decltype(&kernel)>::launch(                                \
            launch, arguments, sizes, count);                                                                     \
    }                                                                                                             \
    extern "C" {                                                                                                  \
    __attribute__((visibility("default"))) uint64_t kernel##_thread_bytes = tilewright_host::STRIDE * cluster;     \
    }
