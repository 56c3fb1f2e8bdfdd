// bundle.cu: the functions that choose and launch kernels. bundle.h says how to call them.
//
// Written by tilewright, file digest 0048052683aaff6b. To write it with kernels that are looked up:
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
#include <thread>
#include <cuda_runtime.h>

namespace bundle_impl {
namespace {

const Shape f32_nn_shapes[] = {
    // m, n and k, kernel, origin, recorded microseconds and error over its bound
    {{65, 65, 65}, &naive_f32_nn_8x32x1_f553edf1_pad::row, "as given", 0, 0},
    {{128, 128, 128}, &simt_f32_nn_64x64x8_f08a66eb::row, "as given", 0, 0},
    {{257, 257, 257}, &simt_f32_nn_64x64x8_02d09e63::row, "as given", 0, 0},
    {{513, 513, 513}, &simt_f32_nn_64x64x8_79e77549::row, "as given", 0, 0},
    {{1028, 1028, 1028}, &simt_f32_nn_32x32x64_62a9c598::row, "as given", 0, 0},
    {{2049, 2049, 2049}, &simt_f32_nn_64x64x16_ffdbdea6::row, "as given", 0, 0},
};
const Shape f32_nn_general = {{}, &simt_f32_nn_64x64x8_f08a66eb::row_1, "general", 0, 0};
const Product f32_nn = {  // transposes, bytes of an element, capabilities, shapes, general kernel
    false, false, 4, 90, INT_MAX, f32_nn_shapes, 6, 8, &f32_nn_general, nullptr};

// ---- Devices and launches ------------------------------------------------------------------------------------------

constexpr int max_devices = 64;
constexpr Index ceil_div(Index size, Index step) { return (size + step - 1) / step; }
int status_of(cudaError_t error) { return error == cudaSuccess ? BUNDLE_SUCCESS : BUNDLE_CUDA_ERROR + int(error); }

// Attributes of a device, read once. Threads that read at the same time store the same values.
struct Device {
    std::atomic<int> sm_count{0}, smem_per_sm{0}, smem_per_cta{0}, smem_reserved{0}, capability{0};
};
Device devices[max_devices];

int current_device(const Device** current)
{
    int number = 0;
    cudaError_t error = cudaGetDevice(&number);
    if (error != cudaSuccess) return status_of(error);
    if (number >= max_devices) return BUNDLE_UNSUPPORTED_DEVICE;
    Device& device = devices[number];
    *current = &device;
    if (device.capability.load(std::memory_order_acquire)) return BUNDLE_SUCCESS;
    const auto ask = [&](cudaDeviceAttr attribute) {
        int value = 0;
        if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, attribute, number);
        return value;
    };
    device.sm_count = ask(cudaDevAttrMultiProcessorCount);
    device.smem_per_sm = ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    device.smem_per_cta = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    device.smem_reserved = ask(cudaDevAttrReservedSharedMemoryPerBlock);
    const int capability = 10 * ask(cudaDevAttrComputeCapabilityMajor) + ask(cudaDevAttrComputeCapabilityMinor);
    if (error == cudaSuccess) device.capability.store(capability, std::memory_order_release);
    return status_of(error);
}

// Loads a kernel, and lets it have as much shared memory as any launch may pass, once for each device: a limit that
// calls set as they need it could be lowered by one between another's setting and its launch.
int make_ready(const Kernel& kernel, const Device& device)
{
    const std::uint64_t bit = std::uint64_t(1) << (&device - devices);
    if (kernel.ready.load(std::memory_order_acquire) & bit) return BUNDLE_SUCCESS;
    cudaFuncAttributes facts;  // nvcc may declare more shared memory than the text, to align what a launch passes
    cudaError_t error = kernel.preparation ? cudaFuncGetAttributes(&facts, kernel.preparation) : cudaSuccess;
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&facts, kernel.function);
    if (kernel.pdl && facts.ptxVersion >= 90) kernel.waits.fetch_or(bit);  // code for older devices does not wait
    if (error == cudaSuccess && (kernel.dynamic_smem || kernel.spread)) {
        const int most = device.smem_per_cta - int(facts.sharedSizeBytes);
        error = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    }
    if (error == cudaSuccess) kernel.ready.fetch_or(bit, std::memory_order_release);
    return status_of(error);
}

// The products of a call, which kernels for batches get as their last argument.
struct alignas(64) Batch {
    unsigned count = 1, inner = 1;           // products, all of them along the inner dimension
    Index outer_step[7] = {}, step[7] = {};  // elements from a product's matrix to the next, for each pointer argument
    unsigned arrays = 0, pointers = 3;       // bits of pointers at arrays of addresses; pointers that have a step
};

