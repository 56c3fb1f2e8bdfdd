// A CUDA runtime for emitted files on a machine without a GPU. Kernels run on the processor when they are launched, so
// that streams are in order, and graphs are lists of work. A call that is not allowed while a stream is captured is an
// error. There are two devices. Allocated memory is filled with NaN. `fake::calls` counts calls by name.
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda_on_host.h"

#define CUDART_VERSION 13000

enum cudaError_t {
    cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100, cudaErrorLaunchFailure = 719, cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901
};
enum cudaDeviceAttr {
    cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor, cudaDevAttrMultiProcessorCount,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor, cudaDevAttrReservedSharedMemoryPerBlock,
    cudaDevAttrMaxSharedMemoryPerBlockOptin
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };
constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned long long cudaEnableDefault = 0;

struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct { int programmaticStreamSerializationAllowed; } val;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    unsigned numAttrs;
};
struct cudaFuncAttributes { int numRegs, ptxVersion; size_t sharedSizeBytes; };
struct cudaDeviceProp { char name[64]; int l2CacheSize; };

namespace fake {

inline std::map<std::string, long> calls;
inline std::recursive_mutex lock;  // one call at a time, kernels included
inline thread_local int device = 0;
inline int capability = 90, devices = 2, sm_count = 4;
inline long allocated = 0;  // allocations that were not freed
inline std::map<std::tuple<int, const void*>, int> allowed_smem;
inline std::map<std::tuple<int, const void*>, bool> loaded;  // by the first use, which must not be captured
constexpr int smem_per_cta = 232448;
inline int static_smem = 42496;  // of every kernel; nvcc may round up what a kernel declares

using Work = std::function<const char*()>;
struct Graph { std::vector<Work> work; };

}  // namespace fake

struct CUstream_st {
    unsigned long long id;
    fake::Graph* capturing;
};
using cudaGraph_t = fake::Graph*;
using cudaGraphExec_t = fake::Graph*;
using cudaGraphNode_t = int;
struct Event { std::chrono::steady_clock::time_point at; };
using cudaEvent_t = Event*;

