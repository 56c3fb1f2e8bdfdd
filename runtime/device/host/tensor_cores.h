// Products of tensor cores: mma on doubles, and mma and wgmma on halves, bfloat16s and TF32, with sums in float;
// conversions to and from those.
//
// The sums in float are not those of IEEE arithmetic. The 16 products, or 8 of TF32, are exact. They and the number
// that they are added to are lined up with the largest exponent among them, cut off at 25 fraction bits, added up, and
// cut off once more to the 23 fraction bits of a float. Hopper was found to do so, bit by bit ("MMA-Sim", 2025).
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "copies.h"
#include "fibers.h"
#include "launch.h"

// Tests spend most of their time in this arithmetic: it is optimized, and left unchecked, even where sanitizers check
// all else. Code that is checked has read its operands.
#define TILEWRIGHT_ARITHMETIC __attribute__((no_sanitize("address", "undefined")))
#ifndef __clang__
#pragma GCC push_options
#pragma GCC optimize("O2")
#endif

TILEWRIGHT_ARITHMETIC inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}
TILEWRIGHT_ARITHMETIC inline float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

namespace tilewright_host {

// x / 2^fraction to the nearest whole number, ties to even, as conversions round.
TILEWRIGHT_ARITHMETIC inline unsigned rounded(unsigned x, int fraction)
{
    const unsigned whole = x >> fraction, rest = x & ((1u << fraction) - 1), tie = 1u << (fraction - 1);
    return whole + (rest > tie || (rest == tie && whole % 2));
}

TILEWRIGHT_ARITHMETIC inline unsigned short to_bfloat(float x)
{
    const unsigned bits = __float_as_uint(x);
    if (isnan(x)) return 0x7fff;
    return (unsigned short)((bits >> 31 << 15) | rounded(bits & 0x7fffffffu, 16));
}

TILEWRIGHT_ARITHMETIC inline float from_bfloat(unsigned short bits) { return __uint_as_float(unsigned(bits) << 16); }

TILEWRIGHT_ARITHMETIC inline unsigned short to_half(float x)
{
    const unsigned bits = __float_as_uint(x), sign = bits >> 31 << 15, magnitude = bits & 0x7fffffffu;
    if (isnan(x)) return 0x7fff;
    const int exponent = int(magnitude >> 23) - 127;
    if (exponent > 15) return (unsigned short)(sign | 0x7c00);
    // The exponent and 10 fraction bits as one number, so that rounding may carry; below 2^-14 the exponent is 0.
    const unsigned kept = exponent >= -14 ? rounded(magnitude - (112u << 23), 13)
                          : exponent > -32 ? rounded((magnitude & 0x7fffffu) | 0x800000u, -1 - exponent)
                                           : 0;
    return (unsigned short)(sign | kept);
}

TILEWRIGHT_ARITHMETIC inline float from_half(unsigned short bits)
{
    const unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 0) return (bits >> 15 ? -1.0f : 1.0f) * float(fraction) / (1 << 24);
    return __uint_as_float(unsigned(bits >> 15) << 31 | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}

// A finite number as significand * 2^exponent, the significand from 1 to 2, or 0.
struct Scaled {
    float significand;
    int exponent;
};
constexpr int ZERO_EXPONENT = -10000;

TILEWRIGHT_ARITHMETIC inline Scaled scaled(float x)
{
    if (x == 0) return {0, ZERO_EXPONENT};
    const unsigned bits = __float_as_uint(x), biased = bits >> 23 & 255;
    if (biased) return {__uint_as_float((bits & 0x807fffffu) | 127u << 23), int(biased) - 127};
    int exponent;
    const float significand = frexpf(x, &exponent);
    return {2 * significand, exponent - 1};
}

TILEWRIGHT_ARITHMETIC inline double power_of_two(int exponent)
{
    const uint64_t bits = uint64_t(1023 + exponent) << 52;
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

// Factor that lines up a number below 4 whose exponent is `below` less than the largest: with 30 nothing is left of it.
TILEWRIGHT_ARITHMETIC inline double places(int below) { return power_of_two(25 - (below < 30 ? below : 30)); }

// start + the sum of a[i] * b[i], as tensor cores add.
template <int kCount = 16>
TILEWRIGHT_ARITHMETIC float cut_off_sum(float start, const Scaled* a, const Scaled* b)
{
    const Scaled first = scaled(start);
    int most = first.exponent, exponents[kCount];
    for (int i = 0; i < kCount; ++i) {
        exponents[i] = a[i].exponent + b[i].exponent;  // far below all others where a factor is 0
        most = exponents[i] > most ? exponents[i] : most;
    }
    if (most < ZERO_EXPONENT / 2) return 0;
    int64_t sum = int(first.significand * places(most - first.exponent));
    for (int i = 0; i < kCount; ++i) {
        sum += int(double(a[i].significand) * b[i].significand * places(most - exponents[i]));
    }
    const double whole = double(sum) * power_of_two(most - 25);
    const float near = float(whole);
    return fabs(double(near)) > fabs(whole) ? nextafterf(near, 0) : near;
}

// The number that 16 bits stand for, and below it several such numbers.
template <bool kHalf>
TILEWRIGHT_ARITHMETIC Scaled term(unsigned short bits) { return scaled(kHalf ? from_half(bits) : from_bfloat(bits)); }
template <bool kHalf, int kCount>
TILEWRIGHT_ARITHMETIC void terms(const void* from, Scaled* to)
{
    unsigned short bits[kCount];
    memcpy(bits, from, sizeof bits);
    for (int i = 0; i < kCount; ++i) to[i] = term<kHalf>(bits[i]);
}

#ifndef __clang__
#pragma GCC pop_options
#endif

// A lane's part of a tile of 16 x 8 sums: columns 2t and 2t + 1 of row g, then of row g + 8.
template <class Sum>
struct OfTile {
    Sum x[4];
};

// The products of 16 x 4 K and 4 K x 8 doubles, for mma.m16n8k8 (K = 2), or with one row group of 8 for mma.m8n8k4 (K = 1).
// A lane has rows[i][p], of row 8i + g, and col[p], of column g, at step 4p + t.
template <int kGroups, int K>
OfTile<double> product_f64(const double (&rows)[kGroups][K], const double (&col)[K])
{
    struct Fragment {
        double rows[kGroups][K], col[K];
    };
    Fragment mine;
    memcpy(mine.rows, rows, sizeof rows);
    memcpy(mine.col, col, sizeof col);
    const int g = int(lane()) / 4, t = int(lane()) % 4;
    return warp_collective(~0u, mine, [=](auto of) {
        OfTile<double> sum = {};
        for (int p = 0; p < K; ++p) {
            for (int each = 0; each < 4; ++each) {
                const Fragment& row = of(4 * g + each);
                for (int i = 0; i < kGroups; ++i) {
                    sum.x[2 * i] += row.rows[i][p] * of(8 * t + each).col[p];
                    sum.x[2 * i + 1] += row.rows[i][p] * of(8 * t + 4 + each).col[p];
                }
            }
        }
        return sum;
    });
}

// The sums of a lane after mma.m16n8k16, of halves with kHalf, else of bfloat16s.
template <bool kHalf>
OfTile<float> mma_16816(const OfTile<float>& start, const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    struct Fragment {
        unsigned a[4], b[2];
    };
    const Fragment mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const int g = int(lane()) / 4, t = int(lane()) % 4;
    return warp_collective(~0u, mine, [=](auto of) {
        unsigned of_rows[2][8], of_cols[2][8];  // steps of k in pairs
        for (int pair = 0; pair < 8; ++pair) {
            for (int each = 0; each < 2; ++each) {
                of_rows[each][pair] = of(4 * g + pair % 4).a[pair / 4 * 2 + each];
                of_cols[each][pair] = of(4 * (2 * t + each) + pair % 4).b[pair / 4];
            }
        }
        Scaled rows[2][16], cols[2][16];
        for (int each = 0; each < 2; ++each) {
            terms<kHalf, 16>(of_rows[each], rows[each]);
            terms<kHalf, 16>(of_cols[each], cols[each]);
        }
        OfTile<float> sums;
        for (int e = 0; e < 4; ++e) sums.x[e] = cut_off_sum(start.x[e], rows[e / 2], cols[e % 2]);
        return sums;
    });
}

// start + the sum of a[i] * b[i], for floats of which TF32 keeps the upper 19 bits. Sums too large for a float are
// infinite.
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

// The sums of a lane after mma.m16n8k8 on TF32.
inline OfTile<float> mma_1688(const OfTile<float>& start, const unsigned (&a)[4], unsigned b0, unsigned b1)
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
        OfTile<float> sums;
        for (int e = 0; e < 4; ++e) sums.x[e] = cut_off_sum_tf32(start.x[e], rows[e / 2], cols[e % 2]);
        return sums;
    });
}

