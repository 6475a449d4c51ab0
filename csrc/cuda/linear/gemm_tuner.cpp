#include "linear/gemm_tuner.h"

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

constexpr int kFirstRuns = 4;
constexpr size_t kFinalists = 4;
constexpr float kFarBehind = 1.25F;
constexpr int kFinalRuns = 20;

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

// Times products on a stream. In a model a weight comes from memory, so it is pushed out of the cache first.
class Timer {
 public:
  Timer(cudaStream_t stream, void* flush, size_t flush_bytes)
      : stream_(stream), flush_(flush), flush_bytes_(flush_bytes) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  Timer(const Timer&) = delete;
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  // In ms; 0 when it does not run.
  template <typename F>
  float time(F enqueue) {
    float ms = 0;
    cudaMemsetAsync(flush_, ++num_runs_, flush_bytes_, stream_);
    cudaEventRecord(begin_, stream_);
    if (!enqueue()) return 0;
    cudaEventRecord(end_, stream_);
    if (cudaEventSynchronize(end_) != cudaSuccess || cudaEventElapsedTime(&ms, begin_, end_) != cudaSuccess)
      return 0;
    return ms;
  }

 private:
  cudaStream_t stream_;
  void* flush_;
  size_t flush_bytes_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  int num_runs_ = 0;
};

struct Contender {
  LtMatmulAlgo algo;
  std::vector<float> times;

  float median() const {
    std::vector<float> sorted = times;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

}  // namespace

// In two rounds: a few runs of each, which say who is far behind, then many of the best, in turn, so that
// what happens to the device meanwhile happens to all of them.
std::optional<LtMatmulAlgo> quickest(const GemmPlan& plan, const std::vector<LtHeuristicResult>& candidates,
                                     CublasLt::Handle handle, void* out, const void* x, const void* weight,
                                     void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  Timer timer(stream, workspace, workspace_bytes);
  const auto enqueue = [&](const LtMatmulAlgo& algo) {
    return [&] {
      return plan.run(handle, algo, out, x, weight, /*adds=*/false, workspace, workspace_bytes, stream) == 0;
    };
  };
  const auto measure = [&](Contender& contender) {
    const float ms = timer.time(enqueue(contender.algo));
    if (ms > 0) contender.times.push_back(ms);
    return ms;
  };
  std::vector<Contender> contenders;
  float best_ms = 0;
  for (const LtHeuristicResult& candidate : candidates) {
    Contender contender{candidate.algo, {}};
    if (timer.time(enqueue(contender.algo)) == 0) continue;  // this one loads the kernel
    for (int repeat = 0; repeat < kFirstRuns; ++repeat) {
      const float ms = measure(contender);
      if (ms == 0 || (repeat > 0 && best_ms > 0 && ms > 2 * best_ms)) break;
    }
    if (contender.times.empty()) continue;
    const float ms = contender.median();
    best_ms = best_ms == 0 ? ms : std::min(best_ms, ms);
    contenders.push_back(std::move(contender));
  }
  if (contenders.empty()) return std::nullopt;
  const auto is_quicker = [](const Contender& a, const Contender& b) { return a.median() < b.median(); };
  std::sort(contenders.begin(), contenders.end(), is_quicker);
  contenders.resize(std::min(contenders.size(), kFinalists));
  std::erase_if(contenders, [&](const Contender& c) { return c.median() > kFarBehind * best_ms; });
  for (int repeat = 0; repeat < kFinalRuns && contenders.size() > 1; ++repeat) {
    for (Contender& contender : contenders) measure(contender);
  }
  return std::min_element(contenders.begin(), contenders.end(), is_quicker)->algo;
}

}  // namespace quire::cuda