// A product on its way to the device.
struct Call {
    const void* matrix[3] = {};  // A, B and C
    const void *alpha = nullptr, *beta = nullptr;  // one element each
    bool reads_ab = true, reads_c = true;
    cudaStream_t stream = nullptr;
    void* workspace = nullptr;
    std::size_t workspace_bytes = 0;
    int size[3] = {}, ld[3] = {}, width[3] = {};  // m, n, k; leading dimensions and elements of a row of A, B, C
    const Product* product = nullptr;
    const Device* device = nullptr;
    const Kernel* kernel = nullptr;   // the kernel that was chosen,
    Index ctas = 0, planes = 1, need = 0;  // its CTAs along x, along y and z, and its bytes of the workspace
    const void* more[8] = {};  // arguments of the kernel that follow alpha and beta, and what they point at:
    int count = 0;
    void *sums = nullptr, *counters = nullptr, *terms = nullptr;
    alignas(64) std::uint64_t map[2][16] = {};  // tensor maps of A and B
    Batch batch = {};
};

Index tiles_of(const Kernel& kernel, const Call& call)  // of C
{
    return ceil_div(call.size[0], kernel.tile[0]) * ceil_div(call.size[1], kernel.tile[1]);
}

// CTAs of a kernel for each product, or for all; 0 where there would be too many, or a counter of tiles would overflow.
Index ctas_of(const Kernel& kernel, const Call& call)
{
    if (kernel.products) return ceil_div(call.batch.count, kernel.products);
    const Index tiles = tiles_of(kernel, call), stream = kernel.stream_ctas;
    if (tiles > INT_MAX || (stream && tiles * ceil_div(call.size[2], kernel.tile[2]) > UINT_MAX)) return 0;
    const Index own = ceil_div(tiles, kernel.persistent_tiles) * kernel.split_ctas;
    const Index ctas = stream ? stream + tiles / stream * stream : own;
    return ctas <= INT_MAX ? ctas : 0;
}

// Bytes of shared memory to pass. CTAs that start while another kernel ends would crowd on the first SMs that are free:
// as much is passed as keeps one CTA more than there have to be off an SM.
int smem_of(const Kernel& kernel, const Device& device, Index ctas)
{
    if (!kernel.spread || device.capability < 90 || ctas > Index(16) * device.sm_count) return kernel.dynamic_smem;
    const int too_many = device.smem_per_sm / ((int(ctas) - 1) / device.sm_count + 2) - device.smem_reserved;
    const int least = too_many / 128 * 128 + 128, most = device.smem_per_cta;
    const int more = (least < most ? least : most) - kernel.static_smem;
    return more > kernel.dynamic_smem ? more : kernel.dynamic_smem;
}

int start(const Call& call, const void* function, Index ctas, dim3 block, int smem_bytes, const void** arguments)
{
    cudaLaunchAttribute pdl = {};  // the kernel starts while the one before it ends, and waits before it reads memory
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
    const bool uses_pdl = call.kernel->waits.load(std::memory_order_relaxed) >> (call.device - devices) & 1;
    const Index along_z = ceil_div(call.planes, 65535);
    const dim3 grid(unsigned(ctas), unsigned(ceil_div(call.planes, along_z)), unsigned(along_z));
    const cudaLaunchConfig_t launch = {grid, block, std::size_t(smem_bytes), call.stream, &pdl, uses_pdl ? 1u : 0u};
    return status_of(cudaLaunchKernelExC(&launch, function, const_cast<void**>(arguments)));
}

// Queues the kernel of a call alone.
int launch(const Call& call)
{
    const void* arguments[12 + sizeof call.more / sizeof *call.more] = {
        &call.matrix[0], &call.ld[0], &call.matrix[1], &call.ld[1], &call.matrix[2], &call.ld[2],
        &call.size[0], &call.size[1], &call.size[2], call.alpha, call.beta};
    for (int i = 0; i < call.count; ++i) arguments[11 + i] = call.more[i];
    arguments[11 + call.count] = &call.batch;  // where a kernel has this parameter
    const auto& [x, y] = call.kernel->block;
    const int smem_bytes = smem_of(*call.kernel, *call.device, call.ctas * call.planes);
    return start(call, call.kernel->function, call.ctas, {unsigned(x), unsigned(y)}, smem_bytes, arguments);
}

// ---- Steps of a launch ---------------------------------------------------------------------------------------------

constexpr Index counter_bytes = 16384;  // at the start of a workspace: 0 between two calls
constexpr Index round_up(Index size, Index step) { return ceil_div(size, step) * step; }

// A step that a kernel may need beyond its own launch.
struct Step {
    bool (*applies)(const Kernel&);
    Index (*bytes)(const Kernel&, const Call&);        // of the workspace for each product; -1 where it cannot
    int (*begin)(Call& call, char* memory);            // before the kernel, with that memory
    int (*end)(const Call& call, const Call& before);  // after it; `before` is the call as it was before all steps
};

