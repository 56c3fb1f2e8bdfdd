// The twins of PTX instructions: C++ functions that do what those in the section "Instructions (PTX)" of a text do.
//
// host_compiler.py replaces that section by using-declarations of the functions here that have the same names. So a
// function without a twin does not compile, and all else in the text runs as it is, loops around instructions and matrix
// descriptors too. Signatures are those of the text; where a text has a constant, twins are templates over it.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "copies.h"
#include "fibers.h"
#include "launch.h"
#include "tensor_cores.h"
#include "tma.h"

namespace tilewright_host::instructions {

// ---- Order of kernels, and the L2 cache: launches run one after another, and there is no L2 to ask ---------------

inline void griddepcontrol_wait() {}
inline void launch_dependents() {}
inline void prefetch_line(const void*) {}

// ---- Copies ------------------------------------------------------------------------------------------------------

inline void cp_async_16(void* to, const void* from, bool inside) { copy_async(to, inside ? from : nullptr, 16); }
template <int kBytes> void cp_async(void* to, const void* from, bool inside)
{
    copy_async(to, inside ? from : nullptr, kBytes);
}
inline void cp_async_16_if(bool on, void* to, const void* from, bool inside)
{
    if (on) cp_async_16(to, from, inside);
}
template <int kBytes> void cp_async_if(bool on, void* to, const void* from, bool inside)
{
    if (on) cp_async<kBytes>(to, from, inside);
}
using tilewright_host::commit_copies;
template <int kPending> void wait_copies() { tilewright_host::wait_copies(kPending); }

inline void mbarrier_init(void* barrier, unsigned count) { init_barrier(barrier, count); }
inline void mbarrier_arrive(void* barrier) { arrive_barrier(barrier); }
inline void mbarrier_arrive_expect(void* barrier, unsigned bytes) { arrive_barrier(barrier, bytes); }
inline unsigned mbarrier_try_wait(void* barrier, unsigned parity)  // as long as it takes
{
    wait_barrier(barrier, parity);
    return 1;
}
inline void fence_mbarrier_init() {}  // one processor thread runs all
inline void fence_proxy_async() {}
using tilewright_host::copy_box;
using tilewright_host::copy_bulk;

inline void store_eight(unsigned short* to, const unsigned (&x)[4]) { memcpy(to, x, sizeof x); }

// ---- Barriers ----------------------------------------------------------------------------------------------------

template <int kBarrier, int kCount> void sync_constant() { tilewright_host::sync_named(kBarrier, kCount); }
template <int kCount> void sync_named(int barrier) { tilewright_host::sync_named(barrier, kCount); }
template <int kCount> void arrive_named(int barrier) { tilewright_host::arrive_named(barrier, kCount); }
template <class Element> const Element* peer(const Element* place, int rank)
{
    return tilewright_host::peer(place, unsigned(rank));
}
using tilewright_host::arrive_cluster;
using tilewright_host::wait_cluster;

// ---- Counters: no other thread runs meanwhile --------------------------------------------------------------------

inline unsigned count(unsigned* counter, unsigned by)
{
    const unsigned before = *counter;
    *counter = before + by;
    return before;
}
inline unsigned load_acquire(const unsigned* counter) { return *counter; }
template <unsigned kBy> unsigned count_in_first(unsigned rank, unsigned* counter)
{
    return rank == 0 ? count(counter, kBy) : 0;
}

// ---- Tensor cores ------------------------------------------------------------------------------------------------

inline void mma_f64_m8n8k4(double& c0, double& c1, double a, double b)
{
    const double rows[1][1] = {{a}}, col[1] = {b};
    const auto product = product_f64(rows, col);
    c0 += product.x[0];
    c1 += product.x[1];
}
inline void mma_f64_m16n8k8(
    double& c0, double& c1, double& c2, double& c3, double a0, double a1, double a2, double a3, double b0, double b1)
{
    const double rows[2][2] = {{a0, a2}, {a1, a3}}, col[2] = {b0, b1};
    const auto product = product_f64(rows, col);
    c0 += product.x[0];
    c1 += product.x[1];
    c2 += product.x[2];
    c3 += product.x[3];
}

inline void put(const OfTile<float>& sums, float& c0, float& c1, float& c2, float& c3)
{
    c0 = sums.x[0];
    c1 = sums.x[1];
    c2 = sums.x[2];
    c3 = sums.x[3];
}
inline void mma_tf32_m16n8k8(
    float& c0, float& c1, float& c2, float& c3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
    unsigned b1)
{
    put(mma_1688({{c0, c1, c2, c3}}, {a0, a1, a2, a3}, b0, b1), c0, c1, c2, c3);
}
inline void mma_f16_m16n8k16(
    float& c0, float& c1, float& c2, float& c3, const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    put(mma_16816<true>({{c0, c1, c2, c3}}, a, b0, b1), c0, c1, c2, c3);
}
inline void mma_bf16_m16n8k16(
    float& c0, float& c1, float& c2, float& c3, const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    put(mma_16816<false>({{c0, c1, c2, c3}}, a, b0, b1), c0, c1, c2, c3);
}

inline void load_matrices(unsigned (&x)[4], const void* row)
{
    struct Four {
        unsigned x[4];
    };
    const int own = int(lane());
    const Four found = warp_collective(~0u, row, [=](auto of) {
        Four read;
        for (int each = 0; each < 4; ++each) {
            memcpy(&read.x[each], static_cast<const char*>(of(8 * each + own / 4)) + own % 4 * 4, 4);
        }
        return read;
    });
    memcpy(x, found.x, sizeof x);
}

inline void wgmma_fence() {}
template <int kAcc> void wgmma_f16(float (&acc)[kAcc], unsigned long long a, unsigned long long b, bool fresh)
{
    wgmma_start<true, 2 * kAcc>(acc, a, b, fresh);
}
template <int kAcc> void wgmma_bf16(float (&acc)[kAcc], unsigned long long a, unsigned long long b, bool fresh)
{
    wgmma_start<false, 2 * kAcc>(acc, a, b, fresh);
}
inline void commit_wgmma() { wgmma_commit(); }
template <int kPending, int kAcc> void wait_wgmma(float (&)[kAcc]) { wgmma_wait(kPending); }
template <int kCount> void take_registers() {}
template <int kCount> void give_registers() {}

// ---- Arithmetic --------------------------------------------------------------------------------------------------

inline unsigned to_f16x2(float low, float high) { return unsigned(to_half(high)) << 16 | to_half(low); }
inline unsigned to_bf16x2(float low, float high) { return unsigned(to_bfloat(high)) << 16 | to_bfloat(low); }
inline unsigned short to_f16(float x) { return to_half(x); }
inline unsigned short to_bf16(float x) { return to_bfloat(x); }
inline float from_f16(unsigned short bits) { return from_half(bits); }
inline float low_f16(unsigned bits) { return from_half((unsigned short)bits); }
inline float high_f16(unsigned bits) { return from_half((unsigned short)(bits >> 16)); }
inline float max_nan(float x, float y)
{
    if (isnan(x) || isnan(y)) return __uint_as_float(0x7fffffff);
    return x < y ? y : x;
}

}  // namespace tilewright_host::instructions
