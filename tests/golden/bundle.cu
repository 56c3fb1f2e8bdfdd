// bundle.cu: the functions that choose and launch kernels. bundle.h says how to call them.
//
// Written by tilewright, file digest 1081dce47dfb17a9. To write it with kernels that are looked up:
//   tilewright emit --shape 65x65x65 --shape 128x128x128 --shape 257x257x257 --shape 513x513x513 --shape 1028x1028x1028 --shape 2049x2049x2049 --dtype float --trans nn --arch sm_90a --name bundle --split
// SPDX-License-Identifier: MIT

#include "bundle.h"
#include "bundle_impl.h"

#include <atomic>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cuda_runtime.h>
#ifdef _WIN32
#include <mutex>
#else
#include <pthread.h>
#endif

namespace bundle_impl {
namespace {

using Index = long long;  // sizes: a matrix may hold more than 2^31 elements

const Shape F32_NN_SHAPES[] = {
    // m, n, k, their logarithms to base 2, kernel, origin, recorded microseconds and error over its bound
    {65, 65, 65, 6.0224f, 6.0224f, 6.0224f, &k0::KERNEL, "as given", 0, 0},
    {128, 128, 128, 7.0000f, 7.0000f, 7.0000f, &k1::KERNEL, "as given", 0, 0},
    {257, 257, 257, 8.0056f, 8.0056f, 8.0056f, &k2::KERNEL, "as given", 0, 0},
    {513, 513, 513, 9.0028f, 9.0028f, 9.0028f, &k3::KERNEL, "as given", 0, 0},
    {1028, 1028, 1028, 10.0056f, 10.0056f, 10.0056f, &k4::KERNEL, "as given", 0, 0},
    {2049, 2049, 2049, 11.0007f, 11.0007f, 11.0007f, &k5::KERNEL, "as given", 0, 0},
};
const Shape F32_NN_GENERAL = {0, 0, 0, 0, 0, 0, &k1::KERNEL_1, "general", 0, 0};
const Product F32_NN = {
    false, false, F32_NN_SHAPES, 6, &F32_NN_GENERAL};

constexpr int MAX_DEVICES = 64;
constexpr std::size_t COUNTER_BYTES = 16384;  // at the begin of a workspace: 0 between two calls

constexpr Index ceil_div(Index size, Index step) { return (size + step - 1) / step; }
constexpr std::size_t whole_lines(Index bytes) { return std::size_t(ceil_div(bytes, 256) * 256); }

template <typename T>
bool is_zero(T x) { return std::fpclassify(x) == FP_ZERO; }

int status_of(cudaError_t error) { return error == cudaSuccess ? BUNDLE_SUCCESS : BUNDLE_CUDA_ERROR + int(error); }

// What is asked of a device once.
struct Device {
    std::atomic<bool> known{false};
    int number = 0, capability = 0;
    int sm_count = 0, smem_per_sm = 0, smem_reserved = 0;
    int smem_per_cta = 0;
};

Device devices[MAX_DEVICES];

// A lock that needs no C++ runtime, which programs in C and Fortran do not link.
#ifdef _WIN32
struct Mutex {
    std::mutex held;
    void lock() { held.lock(); }
    void unlock() { held.unlock(); }
};
#else
struct Mutex {
    pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
    void lock() { pthread_mutex_lock(&held); }
    void unlock() { pthread_mutex_unlock(&held); }
};
#endif
struct Locked {
    Mutex& mutex;
    explicit Locked(Mutex& given) : mutex(given) { mutex.lock(); }
    ~Locked() { mutex.unlock(); }
};
Mutex asking;

// The current device.
int current_device(const Device** found)
{
    int number = 0, major = 0, minor = 0;
    cudaError_t error = cudaGetDevice(&number);
    if (error != cudaSuccess) return status_of(error);
    if (number >= MAX_DEVICES) return BUNDLE_UNSUPPORTED_DEVICE;
    Device& device = devices[number];
    *found = &device;
    if (device.known.load(std::memory_order_acquire)) return BUNDLE_SUCCESS;

    const Locked locked(asking);
    if (device.known.load(std::memory_order_relaxed)) return BUNDLE_SUCCESS;  // another thread asked meanwhile
    const auto ask = [&](int* answer, cudaDeviceAttr attribute) {
        if (error == cudaSuccess) error = cudaDeviceGetAttribute(answer, attribute, number);
    };
    ask(&major, cudaDevAttrComputeCapabilityMajor);
    ask(&minor, cudaDevAttrComputeCapabilityMinor);
    ask(&device.sm_count, cudaDevAttrMultiProcessorCount);
    ask(&device.smem_per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    ask(&device.smem_reserved, cudaDevAttrReservedSharedMemoryPerBlock);
    ask(&device.smem_per_cta, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    device.number = number;
    device.capability = 10 * major + minor;
    device.known.store(error == cudaSuccess, std::memory_order_release);
    return status_of(error);
}

// Lets a kernel have as much shared memory as any launch of it may ask for. Once for each device: a limit that calls
// set as they need it could be lowered by one between another's setting and its launch.
int allow_smem(const Kernel& kernel, const Device& device)
{
    const std::uint64_t bit = std::uint64_t(1) << device.number;
    if (kernel.ready.load(std::memory_order_acquire) & bit) return BUNDLE_SUCCESS;
    cudaFuncAttributes found;  // nvcc may give a kernel more than it declares, so that what a launch gives is aligned
    cudaError_t error = cudaFuncGetAttributes(&found, kernel.function);
    if (error == cudaSuccess) {
        error = cudaFuncSetAttribute(
            kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
            device.smem_per_cta - int(found.sharedSizeBytes));
    }
    if (error == cudaSuccess) kernel.ready.fetch_or(bit, std::memory_order_release);
    return status_of(error);
}

// ---- Which kernel --------------------------------------------------------------------------------------------------

struct Sizes {
    Index m, n, k;
};

Index tiles_of(const Kernel& kernel, const Sizes& sizes)  // of C
{
    return ceil_div(sizes.m, kernel.tile_m) * ceil_div(sizes.n, kernel.tile_n);
}

// CTAs of the main kernel; 0 where there would be too many.
Index ctas_of(const Kernel& kernel, const Sizes& sizes)
{
    const Index tiles = tiles_of(kernel, sizes);
    if (kernel.stream_ctas) {
        const Index stream = kernel.stream_ctas;
        const bool counted = tiles <= INT_MAX - stream && tiles * ceil_div(sizes.k, kernel.tile_k) <= UINT_MAX;
        return counted ? stream + (tiles < stream ? 0 : tiles / stream * stream) : 0;
    }
    const Index ctas = tiles * kernel.split_ctas;
    return tiles <= INT_MAX && ctas <= INT_MAX ? ctas : 0;
}

// Bytes of a workspace: counters beyond those at its begin, partial tiles, copies of operands.
struct Need {
    std::size_t counters = 0, sums = 0;
    std::size_t copies = 0;

    std::size_t total() const
    {
        const std::size_t bytes = counters + sums + copies;
        return bytes ? COUNTER_BYTES + bytes : 0;
    }
};

// Elements from row to row of a packed operand: rows begin at multiples of 128 bytes.
Index packed_ld(Index extent, Index element) { return ceil_div(extent * element, 128) * 128 / element; }

// Sizes rounded up to whole tiles.
Sizes padded_sizes(const Kernel& kernel, const Sizes& sizes)
{
    return {
        ceil_div(sizes.m, kernel.pad_m) * kernel.pad_m, ceil_div(sizes.n, kernel.pad_n) * kernel.pad_n,
        ceil_div(sizes.k, kernel.pad_k) * kernel.pad_k};
}

// What a kernel needs for a product of elements of `element` bytes.
Need need_of(const Kernel& kernel, Index element, const Sizes& sizes)
{
    Need need;
    if (kernel.sums) {
        const Index tiles = tiles_of(kernel, sizes);
        const Index tile_bytes = Index(kernel.tile_m) * kernel.tile_n * element;
        const Index stream = kernel.stream_ctas;
        const Index written = stream ? 2 * stream : tiles * kernel.split_ctas;
        const Index counted = 4 * (stream ? stream : tiles);
        need.sums = whole_lines(written * tile_bytes);
        need.counters = counted > Index(COUNTER_BYTES) ? whole_lines(counted) : 0;
    }
    if (kernel.pack_a) need.copies += std::size_t(packed_ld(sizes.m, element) * sizes.k * element);
    if (kernel.pack_b) need.copies += std::size_t(packed_ld(sizes.n, element) * sizes.k * element);
    if (kernel.pads) {
        const Sizes padded = padded_sizes(kernel, sizes);
        need.copies = whole_lines(padded.m * padded.k * element) + whole_lines(padded.k * padded.n * element)
                    + whole_lines(padded.m * padded.n * element);
    }
    return need;
}

// Whether a kernel can compute a product of this size, however the operands lie.
bool serves(const Kernel& kernel, const Sizes& sizes)
{
    if (sizes.m % kernel.multiple_m != 0 || sizes.n % kernel.multiple_n != 0 || sizes.k % kernel.multiple_k != 0) {
        return false;
    }
    if (kernel.pads) {
        const Sizes padded = padded_sizes(kernel, sizes);
        if (padded.m > INT_MAX / 8 || padded.n > INT_MAX / 8 || padded.k > INT_MAX / 8) return false;
    }
    if ((kernel.pack_a && sizes.m > INT_MAX - 128) || (kernel.pack_b && sizes.n > INT_MAX - 128)) return false;
    return ctas_of(kernel, sizes) > 0;
}

// Whether rows of `width` elements, `ld` apart, suit vectors of `count` elements.
bool rows_suit(int count, Index ld, Index width) { return ld % count == 0 && width % count == 0; }

// Whether the stored rows of a product do, if leading dimensions are multiples of vectors.
bool rows_suit(const Kernel& kernel, const Product& product, const Sizes& sizes)
{
    return rows_suit(kernel.align_a, 0, product.trans_a ? sizes.m : sizes.k)
        && rows_suit(kernel.align_b, 0, product.trans_b ? sizes.k : sizes.n) && rows_suit(kernel.align_c, 0, sizes.n);
}

// Whether sizes are within a factor of 8.
bool is_near(Index size, Index other) { return size <= 8 * other && other <= 8 * size; }

// The kernel of the shape itself, else that of the nearest shape: the fewest doublings of m, n and k away, if
// one is near.
// Only a kernel that `suits` counts.
template <typename Suits>
const Shape* chosen(const Product& product, const Sizes& sizes, Suits suits)
{
    for (int i = 0; i < product.count; ++i) {
        const Shape& shape = product.shapes[i];
        const bool same = shape.m == sizes.m && shape.n == sizes.n && shape.k == sizes.k;
        if (same && suits(*shape.kernel)) return &shape;
    }
    const auto log2_of = [](Index size) { return size > 0 ? std::log2(float(size)) : -1.0f; };
    const float log_m = log2_of(sizes.m), log_n = log2_of(sizes.n), log_k = log2_of(sizes.k);
    const Shape* best = nullptr;
    float least = INFINITY;
    for (int i = 0; i < product.count; ++i) {
        const Shape& shape = product.shapes[i];
        if (!is_near(shape.m, sizes.m) || !is_near(shape.n, sizes.n) || !is_near(shape.k, sizes.k)) continue;
        const float doublings =
            std::fabs(shape.log_m - log_m) + std::fabs(shape.log_n - log_n) + std::fabs(shape.log_k - log_k);
        if (doublings < least && suits(*shape.kernel)) {
            least = doublings;
            best = &shape;
        }
    }
    if (!best && suits(*product.fallback->kernel)) best = product.fallback;
    return best;
}

// The same for operands that lie as vectors want it.
const Shape* chosen(const Product& product, const Sizes& sizes)
{
    return chosen(product, sizes, [&](const Kernel& kernel) {
        return serves(kernel, sizes) && rows_suit(kernel, product, sizes);
    });
}

// ---- Launches ------------------------------------------------------------------------------------------------------

int start(
    const void* function, Index ctas, int block_x, int block_y, int smem_bytes, const void** arguments,
    cudaStream_t stream, const Device& device)
{
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(unsigned(ctas));
    launch.blockDim = dim3(unsigned(block_x), unsigned(block_y));
    launch.dynamicSmemBytes = std::size_t(smem_bytes);
    launch.stream = stream;

    // It comes up while the kernel before it ends, and waits by itself before it touches memory.
    cudaLaunchAttribute pdl = {};
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
    launch.attrs = &pdl;
    launch.numAttrs = device.capability >= 90 ? 1 : 0;
    return status_of(cudaLaunchKernelExC(&launch, function, const_cast<void**>(arguments)));
}

// A product whose sizes are above 0 and fit in int, with all that was checked.
template <typename T>
struct Call {
    const T *A, *B;
    T* C;
    int lda, ldb, ldc, m, n, k;
    T alpha, beta;
    cudaStream_t stream;
};

// So much shared memory for a CTA that an SM holds no more of them than it has to: those that start while another
// kernel ends would crowd on the first SMs that are free.
int limited_smem(const Kernel& kernel, const Device& device, Index ctas)
{
    const Index each = device.capability >= 90 ? ceil_div(ctas, device.sm_count) : INT_MAX;
    if (!kernel.limited || each > 16) return kernel.dynamic_smem;
    const int just_fits = device.smem_per_sm / int(each + 1) - device.smem_reserved;  // one CTA more
    const int least = just_fits / 128 * 128 + 128;
    const int more = (least < device.smem_per_cta ? least : device.smem_per_cta) - kernel.static_smem;
    return more > kernel.dynamic_smem ? more : kernel.dynamic_smem;
}

struct alignas(64) TensorMap {
    std::uint64_t words[16];
};
using Encode = int (*)(
    void*, int, unsigned, const void*, const std::uint64_t*, const std::uint64_t*, const unsigned*, const unsigned*,
    int, int, int, int);
std::atomic<Encode> encoder{nullptr};  // cuTensorMapEncodeTiled, which is the driver's

int find_encoder()
{
    void* found = nullptr;
    cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &answer);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(
        "cuTensorMapEncodeTiled", &found, cudaEnableDefault, &answer);
#endif
    if (error != cudaSuccess) return status_of(error);
    if (answer != cudaDriverEntryPointSuccess) return BUNDLE_UNSUPPORTED_DEVICE;
    encoder.store(reinterpret_cast<Encode>(found), std::memory_order_release);
    return BUNDLE_SUCCESS;
}

// Describes the stored matrix X, `rows` rows of `cols` elements, to the TMA.
template <typename T>
int tensor_map(TensorMap* map, const T* X, Index ld, Index rows, Index cols, const Box& box)
{
    if (!encoder.load(std::memory_order_acquire)) {
        const int status = find_encoder();
        if (status != BUNDLE_SUCCESS) return status;
    }
    const std::uint64_t size[2] = {std::uint64_t(cols), std::uint64_t(rows)};
    const std::uint64_t pitch[1] = {std::uint64_t(ld) * sizeof(T)};
    const unsigned extent[2] = {box.cols, box.rows}, every[2] = {1, 1};
    const int type = sizeof(T) == 4 ? 7 : 8;     // CU_TENSOR_MAP_DATA_TYPE_FLOAT32 or _FLOAT64
    const int swizzle = box.swizzled ? 3 : 0;    // CU_TENSOR_MAP_SWIZZLE_128B or _NONE
    const int promotion = 2;                     // CU_TENSOR_MAP_L2_PROMOTION_L2_128B
    const int status = encoder.load(std::memory_order_relaxed)(
        map, type, 2, X, size, pitch, extent, every, 0, swizzle, promotion, 0);
    return status == 0 ? BUNDLE_SUCCESS : BUNDLE_CUDA_ERROR + int(cudaErrorInvalidValue);
}

// Queues the main kernel with `sums` and `counters` to add up in.
template <typename T>
int launch_main(
    const Kernel& kernel, const Device& device, Call<T> call, void* sums, unsigned* counters, const Product& product)
{
    const Index ctas = ctas_of(kernel, {call.m, call.n, call.k});
    const int status = allow_smem(kernel, device);
    if (status != BUNDLE_SUCCESS) return status;
    const void* arguments[16] = {
        &call.A, &call.lda, &call.B, &call.ldb, &call.C, &call.ldc, &call.m, &call.n, &call.k, &call.alpha, &call.beta};
    int count = 11;
    if (sums) {
        arguments[count++] = &sums;
        arguments[count++] = &counters;
    }
    if (kernel.stream_ctas) arguments[count++] = &kernel.stream_ctas;
    TensorMap map_a = {}, map_b = {};  // of nothing where neither is read
    if (kernel.tma) {
        if (call.k > 0 && !is_zero(call.alpha)) {
            const bool k_rows_a = product.trans_a || kernel.pack_a, k_rows_b = !product.trans_b || kernel.pack_b;
            const int known_a = tensor_map(
                &map_a, call.A, call.lda, k_rows_a ? call.k : call.m, k_rows_a ? call.m : call.k, kernel.box_a);
            if (known_a != BUNDLE_SUCCESS) return known_a;
            const int known_b = tensor_map(
                &map_b, call.B, call.ldb, k_rows_b ? call.k : call.n, k_rows_b ? call.n : call.k, kernel.box_b);
            if (known_b != BUNDLE_SUCCESS) return known_b;
        }
        arguments[count++] = &map_a;
        arguments[count++] = &map_b;
    }
    return start(
        kernel.function, ctas, kernel.block_x, kernel.block_y, limited_smem(kernel, device, ctas), arguments,
        call.stream, device);
}

// Copies operands to rows of k that are aligned, and has the call read the copies.
template <typename T>
int pack(const Kernel& kernel, const Device& device, Call<T>* call, char* copies)
{
    constexpr int TILE = 64;  // rows and columns that a CTA copies
    const int ld_a = int(packed_ld(call->m, sizeof(T))), ld_b = int(packed_ld(call->n, sizeof(T)));
    T *copy_a = reinterpret_cast<T*>(copies), *copy_b = copy_a;
    if (kernel.pack_a) copy_b += Index(ld_a) * call->k;
    const void* arguments[11] = {};
    int count = 0;
    Index ctas = 0;
    if (kernel.pack_a) {
        arguments[count++] = &call->A;
        arguments[count++] = &call->lda;
        arguments[count++] = &copy_a;
        arguments[count++] = &ld_a;
        ctas += ceil_div(ld_a, TILE) * ceil_div(call->k, TILE);
    }
    if (kernel.pack_b) {
        arguments[count++] = &call->B;
        arguments[count++] = &call->ldb;
        arguments[count++] = &copy_b;
        arguments[count++] = &ld_b;
        ctas += ceil_div(ld_b, TILE) * ceil_div(call->k, TILE);
    }
    if (ctas > INT_MAX) return BUNDLE_TOO_LARGE;
    for (const int* size : {&call->m, &call->n, &call->k}) arguments[count++] = size;
    const int status = start(kernel.preparation, ctas, 256, 1, 0, arguments, call->stream, device);
    if (kernel.pack_a) {
        call->A = copy_a;
        call->lda = ld_a;
    }
    if (kernel.pack_b) {
        call->B = copy_b;
        call->ldb = ld_b;
    }
    return status;
}

// A matrix, and the larger one to which it is copied, with zeros around it.
template <typename T>
struct Padded {
    const T* X = nullptr;
    int ld = 0, rows = 0, cols = 0;
    T* copy = nullptr;
    int copy_ld = 0, copy_rows = 0, copy_cols = 0;
};

// Copies one matrix or two.
template <typename T>
int copy_padded(
    const Kernel& kernel, const Device& device, Padded<T> x, Padded<T> y, cudaStream_t stream)
{
    const Index rows = x.copy_rows > y.copy_rows ? x.copy_rows : y.copy_rows;
    const Index ctas = ceil_div(rows, 8), most = 4096;
    const void* arguments[] = {
        &x.X, &x.ld, &x.rows, &x.cols, &x.copy, &x.copy_ld, &x.copy_rows, &x.copy_cols,
        &y.X, &y.ld, &y.rows, &y.cols, &y.copy, &y.copy_ld, &y.copy_rows, &y.copy_cols};
    return start(
        kernel.preparation, (ctas < most ? ctas : most) * (y.copy ? 2 : 1), 256, 1, 0, arguments, stream, device);
}

// The product by way of padded copies.
template <typename T>
int padded_product(
    const Kernel& kernel, const Product& product, const Device& device, const Call<T>& call, char* copies, void* sums,
    unsigned* counters)
{
    const bool reads_ab = call.k > 0 && !is_zero(call.alpha);
    const Sizes padded = padded_sizes(kernel, {call.m, call.n, reads_ab ? call.k : 0});
    const Sizes room = padded_sizes(kernel, {call.m, call.n, call.k});
    const int m = int(padded.m), n = int(padded.n), k = int(padded.k);
    Call<T> inner = call;
    T* const a = reinterpret_cast<T*>(copies);
    T* const b = reinterpret_cast<T*>(copies + whole_lines(room.m * room.k * Index(sizeof(T))));
    T* const c = reinterpret_cast<T*>(reinterpret_cast<char*>(b) + whole_lines(room.k * room.n * Index(sizeof(T))));
    inner.A = a, inner.B = b, inner.C = c;
    inner.m = m, inner.n = n, inner.k = k;
    inner.lda = product.trans_a ? m : k, inner.ldb = product.trans_b ? k : n, inner.ldc = n;
    int status = BUNDLE_SUCCESS;
    const auto copy = [&](const Padded<T>& x, const Padded<T>& y) {
        if (status == BUNDLE_SUCCESS) status = copy_padded(kernel, device, x, y, call.stream);
    };
    if (reads_ab) {
        Padded<T> x = {call.A, call.lda, call.m, call.k, a, inner.lda, m, k};
        Padded<T> y = {call.B, call.ldb, call.k, call.n, b, inner.ldb, k, n};
        if (product.trans_a) x = {call.A, call.lda, call.k, call.m, a, inner.lda, k, m};
        if (product.trans_b) y = {call.B, call.ldb, call.n, call.k, b, inner.ldb, n, k};
        copy(x, y);
    }
    if (!is_zero(call.beta)) copy({call.C, call.ldc, call.m, call.n, c, n, m, n}, {});
    if (status == BUNDLE_SUCCESS) status = launch_main(kernel, device, inner, sums, counters, product);
    copy({c, n, call.m, call.n, call.C, call.ldc, call.m, call.n}, {});
    return status;
}

// The product by one kernel, with all that goes before it.
template <typename T>
int multiply(
    const Kernel& kernel, const Product& product, const Device& device, Call<T> call, char* workspace,
    const Need& need)
{
    char* at = workspace + (need.total() ? COUNTER_BYTES : 0);
    unsigned* counters = reinterpret_cast<unsigned*>(workspace);
    if (need.counters) {  // more than there are at the begin: these are cleared by each call
        counters = reinterpret_cast<unsigned*>(at);
        const cudaError_t error = cudaMemsetAsync(counters, 0, need.counters, call.stream);
        if (error != cudaSuccess) return status_of(error);
        at += need.counters;
    }
    void* const sums = need.sums ? at : nullptr;
    char* const copies = at + need.sums;
    if (kernel.pads) return padded_product(kernel, product, device, call, copies, sums, counters);
    if ((kernel.pack_a || kernel.pack_b) && call.k > 0 && !is_zero(call.alpha)) {
        const int status = pack(kernel, device, &call, copies);
        if (status != BUNDLE_SUCCESS) return status;
    }
    return launch_main(kernel, device, call, sums, counters, product);
}

// ---- What the functions of the header do ---------------------------------------------------------------------------

// Whether sizes and leading dimensions make sense.
int sizes_status(const Product& product, const Sizes& sizes, Index lda, Index ldb, Index ldc)
{
    const auto [m, n, k] = sizes;
    if (m < 0 || n < 0 || k < 0) return BUNDLE_INVALID_SIZE;
    const Index width_a = product.trans_a ? m : k, width_b = product.trans_b ? k : n;
    if (lda < 1 || ldb < 1 || ldc < 1 || lda < width_a || ldb < width_b || ldc < n) return BUNDLE_INVALID_LD;
    for (const Index size : {m, n, k, lda, ldb, ldc}) {
        if (size > INT_MAX) return BUNDLE_TOO_LARGE;
    }
    return BUNDLE_SUCCESS;
}

int can_implement(const Product& product, const Sizes& sizes, Index lda, Index ldb, Index ldc)
{
    const int status = sizes_status(product, sizes, lda, ldb, ldc);
    if (status != BUNDLE_SUCCESS || sizes.m == 0 || sizes.n == 0) return status;
    return chosen(product, sizes) ? BUNDLE_SUCCESS : BUNDLE_TOO_LARGE;
}

// Bytes of a workspace for the kernel that a product gets.
std::size_t workspace_of(const Product& product, Index element, const Sizes& sizes)
{
    const auto [m, n, k] = sizes;
    if (m < 1 || n < 1 || k < 0 || m > INT_MAX || n > INT_MAX || k > INT_MAX) return 0;
    const Shape* const shape = chosen(product, sizes);
    if (!shape) return 0;
    return need_of(*shape->kernel, element, sizes).total();
}

template <typename T>
bool odd(const T* X) { return reinterpret_cast<std::uintptr_t>(X) % sizeof(T) != 0; }

template <typename T>
bool suits(int count, const T* X, Index ld, Index width)
{
    return reinterpret_cast<std::uintptr_t>(X) % (std::size_t(count) * sizeof(T)) == 0 && rows_suit(count, ld, width);
}

template <typename T>
int run(
    const Product& product, const T* A, Index lda, const T* B, Index ldb, T* C, Index ldc, Index m, Index n, Index k,
    T alpha, T beta, void* workspace, std::size_t workspace_bytes, cudaStream_t stream)
{
    const Device* device = nullptr;
    const Sizes sizes = {m, n, k};
    const int status = sizes_status(product, sizes, lda, ldb, ldc);
    if (status != BUNDLE_SUCCESS || m == 0 || n == 0) return status;
    const bool reads_ab = k > 0 && !is_zero(alpha);
    if (!C || (reads_ab && (!A || !B))) return BUNDLE_NULL_POINTER;
    if (odd(C) || (reads_ab && (odd(A) || odd(B)))) return BUNDLE_MISALIGNED;

    const auto lies_well = [&](const Kernel& kernel) {
        return suits(kernel.align_c, C, ldc, n)
            && (!reads_ab
                || (suits(kernel.align_a, A, lda, product.trans_a ? m : k)
                    && suits(kernel.align_b, B, ldb, product.trans_b ? k : n)))
            && serves(kernel, sizes);
    };
    const Shape* shape = chosen(product, sizes, lies_well);
    if (!shape) return BUNDLE_TOO_LARGE;
    // Where operands lie otherwise than workspace_of() takes for granted, another shape's kernel may need more.
    if (need_of(*shape->kernel, sizeof(T), sizes).total() > workspace_bytes
        && workspace_of(product, sizeof(T), sizes) <= workspace_bytes) {
        const Shape* const other = chosen(product, sizes, [&](const Kernel& kernel) {
            return lies_well(kernel) && need_of(kernel, sizeof(T), sizes).total() <= workspace_bytes;
        });
        if (other) shape = other;
    }
    const Kernel& kernel = *shape->kernel;
    const Need need = need_of(kernel, sizeof(T), sizes);
    if (need.total()) {
        if (workspace_bytes < need.total() || !workspace) return BUNDLE_WORKSPACE_TOO_SMALL;
        if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) return BUNDLE_MISALIGNED;
    }
    const int known = current_device(&device);
    if (known != BUNDLE_SUCCESS) return known;
    if (device->capability < 90) return BUNDLE_UNSUPPORTED_DEVICE;
    const Call<T> call = {
        A, B, C, int(lda), int(ldb), int(ldc), int(m), int(n), int(k), alpha, beta, stream};
    return multiply(kernel, product, *device, call, static_cast<char*>(workspace), need);
}

// Workspaces of the simple calls: one for each stream of a device.
struct Owned {
    int device;
    unsigned long long stream;
    char* memory;
    std::size_t bytes;
    Owned* next;
};
Owned* owned = nullptr;
Mutex owning;

// Calls `run` with the workspace of a stream, which grows in the order of the stream's work.
template <typename Run>
int with_workspace(std::size_t bytes, cudaStream_t stream, Run run)
{
    if (bytes == 0) return run(nullptr, std::size_t(0));
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(stream, &capture);
    if (error == cudaSuccess && capture != cudaStreamCaptureStatusNone) return BUNDLE_CAPTURING;
    int device = 0;
    if (error == cudaSuccess) error = cudaGetDevice(&device);
#if CUDART_VERSION >= 12000
    unsigned long long id = 0;
    if (error == cudaSuccess) error = cudaStreamGetId(stream, &id);
#else
    const unsigned long long id = reinterpret_cast<std::uintptr_t>(stream);
#endif
    if (error != cudaSuccess) return status_of(error);

    const Locked locked(owning);
    Owned* mine = owned;
    while (mine && (mine->device != device || mine->stream != id)) mine = mine->next;
    if (!mine) {
        mine = static_cast<Owned*>(std::malloc(sizeof(Owned)));
        if (!mine) return status_of(cudaErrorMemoryAllocation);
        *mine = {device, id, nullptr, 0, owned};
        owned = mine;
    }
    if (mine->bytes < bytes) {
        void* memory = nullptr;
        error = cudaMallocAsync(&memory, bytes, stream);
        if (error == cudaSuccess) error = cudaMemsetAsync(memory, 0, COUNTER_BYTES, stream);
        if (error != cudaSuccess) return status_of(error);
        if (mine->memory) error = cudaFreeAsync(mine->memory, stream);
        mine->memory = static_cast<char*>(memory);
        mine->bytes = bytes;
        if (error != cudaSuccess) return status_of(error);
    }
    return run(mine->memory, mine->bytes);  // under the lock: no other thread frees it meanwhile
}

int release_owned()
{
    const Locked locked(owning);
    cudaError_t error = cudaSuccess;
    while (owned) {
        Owned* const first = owned;
        const cudaError_t freed = first->memory ? cudaFree(first->memory) : cudaSuccess;
        if (error == cudaSuccess) error = freed;
        owned = first->next;
        std::free(first);
    }
    return status_of(error);
}

// Has the kernels of a product ready on a device, so that no call has to load or set anything.
int init_product(const Product& product, const Device& device)
{
    const auto load = [&](const void* function) {
        cudaFuncAttributes attributes;
        return status_of(cudaFuncGetAttributes(&attributes, function));
    };
    const auto init_kernel = [&](const Kernel& kernel) {
        int status = allow_smem(kernel, device);
        if (status == BUNDLE_SUCCESS && kernel.preparation) status = load(kernel.preparation);
        return status;
    };
    int status = init_kernel(*product.fallback->kernel);
    for (int i = 0; i < product.count && status == BUNDLE_SUCCESS; ++i) {
        status = init_kernel(*product.shapes[i].kernel);
    }
    return status;
}

int describe(const Product& product, const Sizes& sizes, Index element, bundle_description* description)
{
    if (!description) return BUNDLE_NULL_POINTER;
    *description = {};
    const auto [m, n, k] = sizes;
    const Index lda = product.trans_a ? m : k, ldb = product.trans_b ? k : n;
    const int status = can_implement(product, sizes, lda > 0 ? lda : 1, ldb > 0 ? ldb : 1, n > 0 ? n : 1);
    if (status != BUNDLE_SUCCESS || m == 0 || n == 0) return status;
    const Shape& shape = *chosen(product, sizes);
    const bool same = shape.m == m && shape.n == n && shape.k == k;
    description->kernel = shape.kernel->name;
    description->config = shape.kernel->config;
    description->origin = shape.origin;
    description->m = shape.m, description->n = shape.n, description->k = shape.k;
    description->recorded_us = same ? shape.recorded_us : 0;
    description->error_over_bound = same ? shape.error_over_bound : 0;
    description->workspace_bytes = workspace_of(product, element, sizes);
    return BUNDLE_SUCCESS;
}

}  // namespace
}  // namespace bundle_impl