// ---- Sums of split-K and stream-K ----------------------------------------------------------------------------------

Index counters_of(const Kernel& kernel, const Call& call)
{
    return kernel.stream_ctas ? kernel.stream_ctas : tiles_of(kernel, call);
}

// Bytes of counters that are more than a workspace has at its start: each call clears them.
Index cleared_bytes(const Kernel& kernel, const Call& call)
{
    const Index bytes = 4 * counters_of(kernel, call);
    return bytes > counter_bytes / call.batch.count ? round_up(bytes, 256) : 0;
}

Index sum_bytes(const Kernel& kernel, const Call& call)
{
    const Index tiles = counters_of(kernel, call) * (kernel.stream_ctas ? 2 : kernel.split_ctas);
    const Index tile_bytes = Index(kernel.tile[0]) * kernel.tile[1] * call.product->element;
    return cleared_bytes(kernel, call) + round_up(tiles * tile_bytes, 256);
}

int begin_sums(Call& call, char* memory)
{
    const Index cleared = cleared_bytes(*call.kernel, call);
    call.counters = cleared ? memory : call.workspace;
    call.sums = memory + cleared * call.batch.count;
    call.batch.step[call.batch.pointers++] = (sum_bytes(*call.kernel, call) - cleared) / call.product->element;
    call.batch.step[call.batch.pointers++] = cleared ? cleared / 4 : counters_of(*call.kernel, call);
    call.more[call.count++] = &call.sums;
    call.more[call.count++] = &call.counters;
    if (call.kernel->stream_ctas) call.more[call.count++] = &call.kernel->stream_ctas;
    if (!cleared) return BUNDLE_SUCCESS;
    return status_of(cudaMemsetAsync(call.counters, 0, std::size_t(cleared * call.batch.count), call.stream));
}

constexpr Step sum_step = {[](const Kernel& kernel) { return kernel.sums; }, sum_bytes, begin_sums, nullptr};

// ---- Padding -------------------------------------------------------------------------------------------------------

// A stored matrix, and the larger one to which it is copied, with zeros around it.
struct Padded {
    const void* matrix;
    int ld, rows, cols;
    const void* copy;
    int copy_ld, copy_rows, copy_cols;
    Index step, copy_step;  // elements from a product's to the next one's
    unsigned arrays;        // bits of the matrix and the copy, if they are arrays of addresses
};

// The larger sizes of m, n and k.
void pad_sizes(const Kernel& kernel, const Call& call, Index (&padded)[3])
{
    for (int i = 0; i < 3; ++i) padded[i] = round_up(call.size[i], kernel.multiple[i]);
}

Index padded_bytes(const Kernel& kernel, const Call& call)
{
    Index size[3];
    pad_sizes(kernel, call, size);
    const auto [m, n, k] = size;
    const Index element = call.product->element, most = INT_MAX / 8;
    if (m > most || n > most || k > most) return -1;
    return round_up(m * k * element, 256) + round_up(k * n * element, 256) + round_up(m * n * element, 256);
}

// Copies one matrix or two.
int copy_padded(const Call& call, const Padded& x, const Padded& y = {})
{
    const Index rows = x.copy_rows > y.copy_rows ? x.copy_rows : y.copy_rows;
    const Index all = ceil_div(rows, 8), ctas = all < 4096 ? all : 4096;
    const unsigned products = call.batch.count, arrays = x.arrays | y.arrays << 2;
    const Batch batch = {products, products, {}, {x.step, x.copy_step, y.step, y.copy_step}, arrays};
    const void* arguments[] = {
        &x.matrix, &x.ld, &x.rows, &x.cols, &x.copy, &x.copy_ld, &x.copy_rows, &x.copy_cols,
        &y.matrix, &y.ld, &y.rows, &y.cols, &y.copy, &y.copy_ld, &y.copy_rows, &y.copy_cols, &batch};
    return start(call, call.kernel->preparation, y.copy ? 2 * ctas : ctas, 256, 0, arguments);
}

