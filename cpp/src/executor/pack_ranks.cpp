#include <algorithm>

#include "device/thread_pool.h"
#include "executor/executor.h"
#include "models/model_registry.h"
#include "worker/weight_packer.h"

namespace quire {

std::vector<std::string> pack_ranks(const EngineConfig& config, const std::string& directory) {
  const Backend backend = find_backend(config);
  const HfConfig hf_config = load_model_config(config);
  const int32_t num_threads =
      config.num_threads > 0 ? config.num_threads
                             : static_cast<int32_t>(std::max<size_t>(ThreadPool::available_cpus().size(), 1));
  std::vector<std::string> paths;
  // One after the other: a model need not fit in memory with all its ranks.
  for (int32_t rank = 0; rank < config.tensor_parallel_size; ++rank)
    paths.push_back(pack_rank(config, backend, hf_config, rank, num_threads, directory));
  return paths;
}

}  // namespace quire