// A bundle of the same name in another shared object of a program does not take the place of this one.
#ifdef __ELF__
#pragma GCC visibility push(protected)
#endif

extern "C" int bundle_init(void)
{
    using namespace bundle_impl;
    const Device* device = nullptr;
    int status = current_device(&device);
    if (status == BUNDLE_SUCCESS && device->capability < 90) status = BUNDLE_UNSUPPORTED_DEVICE;
    if (status == BUNDLE_SUCCESS) status = find_encoder();
    if (status == BUNDLE_SUCCESS) status = init_product(F32_NN, *device);
    return status;
}

extern "C" int bundle_release(void)
{
    return bundle_impl::release_owned();
}

extern "C" int bundle_workspace_init(void* workspace, size_t workspace_bytes, cudaStream_t stream)
{
    using namespace bundle_impl;
    if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) return BUNDLE_MISALIGNED;
    if (workspace_bytes && (!workspace || workspace_bytes < COUNTER_BYTES)) return BUNDLE_WORKSPACE_TOO_SMALL;
    return workspace_bytes ? status_of(cudaMemsetAsync(workspace, 0, COUNTER_BYTES, stream)) : BUNDLE_SUCCESS;
}

extern "C" const char* bundle_status_string(int status)
{
    switch (status) {
    case BUNDLE_SUCCESS: return "done, or queued";
    case BUNDLE_INVALID_SIZE: return "m, n or k is negative";
    case BUNDLE_INVALID_LD: return "lda, ldb or ldc is below 1 or the length of a stored row";
    case BUNDLE_NULL_POINTER: return "a matrix that would be read or written is null";
    case BUNDLE_MISALIGNED: return "a matrix does not begin at a whole element, or the workspace at 256 bytes";
    case BUNDLE_TOO_LARGE: return "a size or leading dimension is above 2^31 - 1, or there are too many tiles of C";
    case BUNDLE_WORKSPACE_TOO_SMALL: return "the workspace is smaller than the product needs";
    case BUNDLE_UNSUPPORTED_DEVICE: return "the kernels are for other architectures, or the driver lacks tensor maps";
    case BUNDLE_CAPTURING: return "this call needs a workspace: capture _run, which is given one";
    default:
        if (status <= BUNDLE_CUDA_ERROR) return "no such status";
        return cudaGetErrorString(cudaError_t(status - BUNDLE_CUDA_ERROR));
    }
}