int begin_padding(Call& call, char* memory)
{
    const Call before = call;
    const bool trans[2] = {call.product->trans_a, call.product->trans_b};
    Index padded[3];
    pad_sizes(*call.kernel, call, padded);
    const Index own = padded_bytes(*call.kernel, call) / call.product->element;
    for (int i = 0; i < 3; ++i) call.batch.step[i] = own;
    call.batch.arrays = 0;
    for (int i = 0; i < 3; ++i) call.size[i] = int(padded[i]);
    Padded operand[2];
    for (int i = 0; i < 2; ++i) {  // A, stored m x k or transposed, and B, stored k x n or transposed
        const int row = trans[i] == (i == 0) ? 2 : i, col = row == 2 ? i : 2;
        call.matrix[i] = memory;
        call.ld[i] = call.size[col];
        operand[i] = {
            before.matrix[i], before.ld[i], before.size[row], before.size[col], memory, call.ld[i], call.size[row],
            call.size[col], before.batch.step[i], own, before.batch.arrays >> i & 1};
        memory += round_up(padded[row] * padded[col] * call.product->element, 256);
    }
    call.matrix[2] = memory;
    call.ld[2] = call.size[1];
    const auto [m, n, k] = before.size;
    int status = BUNDLE_SUCCESS;
    if (call.reads_ab) status = copy_padded(call, operand[0], operand[1]);
    else call.size[2] = 0;
    if (call.reads_c && status == BUNDLE_SUCCESS) {
        status = copy_padded(
            call, {before.matrix[2], before.ld[2], m, n, call.matrix[2], call.ld[2], call.size[0], call.size[1],
                   before.batch.step[2], own, before.batch.arrays >> 2});
    }
    return status;
}

int end_padding(const Call& call, const Call& before)
{
    const auto [m, n, k] = before.size;
    return copy_padded(
        call, {call.matrix[2], call.ld[2], m, n, before.matrix[2], before.ld[2], m, n, call.batch.step[2],
               before.batch.step[2], before.batch.arrays >> 2 << 1});
}

constexpr Step pad_step = {[](const Kernel& kernel) { return kernel.pads; }, padded_bytes, begin_padding, end_padding};

// ---- Packing -------------------------------------------------------------------------------------------------------

// Elements from row to row of a packed operand: rows begin at multiples of 128 bytes.
Index packed_ld(Index extent, Index element) { return round_up(extent * element, 128) / element; }

Index packed_bytes(const Kernel& kernel, const Call& call)
{
    Index bytes = 0;
    for (int i = 0; i < 2; ++i) {  // A has rows of m elements, B of n
        if (!kernel.packs[i]) continue;
        if (call.size[i] > INT_MAX - 128) return -1;
        const Index column = packed_ld(call.size[i], call.product->element) * call.product->element;
        if (column > LLONG_MAX / 4 / (call.size[2] + 1)) return -1;
        bytes += column * call.size[2];
    }
    return bytes;
}

int begin_packing(Call& call, char* memory)
{
    if (!call.reads_ab) return BUNDLE_SUCCESS;
    constexpr int tile = 64;  // rows and columns that a CTA copies
    const Call before = call;
    const Index own = packed_bytes(*call.kernel, call) / call.product->element;
    Batch batch = {call.batch.count, call.batch.count};
    const void* arguments[12] = {};
    int count = 0;
    Index ctas = 0;
    for (int i = 0; i < 2; ++i) {
        if (!call.kernel->packs[i]) continue;
        const Index ld = packed_ld(call.size[i], call.product->element);
        call.matrix[i] = memory;
        call.ld[i] = int(ld);
        arguments[count++] = &before.matrix[i];
        arguments[count++] = &before.ld[i];
        arguments[count++] = &call.matrix[i];
        arguments[count++] = &call.ld[i];
        if (call.batch.arrays >> i & 1) batch.arrays |= 1u << (count / 2 - 2), call.batch.arrays ^= 1u << i;
        batch.step[count / 2 - 2] = call.batch.step[i];
        batch.step[count / 2 - 1] = call.batch.step[i] = own;
        memory += ld * call.size[2] * call.product->element;
        ctas += ceil_div(ld, tile) * ceil_div(call.size[2], tile);
    }
    for (const int& size : call.size) arguments[count++] = &size;
    arguments[count] = &batch;
    if (ctas > INT_MAX) return BUNDLE_TOO_LARGE;
    return start(call, call.kernel->preparation, ctas, 256, 0, arguments);
}

constexpr Step pack_step = {
    [](const Kernel& kernel) { return kernel.packs[0] || kernel.packs[1]; }, packed_bytes, begin_packing, nullptr};

// ---- TMA -----------------------------------------------------------------------------------------------------------

using Encode = int (*)(
    void*, int, unsigned, const void*, const std::uint64_t*, const std::uint64_t*, const unsigned*, const unsigned*,
    int, int, int, int);
std::atomic<Encode> encoder{nullptr};  // cuTensorMapEncodeTiled, which is the driver's

int find_encoder()
{
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &answer);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(
        "cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &answer);
#endif
    if (error != cudaSuccess) return status_of(error);
    if (answer != cudaDriverEntryPointSuccess) return BUNDLE_UNSUPPORTED_DEVICE;
    encoder.store(reinterpret_cast<Encode>(entry), std::memory_order_release);
    return BUNDLE_SUCCESS;
}

