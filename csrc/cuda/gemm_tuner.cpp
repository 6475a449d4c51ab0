#include "gemm_tuner.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

namespace quire::cuda {
namespace {

namespace fs = std::filesystem;

constexpr int kRepeats = 4;
// What an algorithm that is not only kernels must be quicker by.
constexpr float kNotOnlyKernels = 1.05F;

std::string cache_directory() {
  if (const char* own = std::getenv("QUIRE_CACHE_DIR")) return own;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME")) return std::string(xdg) + "/quire";
  if (const char* home = std::getenv("HOME")) return std::string(home) + "/.cache/quire";
  return "";
}

}  // namespace

size_t GemmShapeHash::operator()(const GemmShape& s) const {
  size_t hash = 0;
  for (int64_t part : {s.m, s.n, s.k, s.x_stride, s.out_stride, int64_t{s.in_type} * 256 + s.out_type})
    hash = (hash ^ static_cast<size_t>(part)) * 0x9E3779B97F4A7C15U + (hash >> 29);
  return hash;
}

// Row-major is column-major transposed: out^T [n, m] = weight [n, k] * x^T, with weight^T stored.
GemmPlan::GemmPlan(const CublasLt& lt, const GemmShape& s) : lt_(lt) {
  const auto add = [this](int code) {
    if (status == 0) status = code;
  };
  const auto u = [](int64_t x) { return static_cast<uint64_t>(x); };
  add(lt.matmul_desc_create(&desc_, kLtCompute32F, kLtReal32F));
  const int32_t transpose = kLtTranspose;
  add(lt.matmul_desc_set_attribute(desc_, kLtDescTransA, &transpose, sizeof transpose));
  add(lt.matrix_layout_create(&weight_layout_, s.in_type, u(s.k), u(s.n), s.k));
  add(lt.matrix_layout_create(&x_layout_, s.in_type, u(s.k), u(s.m), s.x_stride));
  add(lt.matrix_layout_create(&out_layout_, s.out_type, u(s.n), u(s.m), s.out_stride));
}

GemmPlan::GemmPlan(GemmPlan&& other) noexcept
    : algo(other.algo),
      status(other.status),
      lt_(other.lt_),
      desc_(std::exchange(other.desc_, nullptr)),
      weight_layout_(std::exchange(other.weight_layout_, nullptr)),
      x_layout_(std::exchange(other.x_layout_, nullptr)),
      out_layout_(std::exchange(other.out_layout_, nullptr)) {}

GemmPlan::~GemmPlan() {
  if (desc_ != nullptr) lt_.matmul_desc_destroy(desc_);
  for (void* layout : {weight_layout_, x_layout_, out_layout_})
    if (layout != nullptr) lt_.matrix_layout_destroy(layout);
}

std::vector<LtHeuristicResult> GemmPlan::candidates(CublasLt::Handle handle, size_t workspace_bytes,
                                                    int count) const {
  void* preference = nullptr;
  std::vector<LtHeuristicResult> results(static_cast<size_t>(count));
  int found = 0;
  if (status == 0 && lt_.preference_create(&preference) == 0) {
    const auto bytes = static_cast<uint64_t>(workspace_bytes);
    lt_.preference_set_attribute(preference, kLtPreferenceMaxWorkspaceBytes, &bytes, sizeof bytes);
    if (lt_.get_heuristic(handle, desc_, weight_layout_, x_layout_, out_layout_, out_layout_, preference,
                          count, results.data(), &found) != 0)
      found = 0;
    lt_.preference_destroy(preference);
  }
  results.resize(static_cast<size_t>(found));
  std::erase_if(results, [](const LtHeuristicResult& result) { return result.state != 0; });
  return results;
}

bool GemmPlan::permits(CublasLt::Handle handle, const LtMatmulAlgo& with, size_t workspace_bytes) const {
  LtHeuristicResult result{};
  return status == 0 &&
         lt_.algo_check(handle, desc_, weight_layout_, x_layout_, out_layout_, out_layout_, &with, &result) ==
             0 &&
         result.workspace_bytes <= workspace_bytes;
}

int GemmPlan::run(CublasLt::Handle handle, const LtMatmulAlgo& with, void* out, const void* x,
                  const void* weight, bool adds, void* workspace, size_t workspace_bytes,
                  void* stream) const {
  const float one = 1.0F, beta = adds ? 1.0F : 0.0F;
  return lt_.matmul(handle, desc_, &one, weight, weight_layout_, x, x_layout_, &beta, out, out_layout_, out,
                    out_layout_, &with, workspace, workspace_bytes, stream);
}

GemmCache::GemmCache(const char* device_name, size_t library_version) {
  const std::string directory = cache_directory();
  if (directory.empty()) return;
  std::string name = device_name;
  for (char& c : name)
    if (c == ' ' || c == '/') c = '-';
  path_ = directory + "/gemm-" + name + "-cublaslt-" + std::to_string(library_version) + ".txt";
  read();
}

// A line for each shape: m n k x_stride out_stride in_type out_type, then the algorithm's eight words.
void GemmCache::read() {
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    GemmShape shape;
    LtMatmulAlgo algo;
    words >> shape.m >> shape.n >> shape.k >> shape.x_stride >> shape.out_stride >> shape.in_type >>
        shape.out_type;
    for (uint64_t& word : algo.data) words >> word;
    if (words) algos_.try_emplace(shape, algo);
  }
}