extern "C" int bundle_can_implement(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc)
{
    return bundle_impl::can_implement(bundle_impl::F32_NN, {m, n, k}, lda, ldb, ldc);
}

extern "C" size_t bundle_workspace_size(int64_t m, int64_t n, int64_t k)
{
    return bundle_impl::workspace_of(bundle_impl::F32_NN, sizeof(float), {m, n, k});
}

extern "C" int bundle_run(
    const float* A, int64_t lda, const float* B, int64_t ldb, float* C, int64_t ldc, int64_t m, int64_t n, int64_t k,
    float alpha, float beta, void* workspace, size_t workspace_bytes, cudaStream_t stream)
{
    return bundle_impl::run(
        bundle_impl::F32_NN, A, lda, B, ldb, C, ldc, m, n, k, alpha, beta, workspace, workspace_bytes,
        stream);
}

extern "C" int bundle(
    const float* A, int64_t lda, const float* B, int64_t ldb, float* C, int64_t ldc, int64_t m, int64_t n, int64_t k,
    float alpha, float beta, cudaStream_t stream)
{
    const auto product = [&](void* workspace, std::size_t bytes) {
        return bundle_run(A, lda, B, ldb, C, ldc, m, n, k, alpha, beta, workspace, bytes, stream);
    };
    return bundle_impl::with_workspace(bundle_workspace_size(m, n, k), stream, product);
}

extern "C" int bundle_describe(int64_t m, int64_t n, int64_t k, bundle_description* description)
{
    return bundle_impl::describe(bundle_impl::F32_NN, {m, n, k}, sizeof(float), description);
}

#ifdef __ELF__
#pragma GCC visibility pop
#endif