int begin_tma(Call& call, char*)
{
    for (const auto& map : call.map) call.more[call.count++] = &map;
    if (!call.reads_ab) return BUNDLE_SUCCESS;
    const int status = encoder.load(std::memory_order_acquire) ? BUNDLE_SUCCESS : find_encoder();
    if (status != BUNDLE_SUCCESS) return status;
    const bool along_k[2] = {!call.product->trans_a, call.product->trans_b};
    const int element = call.product->element;
    const int type = element == 4 ? 7 : 8;  // CU_TENSOR_MAP_DATA_TYPE_FLOAT32 or _FLOAT64
    for (int i = 0; i < 2; ++i) {
        const auto& [box_rows, box_cols] = call.kernel->box[i];
        const bool runs_along_k = along_k[i] && !call.kernel->packs[i];  // a row of a packed operand is one step of k
        const std::uint64_t extent = std::uint64_t(call.size[i]), depth = std::uint64_t(call.size[2]);
        const std::uint64_t size[2] = {runs_along_k ? depth : extent, runs_along_k ? extent : depth};
        const std::uint64_t pitch[1] = {std::uint64_t(call.ld[i]) * unsigned(element)};
        const unsigned corner[2] = {box_cols, box_rows}, every[2] = {1, 1};
        const int swizzle = int(call.kernel->swizzle[i]), promotion = 2;  // CU_TENSOR_MAP_L2_PROMOTION_L2_128B
        const int error = encoder.load(std::memory_order_relaxed)(
            call.map[i], type, 2, call.matrix[i], size, pitch, corner, every, 0, swizzle, promotion, 0);
        if (error) return BUNDLE_CUDA_ERROR + int(cudaErrorInvalidValue);
    }
    return BUNDLE_SUCCESS;
}

constexpr Step tma_step = {[](const Kernel& kernel) { return kernel.box[0][0] > 0; }, nullptr, begin_tma, nullptr};

const Step* const steps[] = {&sum_step, &pad_step, &pack_step, &tma_step};

// Bytes of the workspace that the steps of a kernel need; -1 where one cannot do the sizes.
Index bytes_of_steps(const Kernel& kernel, const Call& call)
{
    Index bytes = 0;
    for (const Step* step : steps) {
        if (!step->bytes || !step->applies(kernel)) continue;
        const Index own = step->bytes(kernel, call);
        if (own < 0 || own > LLONG_MAX / 4 / call.batch.count) return -1;
        bytes += own * call.batch.count;
    }
    return bytes ? counter_bytes + bytes : 0;
}

// Queues the kernel of a call with its steps.
int launch_with_steps(Call& call)
{
    const Call before = call;
    char* memory = static_cast<char*>(call.workspace) + (call.need ? counter_bytes : 0);
    for (const Step* step : steps) {
        if (!step->applies(*call.kernel)) continue;
        const int status = step->begin(call, memory);
        if (status != BUNDLE_SUCCESS) return status;
        if (step->bytes) memory += step->bytes(*call.kernel, before) * call.batch.count;
    }
    int status = launch(call);
    for (const Step* step : steps) {
        if (status == BUNDLE_SUCCESS && step->end && step->applies(*call.kernel)) status = step->end(call, before);
    }
    return status;
}

// ---- Products ------------------------------------------------------------------------------------------------------

// Whether a kernel can compute a product, as its operands lie, with at most so many bytes of a workspace: then the call
// gets it.
bool suits(const Kernel& kernel, Call& call, Index most_bytes = LLONG_MAX)
{
    for (int i = call.reads_ab ? 0 : 2; i < 3; ++i) {
        const auto address = reinterpret_cast<std::uintptr_t>(call.matrix[i]);
        const int align = kernel.align[i];  // a power of two
        if (address & unsigned(align * call.product->element - 1)) return false;
        const Index ld = call.ld[i], width = call.width[i], step = call.batch.arrays ? -1 : call.batch.step[i];
        const bool gaps = ld != width || (step != kernel.only_step[i] && (step || call.batch.count > 1));
        if (kernel.only_step[i] ? ld && gaps : (ld | width | step) & (align - 1)) return false;  // -1 fits no vector
    }
    for (int i = 0; i < 3 && !kernel.pads; ++i) {
        if (kernel.only[i] ? call.size[i] != kernel.only[i] : call.size[i] % kernel.multiple[i] != 0) return false;
    }
    const Index ctas = ctas_of(kernel, call), bytes = ctas ? bytes_of_steps(kernel, call) : -1;
    if (bytes < 0 || bytes > most_bytes) return false;
    call.kernel = &kernel, call.ctas = ctas, call.need = bytes, call.planes = kernel.products ? 1 : call.batch.count;
    return true;
}

// Gives a call the current device and its products: those of the latest architecture that serves it.
int find_product(Call& call, const Product& newest)
{
    if (const int status = current_device(&call.device); status != BUNDLE_SUCCESS) return status;
    const int capability = call.device->capability;
    const Product*& product = call.product = &newest;
    while (product && (capability < product->first || product->last < capability)) product = product->older;
    return product ? BUNDLE_SUCCESS : BUNDLE_UNSUPPORTED_DEVICE;
}