const LtMatmulAlgo* GemmCache::find(const GemmShape& shape) const {
  const auto found = algos_.find(shape);
  return found == algos_.end() ? nullptr : &found->second;
}

void GemmCache::add(const GemmShape& shape, const LtMatmulAlgo& algo) {
  algos_[shape] = algo;
  changed_ = true;
}

void GemmCache::save() {
  if (!changed_ || path_.empty()) return;
  changed_ = false;
  read();
  std::error_code ignored;
  fs::create_directories(fs::path(path_).parent_path(), ignored);
  static std::atomic<int> num_saves{0};  // engines of one process may save at once
  const std::string temporary = path_ + "." + std::to_string(::getpid()) + "." + std::to_string(num_saves++);
  {
    std::ofstream file(temporary);
    for (const auto& [s, algo] : algos_) {
      file << s.m << ' ' << s.n << ' ' << s.k << ' ' << s.x_stride << ' ' << s.out_stride << ' ' << s.in_type
           << ' ' << s.out_type;
      for (uint64_t word : algo.data) file << ' ' << word;
      file << '\n';
    }
    file.close();  // a full disk may show only now
    if (!file) {
      fs::remove(temporary, ignored);
      return;
    }
  }
  fs::rename(temporary, path_, ignored);
}

namespace {

// Whether what `enqueue` gives to the stream are kernels and nothing else. A graph that also has memsets in
// it takes the host ten times as long to launch.
template <typename F>
bool is_only_kernels(cudaStream_t stream, F enqueue) {
  cudaGraph_t graph = nullptr;
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return false;
  const bool enqueued = enqueue();
  bool only_kernels = cudaStreamEndCapture(stream, &graph) == cudaSuccess && enqueued;
  size_t count = 0;
  std::vector<cudaGraphNode_t> nodes;
  if (only_kernels && cudaGraphGetNodes(graph, nullptr, &count) == cudaSuccess) {
    nodes.resize(count);
    only_kernels = cudaGraphGetNodes(graph, nodes.data(), &count) == cudaSuccess;
  }
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    only_kernels =
        only_kernels && cudaGraphNodeGetType(node, &type) == cudaSuccess && type == cudaGraphNodeTypeKernel;
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
  return only_kernels;
}

// The median time of a few runs, in ms; 0 when it does not run. `limit` > 0: what takes twice as long is not
// measured to the end.
template <typename F>
float measure(cudaStream_t stream, cudaEvent_t begin, cudaEvent_t end, float limit, void* flush,
              size_t flush_bytes, F enqueue) {
  std::vector<float> times;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    cudaMemsetAsync(flush, repeat, flush_bytes, stream);
    cudaEventRecord(begin, stream);
    if (!enqueue()) break;
    cudaEventRecord(end, stream);
    float ms = 0;
    if (cudaEventSynchronize(end) != cudaSuccess || cudaEventElapsedTime(&ms, begin, end) != cudaSuccess)
      break;
    if (repeat == 0) continue;  // this one loads the kernel
    times.push_back(ms);
    if (limit > 0 && ms > 2 * limit) break;
  }
  if (times.empty()) return 0;
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

std::optional<LtMatmulAlgo> quickest(const GemmPlan& plan, const std::vector<LtHeuristicResult>& candidates,
                                     CublasLt::Handle handle, void* out, const void* x, const void* weight,
                                     void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::optional<LtMatmulAlgo> best;
  float best_ms = 0;
  for (const LtHeuristicResult& candidate : candidates) {
    const auto enqueue = [&] {
      return plan.run(handle, candidate.algo, out, x, weight, /*adds=*/false, workspace, workspace_bytes,
                      stream) == 0;
    };
    float ms = measure(stream, begin, end, best_ms, workspace, workspace_bytes, enqueue);
    if (ms == 0) continue;
    if (!is_only_kernels(stream, enqueue)) ms *= kNotOnlyKernels;
    if (best_ms == 0 || ms < best_ms) {
      best_ms = ms;
      best = candidate.algo;
    }
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best;
}

}  // namespace quire::cuda