// ---- wgmma: a thread's part of what its warpgroup has started is done when it waits ----------------------------

// Rows of 16-bit numbers in shared memory, as a matrix descriptor describes them.
struct Matrix {
    const char* first;
    unsigned row_bytes;     // as wide as the spans of its swizzle mode
    unsigned stride_bytes;  // from 8 rows to the next 8
};

// The matrix of a descriptor. Swizzle modes are 1 for spans of 128 bytes, 2 for those of 64.
inline Matrix matrix_of(uint64_t descriptor)
{
    const unsigned mode = descriptor >> 62, unused = descriptor >> 46 & 0xFFFF;
    if ((mode != 1 && mode != 2) || unused) abort();
    return {shared_place((descriptor & 0x3FFF) * 16), 256 >> mode, unsigned(descriptor >> 32 & 0x3FFF) * 16};
}

struct Started {
    void (*finish)(const Started&);
    float* sums;
    Matrix a, b;
    bool fresh;
};

constexpr unsigned MAX_STARTED = 64;  // of a thread
struct AllStarted {
    unsigned count, groups, ends[MAX_STARTED];  // for each group, how many were started until its commit
    Started each[MAX_STARTED];

    void clear() { count = groups = 0; }
};

// Products that the running thread has started. They lie behind the thread's copies.
inline AllStarted& own_started() { return own_queue<AllStarted, sizeof(Copies) + 64>(); }