// Puts m, n and k into a call, and lda, ldb and ldc if they are given, where they make sense.
int take_sizes(Call& call, const Product& product, const Sizes& sizes, const Index* lds)
{
    const auto& [m, n, k] = sizes;
    if (m < 0 || n < 0 || k < 0) return BUNDLE_INVALID_SIZE;
    const Index widths[3] = {product.trans_a ? m : k, product.trans_b ? k : n, n};
    for (int i = 0; i < 3; ++i) {
        if (lds && (lds[i] < 1 || lds[i] < widths[i])) return BUNDLE_INVALID_LD;
        if (sizes[i] > INT_MAX || (lds && lds[i] > INT_MAX)) return BUNDLE_TOO_LARGE;
        call.size[i] = int(sizes[i]), call.width[i] = int(widths[i]), call.ld[i] = lds ? int(lds[i]) : 0;
    }
    call.product = &product;
    return BUNDLE_SUCCESS;
}

// The shape whose kernel computes a product, which the call gets: the shape itself, else the nearest, by the ratios of
// m, n and k, else the general one; null where no kernel suits.
const Shape* choose(Call& call, Index most_bytes = LLONG_MAX)
{
    const Product& product = *call.product;
    const Shape* const end = product.shapes + product.count;
    const auto [m, n, k] = call.size;
    for (const Shape* shape = product.shapes; shape < end; ++shape) {
        const bool same = shape->size[0] == m && shape->size[1] == n && shape->size[2] == k;
        if (same && suits(*shape->kernel, call, most_bytes)) return shape;
    }
    const Shape* best = nullptr;
    float least = INFINITY;
    for (const Shape* shape = product.shapes; shape < end; ++shape) {
        float ratios = 1, largest = 0;
        for (int i = 0; i < 3; ++i) {
            const float x = float(shape->size[i]), y = call.size[i] ? float(call.size[i]) : 0.5f;
            const float ratio = x > y ? x / y : y / x;
            ratios *= ratio;
            largest = ratio > largest ? ratio : largest;
        }
        if (ratios >= least || (product.reach && largest > float(product.reach))) continue;
        if (suits(*shape->kernel, call, most_bytes)) least = ratios, best = shape;
    }
    if (!best && product.general && suits(*product.general->kernel, call, most_bytes)) best = product.general;
    return best;
}

// ---- Workspaces ----------------------------------------------------------------------------------------------------

Index room_of(std::size_t bytes) { return bytes < std::size_t(LLONG_MAX) ? Index(bytes) : LLONG_MAX; }

// Bytes of a workspace for the kernel that a product gets on any device, and for the general one, which it gets where
// its operands lie otherwise.
std::size_t workspace_size(const Product& newest, const Sizes& sizes, unsigned products = 1)
{
    Call call;
    call.batch.count = products;
    Index most = 0;
    if (take_sizes(call, newest, sizes, nullptr) != BUNDLE_SUCCESS || !sizes[0] || !sizes[1]) return 0;
    for (; call.product; call.product = call.product->older) {
        if (choose(call) && call.need > most) most = call.need;
        if (call.product->general && suits(*call.product->general->kernel, call) && call.need > most) most = call.need;
    }
    return std::size_t(most);
}

int workspace_init(void* workspace, std::size_t bytes, cudaStream_t stream)
{
    if (reinterpret_cast<std::uintptr_t>(workspace) % 256) return BUNDLE_MISALIGNED;
    if (!bytes || !counter_bytes) return BUNDLE_SUCCESS;
    if (!workspace || room_of(bytes) < counter_bytes) return BUNDLE_WORKSPACE_TOO_SMALL;
    return status_of(cudaMemsetAsync(workspace, 0, std::size_t(counter_bytes), stream));
}

// Checks whether a call has the workspace that its kernel needs. Operands that are not aligned may have got a kernel
// that needs more than workspace_size(): they get another, so that no workspace's size decides the bits of a result.
int check_workspace(Call& call, const Product& newest)
{
    const Index room = room_of(call.workspace_bytes);
    const auto [m, n, k] = call.size;
    std::uintptr_t bits = call.batch.arrays;  // where such matrices lie is unknown here
    for (int i = 0; i < 3; ++i) bits |= std::uintptr_t(call.ld[i] | call.batch.step[i]) * unsigned(newest.element);
    for (const void* matrix : call.matrix) bits |= reinterpret_cast<std::uintptr_t>(matrix);
    if (call.need && bits % 16) choose(call, Index(workspace_size(newest, {m, n, k}, call.batch.count)));
    if (call.need && (call.need > room || !call.workspace)) return BUNDLE_WORKSPACE_TOO_SMALL;
    if (call.need && reinterpret_cast<std::uintptr_t>(call.workspace) % 256) return BUNDLE_MISALIGNED;
    return BUNDLE_SUCCESS;
}