namespace fake {

inline unsigned long long next_id = 1;
inline std::map<int, CUstream_st> null_streams;

struct Guard {
    std::lock_guard<std::recursive_mutex> held{lock};
    explicit Guard(const char* name) { ++calls[name]; }
};
inline CUstream_st& of(cudaStream_t stream)
{
    if (stream) return *stream;
    CUstream_st& null_stream = null_streams[device];
    if (!null_stream.id) null_stream.id = 1000 + device;
    return null_stream;
}

// Puts work on a stream: into the graph that is captured, else it is done at once.
inline cudaError_t put(cudaStream_t stream, Work work)
{
    if (Graph* graph = of(stream).capturing) {
        graph->work.push_back(std::move(work));
        return cudaSuccess;
    }
    const char* error = work();
    if (error) fprintf(stderr, "%s\n", error);
    return error ? cudaErrorLaunchFailure : cudaSuccess;
}

inline uint64_t launches = 0;

// Address space for the threads of the largest cluster; pages that no thread touches take no memory.
inline char* threads_memory()
{
    constexpr size_t threads = tilewright_host::MAX_THREADS * tilewright_host::MAX_CLUSTER;
    static void* const memory = mmap(nullptr, threads * tilewright_host::STRIDE, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    return static_cast<char*>(memory);
}

// A registered kernel. `prepare` copies the arguments of a launch and returns the work that runs the kernel on them.
struct Registered {
    unsigned cluster;
    std::function<Work(const cudaLaunchConfig_t&, void**)> prepare;
};
inline std::map<const void*, Registered> kernels;

template <auto kernel, unsigned cluster, class... Ts>
void add(void (*)(Ts...))
{
    using Entry = tilewright_host::Entry<kernel, cluster, void (*)(Ts...)>;
    kernels[reinterpret_cast<const void*>(kernel)] = {
        cluster, [](const cudaLaunchConfig_t& config, void** arguments) -> Work {
            auto copied = [&]<size_t... I>(std::index_sequence<I...>) {
                return std::make_shared<std::tuple<Ts...>>(*static_cast<Ts*>(arguments[I])...);
            }(std::index_sequence_for<Ts...>());
            tilewright_host::Launch launch = {
                {config.gridDim.x, config.gridDim.y, config.gridDim.z},
                {config.blockDim.x, config.blockDim.y, config.blockDim.z}, config.dynamicSmemBytes, nullptr, 0};
            return [copied, launch]() mutable -> const char* {
                launch.memory = threads_memory();
                launch.number = ++launches;
                void* pointers[sizeof...(Ts)];
                [&]<size_t... I>(std::index_sequence<I...>) {
                    ((pointers[I] = &std::get<I>(*copied)), ...);
                }(std::index_sequence_for<Ts...>());
                return tilewright_host::run(launch, cluster, Entry::call, pointers);
            };
        }};
}
// The macro is variadic because the name of a template's instance may have commas.
#define FAKE_KERNEL(cluster, ...) fake::add<__VA_ARGS__, cluster>(&__VA_ARGS__);

}  // namespace fake

inline const char* cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : error ? "an error" : "no error";
}
inline cudaError_t cudaGetDeviceCount(int* count)
{
    fake::Guard guard("cudaGetDeviceCount");
    *count = fake::devices;
    return fake::devices ? cudaSuccess : cudaErrorNoDevice;
}
inline cudaError_t cudaGetDevice(int* device)
{
    fake::Guard guard("cudaGetDevice");
    *device = fake::device;
    return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device)
{
    fake::Guard guard("cudaSetDevice");
    if (device >= fake::devices) return cudaErrorInvalidValue;
    fake::device = device;
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int)
{
    fake::Guard guard("cudaGetDeviceProperties");
    strcpy(properties->name, "fake");
    properties->l2CacheSize = 1 << 16;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int)
{
    fake::Guard guard("cudaDeviceGetAttribute");
    const int values[] = {fake::capability / 10, fake::capability % 10, fake::sm_count, 233472, 1024, fake::smem_per_cta};
    *value = values[attribute];
    return cudaSuccess;
}
inline cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int value)
{
    fake::Guard guard("cudaFuncSetAttribute");
    if (!fake::kernels.count(function)) return cudaErrorInvalidDeviceFunction;
    if (value > fake::smem_per_cta - fake::static_smem) return cudaErrorInvalidValue;
    fake::allowed_smem[{fake::device, function}] = value;
    return cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function)
{
    fake::Guard guard("cudaFuncGetAttributes");
    if (!fake::kernels.count(function)) return cudaErrorInvalidDeviceFunction;
    attributes->sharedSizeBytes = fake::static_smem;
    attributes->ptxVersion = fake::capability;
    fake::loaded[{fake::device, function}] = true;
    return cudaSuccess;
}
inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments)
{
    fake::Guard guard("cudaLaunchKernelExC");
    const auto kernel = fake::kernels.find(function);
    if (kernel == fake::kernels.end()) return cudaErrorInvalidDeviceFunction;
    const int allowed = fake::allowed_smem[{fake::device, function}];
    if (config->dynamicSmemBytes > size_t(allowed ? allowed : 49152)) return cudaErrorInvalidValue;
    if (config->gridDim.x == 0 || config->gridDim.x % kernel->second.cluster) return cudaErrorInvalidValue;
    bool& loaded = fake::loaded[{fake::device, function}];
    if (!loaded && fake::of(config->stream).capturing) return cudaErrorStreamCaptureUnsupported;
    loaded = true;
    return fake::put(config->stream, kernel->second.prepare(*config, arguments));
}

// The launch `kernel<<<grid, block>>>(arguments)`.
namespace fake {
inline cudaError_t last = cudaSuccess;

template <class... Ts, class... Us>
void launch(void (*kernel)(Ts...), dim3 grid, dim3 block, Us... values)
{
    std::tuple<Ts...> arguments(values...);
    void* pointers[sizeof...(Ts)];
    [&]<size_t... I>(std::index_sequence<I...>) {
        ((pointers[I] = &std::get<I>(arguments)), ...);
    }(std::index_sequence_for<Ts...>());
    const cudaLaunchConfig_t config = {grid, block, 0, nullptr, nullptr, 0};
    last = cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers);
}
}  // namespace fake
inline cudaError_t cudaGetLastError() { return std::exchange(fake::last, cudaSuccess); }

