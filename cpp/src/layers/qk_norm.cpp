#include "layers/qk_norm.h"

#include <algorithm>

#include "util/check.h"

namespace quire {
namespace {

class NormOfEachHead final : public QKNorm {
 public:
  NormOfEachHead(BuildContext& build, const std::string& name, const HeadShare& heads,
                 const NormConfig& config)
      : q_norm_(build, name + ".q_norm", heads.head_size, config),
        k_norm_(build, name + ".k_norm", heads.head_size, config),
        is_rms_(config.kind == NormConfig::Kind::kRms),
        norms_{q_norm_.weight(), k_norm_.weight(), static_cast<float>(config.eps), config.weight_offset} {}

  void forward(const ForwardContext& ctx, TensorView& q, TensorView& k) const override {
    q_norm_.forward(ctx, q, q);
    k_norm_.forward(ctx, k, k);
  }
  const HeadNorms* of_heads() const override { return is_rms_ ? &norms_ : nullptr; }

 private:
  Norm q_norm_, k_norm_;
  bool is_rms_;
  HeadNorms norms_;
};

// The mean is over the heads of all ranks: each gathers the row, and goes on with its part of it.
class NormOfAllHeads final : public QKNorm {
 public:
  NormOfAllHeads(BuildContext& build, const std::string& name, const HeadShare& heads,
                 const NormConfig& config)
      : rank_(build.rank),
        q_norm_(build, name + ".q_norm", heads.total * heads.head_size, config),
        k_norm_(build, name + ".k_norm", heads.total_kv * heads.head_size, config) {
    if (heads.num_kv * build.world_size != heads.total_kv) {
      throw InvalidArgument(str("tensor_parallel_size ", build.world_size,
                                " is more than num_key_value_heads ", heads.total_kv,
                                ", whose norm is over all of them; at most that many ranks"));
    }
  }

  void forward(const ForwardContext& ctx, TensorView& q, TensorView& k) const override {
    norm(ctx, q_norm_, q);
    norm(ctx, k_norm_, k);
  }

 private:
  void norm(const ForwardContext& ctx, const Norm& norm, TensorView& heads) const {
    const int64_t count = heads.shape[1], size = heads.shape[2], mine = count * size;
    TensorView rows = heads;
    rows.rank = 2;
    rows.shape[1] = mine;
    rows.shape[2] = 1;
    rows.stride[1] = 1;
    const int64_t world_size = ctx.communicator.world_size();
    if (world_size == 1) return norm.forward(ctx, rows, rows);
    const TensorView all = ctx.arena.take(rows.dtype, rows.shape[0], world_size * mine);
    ctx.communicator.all_gather_columns(ctx.launch, all, rows);
    norm.forward(ctx, all, all);
    heads = all.columns(rank_ * mine, mine).heads(count, size);
  }

  int64_t rank_;
  Norm q_norm_, k_norm_;
};

}  // namespace

HeadShare::HeadShare(const BuildContext& build, int64_t num_heads, int64_t num_kv_heads, int64_t head_size)
    : total(num_heads), total_kv(num_kv_heads), head_size(head_size) {
  const int64_t ranks = build.world_size;
  const bool kv_fits = num_kv_heads % ranks == 0 || ranks % num_kv_heads == 0;
  if (num_heads % ranks != 0 || !kv_fits) {
    throw InvalidArgument(str("tensor_parallel_size ", ranks, " does not divide num_attention_heads ",
                              num_heads, " and num_key_value_heads ", num_kv_heads));
  }
  num = num_heads / ranks;
  first = build.rank * num;
  num_kv = std::max<int64_t>(num_kv_heads / ranks, 1);
  first_kv = int64_t{build.rank} * num_kv_heads / ranks;
}

QKNormFactory norm_of_each_head(const NormConfig& config) {
  return [config](BuildContext& build, const std::string& name, const HeadShare& heads) {
    return std::unique_ptr<QKNorm>(std::make_unique<NormOfEachHead>(build, name, heads, config));
  };
}

QKNormFactory norm_of_all_heads(const NormConfig& config) {
  return [config](BuildContext& build, const std::string& name, const HeadShare& heads) {
    return std::unique_ptr<QKNorm>(std::make_unique<NormOfAllHeads>(build, name, heads, config));
  };
}

}  // namespace quire