// The workspace of a stream, which simple calls keep.
struct StreamWorkspace {
    int device;
    unsigned long long stream;
    void* memory;
    Index bytes;
    StreamWorkspace* next;
};
StreamWorkspace* stream_workspaces = nullptr;
std::atomic<bool> workspaces_in_use{false};

// A lock that needs no C++ runtime, which programs in C and Fortran do not link.
struct Lock {
    Lock() { while (workspaces_in_use.exchange(true, std::memory_order_acquire)) std::this_thread::yield(); }
    ~Lock() { workspaces_in_use.store(false, std::memory_order_release); }
};

int run(const Product& newest, const Sizes& sizes, const Sizes& lds, Call call);

// Runs a product with the workspace of its stream, which grows in the order of the stream's work.
int run_simple(const Product& newest, const Sizes& sizes, const Sizes& lds, Call call)
{
    const int sizes_status = take_sizes(call, newest, sizes, lds);
    const Index bytes = Index(workspace_size(newest, sizes));
    if (sizes_status != BUNDLE_SUCCESS || bytes == 0) return run(newest, sizes, lds, call);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(call.stream, &capture);
    if (error == cudaSuccess && capture != cudaStreamCaptureStatusNone) return BUNDLE_CAPTURING;
    int device = 0;
    if (error == cudaSuccess) error = cudaGetDevice(&device);
#if CUDART_VERSION >= 12000
    unsigned long long id = 0;
    if (error == cudaSuccess) error = cudaStreamGetId(call.stream, &id);
#else
    const unsigned long long id = reinterpret_cast<std::uintptr_t>(call.stream);
#endif
    if (error != cudaSuccess) return status_of(error);

    const Lock lock;
    StreamWorkspace* own = stream_workspaces;
    while (own && (own->device != device || own->stream != id)) own = own->next;
    if (!own) {
        own = static_cast<StreamWorkspace*>(std::malloc(sizeof(StreamWorkspace)));
        if (!own) return status_of(cudaErrorMemoryAllocation);
        *own = {device, id, nullptr, 0, stream_workspaces};
        stream_workspaces = own;
    }
    if (own->bytes < bytes) {
        void* memory = nullptr;
        error = cudaMallocAsync(&memory, std::size_t(bytes), call.stream);
        if (error != cudaSuccess) return status_of(error);
        const int status = workspace_init(memory, std::size_t(bytes), call.stream);
        if (status != BUNDLE_SUCCESS) return cudaFreeAsync(memory, call.stream), status;
        if (own->memory) error = cudaFreeAsync(own->memory, call.stream);
        own->memory = memory, own->bytes = bytes;
        if (error != cudaSuccess) return status_of(error);
    }
    call.workspace = own->memory, call.workspace_bytes = std::size_t(own->bytes);
    return run(newest, sizes, lds, call);  // under the lock: no other thread frees the memory meanwhile
}

int release()
{
    const Lock lock;
    cudaError_t error = cudaSuccess;
    while (stream_workspaces) {
        StreamWorkspace* const first = stream_workspaces;
        if (const cudaError_t freed = cudaFree(first->memory)) error = freed;  // nothing where that is null
        stream_workspaces = first->next;
        std::free(first);
    }
    return status_of(error);
}

// ---- Functions of the header ---------------------------------------------------------------------------------------

int can_implement(const Product& product, const Sizes& sizes, const Sizes& lds)
{
    Call call;
    const int status = take_sizes(call, product, sizes, lds);
    if (status != BUNDLE_SUCCESS || !sizes[0] || !sizes[1]) return status;
    for (int& ld : call.ld) ld = 0;  // as any vector wants them
    while (call.product && !choose(call)) call.product = call.product->older;
    return call.product ? BUNDLE_SUCCESS : BUNDLE_TOO_LARGE;
}

int run(const Product& newest, const Sizes& sizes, const Sizes& lds, Call call)
{
    int status = take_sizes(call, newest, sizes, lds);
    if (status != BUNDLE_SUCCESS || !sizes[0] || !sizes[1]) return status;
    call.reads_ab = call.reads_ab && sizes[2] > 0;
    const auto& [a, b, c] = call.matrix;
    if (!c || (call.reads_ab && (!a || !b))) return BUNDLE_NULL_POINTER;
    const auto odd = [&](const void* x) { return reinterpret_cast<std::uintptr_t>(x) % unsigned(newest.element) != 0; };
    if (odd(c) || (call.reads_ab && (odd(a) || odd(b)))) return BUNDLE_MISALIGNED;
    status = find_product(call, newest);
    if (status != BUNDLE_SUCCESS) return status;
    if (!choose(call)) return BUNDLE_TOO_LARGE;
    status = check_workspace(call, newest);
    if (status == BUNDLE_SUCCESS) status = make_ready(*call.kernel, *call.device);
    return status == BUNDLE_SUCCESS ? launch_with_steps(call) : status;
}