// Memory: aligned to 256 bytes and filled with NaN.
inline cudaError_t cudaMalloc(void** memory, size_t bytes)
{
    fake::Guard guard("cudaMalloc");
    *memory = aligned_alloc(256, (bytes + 511) / 256 * 256);
    memset(*memory, 0xFF, bytes);
    ++fake::allocated;
    return cudaSuccess;
}
inline cudaError_t cudaMallocManaged(void** memory, size_t bytes) { return cudaMalloc(memory, bytes); }
inline cudaError_t cudaFree(void* memory)
{
    fake::Guard guard("cudaFree");
    if (memory) --fake::allocated;
    free(memory);
    return cudaSuccess;
}
inline cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream)
{
    fake::Guard guard("cudaMallocAsync");
    if (fake::of(stream).capturing) return cudaErrorStreamCaptureUnsupported;
    return cudaMalloc(memory, bytes);
}
inline cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream)
{
    fake::Guard guard("cudaFreeAsync");
    if (fake::of(stream).capturing) return cudaErrorStreamCaptureUnsupported;
    return cudaFree(memory);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind)
{
    fake::Guard guard("cudaMemcpy");
    memcpy(to, from, bytes);
    return cudaSuccess;
}
template <class T>
cudaError_t cudaMallocPitch(T** memory, size_t* pitch, size_t width, size_t height)
{
    *pitch = (width + 511) / 512 * 512;
    return cudaMalloc(reinterpret_cast<void**>(memory), *pitch * height);
}
inline cudaError_t cudaMemcpy2D(
    void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind)
{
    fake::Guard guard("cudaMemcpy2D");
    if (width > to_pitch || width > from_pitch) return cudaErrorInvalidValue;
    for (size_t row = 0; row < height; ++row) {
        memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    }
    return cudaSuccess;
}
inline cudaError_t cudaMemset2D(void* memory, size_t pitch, int value, size_t width, size_t height)
{
    fake::Guard guard("cudaMemset2D");
    for (size_t row = 0; row < height; ++row) memset(static_cast<char*>(memory) + row * pitch, value, width);
    return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream)
{
    fake::Guard guard("cudaMemsetAsync");
    return fake::put(stream, [=]() -> const char* { return memset(memory, value, bytes), nullptr; });
}

inline cudaError_t cudaDeviceSynchronize() { fake::Guard guard("cudaDeviceSynchronize"); return cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned)
{
    fake::Guard guard("cudaStreamCreateWithFlags");
    *stream = new CUstream_st{fake::next_id++, nullptr};
    return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) { delete stream; return cudaSuccess; }
inline cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id)
{
    fake::Guard guard("cudaStreamGetId");
    *id = fake::of(stream).id;
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    fake::Guard guard("cudaStreamSynchronize");
    return fake::of(stream).capturing ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status)
{
    fake::Guard guard("cudaStreamIsCapturing");
    *status = fake::of(stream).capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    fake::of(stream).capturing = new fake::Graph;
    return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph)
{
    *graph = fake::of(stream).capturing;
    fake::of(stream).capturing = nullptr;
    return cudaSuccess;
}
inline cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) { return *graph = new fake::Graph, cudaSuccess; }
inline cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t*, cudaGraph_t graph, const cudaGraphNode_t*, size_t, cudaGraph_t child)
{
    graph->work.insert(graph->work.end(), child->work.begin(), child->work.end());
    return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long)
{
    return *ready = new fake::Graph(*graph), cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    fake::Guard guard("cudaGraphLaunch");
    for (const fake::Work& work : graph->work) {
        const cudaError_t error = fake::put(stream, work);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { delete graph; return cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { delete graph; return cudaSuccess; }

inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new Event, cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { delete event; return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t = nullptr) { event->at = std::chrono::steady_clock::now(); return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t stop)
{
    *ms = std::chrono::duration<float, std::milli>(stop->at - start->at).count();
    return cudaSuccess;
}

// cuTensorMapEncodeTiled, as tma.h reads a map.
namespace fake {
inline int encode(
    void* map, int type, unsigned rank, const void* first, const uint64_t* size, const uint64_t* pitch, const unsigned* box,
    const unsigned*, int, int swizzle, int, int)
{
    Guard guard("cuTensorMapEncodeTiled");
    if (rank != 2 || uintptr_t(first) % 16 || pitch[0] % 16) return 1;
    tilewright_host::TensorMap made = {};
    made.first = static_cast<const char*>(first);
    made.pitch = pitch[0];
    made.rows = uint32_t(size[1]), made.cols = uint32_t(size[0]);
    made.box_rows = box[1], made.box_cols = box[0];
    made.element_bytes = type == 7 ? 4 : 8, made.swizzled = swizzle == 3;
    memcpy(map, &made, sizeof made);
    return 0;
}
}  // namespace fake
inline cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* answer)
{
    fake::Guard guard("cudaGetDriverEntryPointByVersion");
    *answer = strcmp(name, "cuTensorMapEncodeTiled") ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
    *function = reinterpret_cast<void*>(&fake::encode);
    return cudaSuccess;
}