// Reads 16 steps of row `row`. The swizzle changes the bits of an address that number the 16-byte pieces of a span,
// from bit 4 on, by as many bits from bit 7 on.
template <bool kHalf>
void read_row(const Matrix& matrix, int row, Scaled (&to)[16])
{
    unsigned short bits[16];
    for (int piece = 0; piece < 2; ++piece) {
        size_t at = reinterpret_cast<size_t>(matrix.first);
        at += row / 8 * matrix.stride_bytes + row % 8 * matrix.row_bytes + piece * 16;
        at ^= (at >> 7 & (matrix.row_bytes / 16 - 1)) << 4;
        memcpy(bits + 8 * piece, reinterpret_cast<const char*>(at), 16);
    }
    terms<kHalf, 16>(bits, to);
}

// A thread's part of the 64 x kColumns sums of a warpgroup: rows 16w + g and 8 below, columns 2t and 2t + 1 of each 8.
template <bool kHalf, int kColumns>
void finish_wgmma(const Started& one)
{
    const int rank = int(fibers[current].rank) % 128, row = rank / 32 * 16 + rank % 32 / 4, t = rank % 4;
    Scaled rows[2][16], col[16];
    for (int each = 0; each < 2; ++each) read_row<kHalf>(one.a, row + 8 * each, rows[each]);
    for (int j = 0; j < kColumns / 4; ++j) {
        read_row<kHalf>(one.b, j / 2 * 8 + 2 * t + j % 2, col);
        for (int each = 0; each < 2; ++each) {
            float& sum = one.sums[each * (kColumns / 4) + j];
            sum = cut_off_sum(one.fresh ? 0 : sum, rows[each], col);
        }
    }
}

template <bool kHalf, int kColumns>
void wgmma_start(float* sums, uint64_t a, uint64_t b, bool fresh)
{
    AllStarted& all = own_started();
    if (all.count == MAX_STARTED) abort();
    all.each[all.count++] = {finish_wgmma<kHalf, kColumns>, sums, matrix_of(a), matrix_of(b), fresh};
}

inline void wgmma_commit()
{
    AllStarted& all = own_started();
    if (all.groups == MAX_STARTED) abort();
    all.ends[all.groups++] = all.count;
}

// Finishes all but the last `pending` groups, for a whole warp. Products since the last commit belong to no group.
inline void wgmma_wait(unsigned pending)
{
    AllStarted& all = own_started();
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
