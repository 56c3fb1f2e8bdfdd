// Twins of what tensor cores do with halves, bfloat16s and TF32: conversions, and mma with sums in float.
//
// Their sums are not those of IEEE arithmetic. The 16 products, of TF32 8, which are exact, and the number that they are added to
// are lined up with the largest exponent of all of them, cut off at 25 fraction bits, added up, and cut off once more to
// the 23 fraction bits of a float. So it was found by bits on Hopper ("MMA-Sim", 2025).
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "fibers.h"

inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}
inline float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

namespace tilewright_host {

// x / 2^fraction to the nearest whole number, ties to even, as conversions round.
inline unsigned rounded(unsigned x, int fraction)
{
    const unsigned whole = x >> fraction, rest = x & ((1u << fraction) - 1), tie = 1u << (fraction - 1);
    return whole + (rest > tie || (rest == tie && whole % 2));
}

inline unsigned short to_bfloat(float x)
{
    const unsigned bits = __float_as_uint(x);
    if (isnan(x)) return 0x7fff;
    return (unsigned short)((bits >> 31 << 15) | rounded(bits & 0x7fffffffu, 16));
}

inline float from_bfloat(unsigned short bits) { return __uint_as_float(unsigned(bits) << 16); }

inline unsigned short to_half(float x)
{
    const unsigned bits = __float_as_uint(x), sign = bits >> 31 << 15, magnitude = bits & 0x7fffffffu;
    if (isnan(x)) return 0x7fff;
    const int exponent = int(magnitude >> 23) - 127;
    if (exponent > 15) return (unsigned short)(sign | 0x7c00);
    // Its exponent and 10 fraction bits in one number, into which rounding may carry; below 2^-14 there is no exponent.
    const unsigned kept = exponent >= -14 ? rounded(magnitude - (112u << 23), 13)
                          : exponent > -32 ? rounded((magnitude & 0x7fffffu) | 0x800000u, -1 - exponent)
                                           : 0;
    return (unsigned short)(sign | kept);
}

inline float from_half(unsigned short bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                            : exponent     ? ldexpf(float(1024 + fraction), exponent - 25)
                                           : ldexpf(float(fraction), -24);
    return bits >> 15 ? -magnitude : magnitude;
}

// A finite number as significand * 2^exponent, the significand from 1 to 2, or 0.
struct Scaled {
    float significand;
    int exponent;
};
constexpr int ZERO_EXPONENT = -10000;

inline Scaled scaled(float x)
{
    if (x == 0) return {0, ZERO_EXPONENT};
    const unsigned bits = __float_as_uint(x), biased = bits >> 23 & 255;
    if (biased) return {__uint_as_float((bits & 0x807fffffu) | 127u << 23), int(biased) - 127};
    int exponent;
    const float significand = frexpf(x, &exponent);
    return {2 * significand, exponent - 1};
}

// start + the sum of a[i] * b[i], as tensor cores add.
template <int COUNT = 16>
float cut_off_sum(float start, const Scaled* a, const Scaled* b)
{
    const Scaled first = scaled(start);
    int most = first.exponent;
    for (int i = 0; i < COUNT; ++i) {
        const int exponent = a[i].exponent + b[i].exponent;
        if (a[i].significand != 0 && b[i].significand != 0 && exponent > most) most = exponent;
    }
    if (most == ZERO_EXPONENT) return 0;
    const auto cut = [most](double x, int exponent) {
        const int places = exponent - most + 25;
        return places < -2 ? int64_t(0) : int64_t(places < 0 ? x / (1 << -places) : x * (int64_t(1) << places));
    };
    int64_t sum = cut(first.significand, first.exponent);
    for (int i = 0; i < COUNT; ++i) {
        if (a[i].significand == 0 || b[i].significand == 0) continue;
        sum += cut(double(a[i].significand) * b[i].significand, a[i].exponent + b[i].exponent);
    }
    const double whole = ldexp(double(sum), most - 25);
    const float near = float(whole);
    return fabs(double(near)) > fabs(whole) ? nextafterf(near, 0) : near;
}

// A limb as it counts in a sum.
template <bool HALF>
Scaled limb(unsigned short bits) { return scaled(HALF ? from_half(bits) : from_bfloat(bits)); }

struct OfTile {
    float x[4];
};

// What mma.m16n8k16 leaves a lane: rows g and g + 8 of the 16 x 8 sums, columns 2t and 2t + 1. HALF, else bfloat16.
template <bool HALF>
OfTile mma_16816(const unsigned (&a)[4], unsigned b0, unsigned b1, const float* upper, const float* lower)
{
    struct Fragment {
        unsigned a[4], b[2];
    };
    const Fragment mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const int g = int(lane()) / 4, t = int(lane()) % 4;
    return warp_collective(~0u, mine, [=](auto of) {
        const auto part = [](unsigned two, int which) {
            return limb<HALF>((unsigned short)(two >> 16 * which));
        };
        Scaled rows[2][16], cols[2][16];
        for (int p = 0; p < 16; ++p) {
            const int pair = p % 8 / 2, which = p % 2, later = p / 8;
            for (int each = 0; each < 2; ++each) {
                rows[each][p] = part(of(4 * g + pair).a[2 * later + each], which);
                cols[each][p] = part(of(4 * (2 * t + each) + pair).b[later], which);
            }
        }
        return OfTile{{cut_off_sum(upper[0], rows[0], cols[0]), cut_off_sum(upper[1], rows[0], cols[1]),
                       cut_off_sum(lower[0], rows[1], cols[0]), cut_off_sum(lower[1], rows[1], cols[1])}};
    });
}

// start + the sum of a[i] * b[i], of floats of which TF32 has the upper 19 bits. Sums too large for a float are infinite.
inline float cut_off_sum_tf32(float start, const unsigned* a, const unsigned* b)
{
    Scaled x[8], y[8];
    double plain = start;
    bool finite = isfinite(start);
    for (int p = 0; p < 8; ++p) {
        const float left = __uint_as_float(a[p] & 0xffffe000u), right = __uint_as_float(b[p] & 0xffffe000u);
        plain += double(left) * right;
        finite = finite && isfinite(left) && isfinite(right);
        x[p] = scaled(left);
        y[p] = scaled(right);
    }
    return finite && fabs(plain) < ldexp(1.0, 128) ? cut_off_sum<8>(start, x, y) : float(plain);
}

// What mma.m16n8k8 on TF32 leaves a lane: rows g and g + 8 of the 16 x 8 sums, columns 2t and 2t + 1.
inline OfTile mma_1688(const unsigned (&a)[4], unsigned b0, unsigned b1, const float* upper, const float* lower)
{
    struct Fragment {
        unsigned a[4], b[2];
    };
    const Fragment mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const int g = int(lane()) / 4, t = int(lane()) % 4;
    return warp_collective(~0u, mine, [=](auto of) {
        unsigned rows[2][8], cols[2][8];
        for (int p = 0; p < 8; ++p) {
            for (int each = 0; each < 2; ++each) {
                rows[each][p] = of(4 * g + p % 4).a[p / 4 * 2 + each];
                cols[each][p] = of(4 * (2 * t + each) + p % 4).b[p / 4];
            }
        }
        return OfTile{{cut_off_sum_tf32(upper[0], rows[0], cols[0]), cut_off_sum_tf32(upper[1], rows[0], cols[1]),
                       cut_off_sum_tf32(lower[0], rows[1], cols[0]), cut_off_sum_tf32(lower[1], rows[1], cols[1])}};
    });
}

// ---- wgmma: a thread's part of what its warpgroup has started is done when it waits ----------------------------

struct Started {
    void (*finish)(const Started&);
    float* sums;
    const char *a, *b;
    bool fresh;
};

constexpr unsigned MAX_STARTED = 64;  // of a thread
struct AllStarted {
    Started each[MAX_STARTED];
    unsigned count, groups, ends[MAX_STARTED];  // of a group: how many were started till then
};
static AllStarted started_wgmma[MAX_THREADS * MAX_CLUSTER];

inline unsigned own_place() { return (block - blocks) * threads + fibers[current].rank; }

// Step p of row `row` of rows of BLOCK_K numbers, 128 or 64 bytes, with their pieces swapped by address.
template <int BLOCK_K>
unsigned short element(const char* rows, int row, int p)
{
    size_t at = reinterpret_cast<size_t>(rows) + row * BLOCK_K * 2 + p * 2;
    at ^= (at >> 7 & (BLOCK_K / 8 - 1)) << 4;
    unsigned short bits;
    memcpy(&bits, reinterpret_cast<const char*>(at), 2);
    return bits;
}

// 64 x COLUMNS sums of a warpgroup: a thread's own, rows 16w + g and 8 below, and of each 8 columns 2t and 2t + 1.
template <bool HALF, int COLUMNS, int BLOCK_K>
void finish_wgmma(const Started& one)
{
    const int rank = int(fibers[current].rank) % 128, row = rank / 32 * 16 + rank % 32 / 4, t = rank % 4;
    Scaled rows[2][16], col[16];
    for (int p = 0; p < 16; ++p)
        for (int each = 0; each < 2; ++each) rows[each][p] = limb<HALF>(element<BLOCK_K>(one.a, row + 8 * each, p));
    for (int j = 0; j < COLUMNS / 4; ++j) {
        for (int p = 0; p < 16; ++p) col[p] = limb<HALF>(element<BLOCK_K>(one.b, j / 2 * 8 + 2 * t + j % 2, p));
        for (int each = 0; each < 2; ++each) {
            float& sum = one.sums[each * (COLUMNS / 4) + j];
            sum = cut_off_sum(one.fresh ? 0 : sum, rows[each], col);
        }
    }
}

template <bool HALF, int COLUMNS, int BLOCK_K>
void wgmma_start(float* sums, const void* a, const void* b, bool fresh)
{
    AllStarted& all = started_wgmma[own_place()];
    if (all.count == MAX_STARTED) abort();
    all.each[all.count++] =
        {finish_wgmma<HALF, COLUMNS, BLOCK_K>, sums, static_cast<const char*>(a), static_cast<const char*>(b), fresh};
}

inline void wgmma_commit()
{
    AllStarted& all = started_wgmma[own_place()];
    if (all.groups == MAX_STARTED) abort();
    all.ends[all.groups++] = all.count;
}

// Finishes all groups but the last so many, for a whole warp. What was started since the last group was committed is of
// none.
inline void wgmma_wait(unsigned pending)
{
    AllStarted& all = started_wgmma[own_place()];
    if (all.groups <= pending) return sync_warp(~0u);
    const unsigned done = all.groups - pending, end = all.ends[done - 1];
    for (unsigned i = 0; i < end; ++i) all.each[i].finish(all.each[i]);
    for (unsigned i = end; i < all.count; ++i) all.each[i - end] = all.each[i];
    for (unsigned i = done; i < all.groups; ++i) all.ends[i - done] = all.ends[i] - end;
    all.count -= end;
    all.groups = pending;
    sync_warp(~0u);
}

}  // namespace tilewright_host
