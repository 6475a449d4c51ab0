// What some architectures do to queries and keys before they are rotated.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "layers/norm.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// The heads of one rank. KV heads fewer than ranks are held by several.
struct HeadShare {
  // Throws InvalidArgument when the ranks cannot divide the heads.
  HeadShare(const BuildContext& build, int64_t num_heads, int64_t num_kv_heads, int64_t head_size);

  int64_t total, total_kv;  // of all ranks
  int64_t num, first, num_kv, first_kv;
  int64_t head_size;
};

class QKNorm {
 public:
  virtual ~QKNorm() = default;
  // Norms q [T, H, D] and k [T, KH, D], whose heads are contiguous, in place, or makes them views of the
  // arena that hold the results.
  virtual void forward(const ForwardContext& ctx, TensorView& q, TensorView& k) const = 0;
  // What `forward` does as an operation that may be fused with the rotation, or null.
  virtual const HeadNorms* of_heads() const { return nullptr; }
};

// Loads the norm of the attention that is called `name`.
using QKNormFactory = std::function<std::unique_ptr<QKNorm>(BuildContext& build, const std::string& name,
                                                            const HeadShare& heads)>;

// "<name>.q_norm" and k_norm, over each head by itself.
QKNormFactory norm_of_each_head(const NormConfig& config);
// The same names, over all heads at once. Throws InvalidArgument when ranks share KV heads.
QKNormFactory norm_of_all_heads(const NormConfig& config);

}  // namespace quire
