#include "common/captured_graph.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire::cuda {
namespace {

// Those that libraries clear counters with are much smaller, and one block is enough.
constexpr size_t kMaxFilled = size_t{64} << 10;

__global__ void fill_kernel(cudaMemsetParams p) {
  for (size_t i = threadIdx.x; i < p.width * p.height; i += blockDim.x) {
    auto* element = static_cast<std::byte*>(p.dst) + i / p.width * p.pitch + i % p.width * p.elementSize;
    switch (p.elementSize) {
      case 1: *reinterpret_cast<uint8_t*>(element) = static_cast<uint8_t>(p.value); break;
      case 2: *reinterpret_cast<uint16_t*>(element) = static_cast<uint16_t>(p.value); break;
      default: *reinterpret_cast<uint32_t*>(element) = p.value;
    }
  }
}

// What comes before a node, or after it.
struct Edges {
  std::vector<cudaGraphNode_t> nodes;
  std::vector<cudaGraphEdgeData> data;
};

#if CUDART_VERSION >= 13000
cudaError_t edges_before(cudaGraphNode_t node, Edges& edges) {
  size_t count = 0;
  cudaError_t error = cudaGraphNodeGetDependencies(node, nullptr, nullptr, &count);
  edges = {std::vector<cudaGraphNode_t>(count), std::vector<cudaGraphEdgeData>(count)};
  if (error == cudaSuccess && count > 0)
    error = cudaGraphNodeGetDependencies(node, edges.nodes.data(), edges.data.data(), &count);
  return error;
}
cudaError_t edges_after(cudaGraphNode_t node, Edges& edges) {
  size_t count = 0;
  cudaError_t error = cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, &count);
  edges = {std::vector<cudaGraphNode_t>(count), std::vector<cudaGraphEdgeData>(count)};
  if (error == cudaSuccess && count > 0)
    error = cudaGraphNodeGetDependentNodes(node, edges.nodes.data(), edges.data.data(), &count);
  return error;
}
cudaError_t add_edge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to,
                     const cudaGraphEdgeData& data) {
  return cudaGraphAddDependencies(graph, &from, &to, &data, 1);
}

cudaError_t replace(cudaGraph_t graph, cudaGraphNode_t node, cudaMemsetParams params) {
  Edges before, after;
  cudaError_t error = edges_before(node, before);
  if (error == cudaSuccess) error = edges_after(node, after);
  void* arguments[] = {&params};
  cudaKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(fill_kernel);
  kernel.gridDim = dim3(1);
  kernel.blockDim = dim3(256);
  kernel.kernelParams = arguments;
  cudaGraphNode_t added = nullptr;
  if (error == cudaSuccess) error = cudaGraphAddKernelNode(&added, graph, nullptr, 0, &kernel);
  for (size_t i = 0; i < before.nodes.size() && error == cudaSuccess; ++i)
    error = add_edge(graph, before.nodes[i], added, before.data[i]);
  for (size_t i = 0; i < after.nodes.size() && error == cudaSuccess; ++i)
    error = add_edge(graph, added, after.nodes[i], after.data[i]);
  return error == cudaSuccess ? cudaGraphDestroyNode(node) : error;
}
#else
// What says how kernels may overlap cannot be asked for with these functions.
cudaError_t replace(cudaGraph_t, cudaGraphNode_t, cudaMemsetParams) { return cudaSuccess; }
#endif

}  // namespace

cudaError_t fill_by_kernels(cudaGraph_t graph) {
  size_t count = 0;
  cudaError_t error = cudaGraphGetNodes(graph, nullptr, &count);
  std::vector<cudaGraphNode_t> nodes(count);
  if (error == cudaSuccess && count > 0) error = cudaGraphGetNodes(graph, nodes.data(), &count);
  for (size_t i = 0; i < nodes.size() && error == cudaSuccess; ++i) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    error = cudaGraphNodeGetType(nodes[i], &type);
    if (error != cudaSuccess || type != cudaGraphNodeTypeMemset) continue;
    cudaMemsetParams params{};
    error = cudaGraphMemsetNodeGetParams(nodes[i], &params);
    if (error == cudaSuccess && params.width * params.height * params.elementSize <= kMaxFilled)
      error = replace(graph, nodes[i], params);
  }
  return error;
}

}  // namespace quire::cuda