// Makes the kernels of a product ready on the current device, so that no call has to load or set anything.
int init(const Product& newest)
{
    Call call;
    int status = find_product(call, newest);
    const Shape* const general = status == BUNDLE_SUCCESS ? call.product->general : nullptr;
    if (general) status = make_ready(*general->kernel, *call.device);
    for (int i = 0; status == BUNDLE_SUCCESS && i < call.product->count; ++i) {
        status = make_ready(*call.product->shapes[i].kernel, *call.device);
    }
    return status;
}

int describe(const Product& newest, const Sizes& sizes, bundle_description* description)
{
    if (!description) return BUNDLE_NULL_POINTER;
    *description = {};
    Call call;
    int status = take_sizes(call, newest, sizes, nullptr);
    if (status == BUNDLE_SUCCESS && newest.older) status = find_product(call, newest);
    if (status != BUNDLE_SUCCESS || !sizes[0] || !sizes[1]) return status;
    const Shape* const shape = choose(call);
    if (!shape) return BUNDLE_TOO_LARGE;
    const auto [m, n, k] = shape->size;
    const bool same = m == sizes[0] && n == sizes[1] && k == sizes[2];
    *description = {
        shape->kernel->name, shape->kernel->config, shape->origin, m, n, k, same ? shape->recorded_us : 0,
        same ? shape->error_over_bound : 0, workspace_size(newest, sizes)};
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
    int status = bundle_impl::init(bundle_impl::f32_nn);
    return status;
}

extern "C" int bundle_release(void) { return bundle_impl::release(); }

extern "C" int bundle_workspace_init(void* workspace, size_t workspace_bytes, cudaStream_t stream)
{
    return bundle_impl::workspace_init(workspace, workspace_bytes, stream);
}

extern "C" const char* bundle_status_string(int status)
{
    switch (status) {
    case BUNDLE_SUCCESS: return "done, or queued";
    case BUNDLE_INVALID_SIZE: return "a size or count is negative";
    case BUNDLE_INVALID_LD: return "lda, ldb or ldc is below 1 or the length of a stored row";
    case BUNDLE_NULL_POINTER: return "a matrix that would be read or written, or a description, is null";
    case BUNDLE_MISALIGNED: return "a matrix does not begin at a whole element, or the workspace at 256 bytes";
    case BUNDLE_TOO_LARGE: return "a size or leading dimension is above 2^31 - 1, or there are too many tiles of C";
    case BUNDLE_WORKSPACE_TOO_SMALL: return "the workspace is smaller than the product needs";
    case BUNDLE_UNSUPPORTED_DEVICE: return "the kernels are for other architectures, or the driver lacks tensor maps";
    case BUNDLE_CAPTURING: return "this call needs a workspace: capture _run, which is given one";
    }
    if (status <= BUNDLE_CUDA_ERROR || status > BUNDLE_CUDA_ERROR + 65535) return "no such status";
    return cudaGetErrorString(cudaError_t(status - BUNDLE_CUDA_ERROR));
}

extern "C" int bundle_can_implement(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc)
{
    return bundle_impl::can_implement(bundle_impl::f32_nn, {m, n, k}, {lda, ldb, ldc});
}

extern "C" size_t bundle_workspace_size(int64_t m, int64_t n, int64_t k)
{
    return bundle_impl::workspace_size(bundle_impl::f32_nn, {m, n, k});
}

extern "C" int bundle_run(
    const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t m, int64_t n, int64_t k,
    float alpha, float beta, void* workspace, size_t workspace_bytes, cudaStream_t stream)
{
    return bundle_impl::run(
        bundle_impl::f32_nn, {m, n, k}, {lda, ldb, ldc},
        {{a, b, c}, &alpha, &beta, std::fpclassify(alpha) != FP_ZERO, std::fpclassify(beta) != FP_ZERO, stream,
         workspace, workspace_bytes});
}

extern "C" int bundle(
    const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t m, int64_t n, int64_t k,
    float alpha, float beta, cudaStream_t stream)
{
    return bundle_impl::run_simple(
        bundle_impl::f32_nn, {m, n, k}, {lda, ldb, ldc},
        {{a, b, c}, &alpha, &beta, std::fpclassify(alpha) != FP_ZERO, std::fpclassify(beta) != FP_ZERO, stream});
}

extern "C" int bundle_describe(int64_t m, int64_t n, int64_t k, bundle_description* description)
{
    return bundle_impl::describe(bundle_impl::f32_nn, {m, n, k}, description);
}

#ifdef __ELF__
#pragma GCC visibility pop
#endif
