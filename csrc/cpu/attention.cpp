// Paged attention.
//
// The unit of work is a tile: up to 32 query rows of one request that share a KV head, row i being query
// head (i % num_queries_per_kv) of token (i / num_queries_per_kv). A tile walks over the partitions of 256
// tokens that its rows attend to; a partition gives a maximum, a sum and an unnormalised output per row,
// which are folded in order. Since partitions begin at fixed positions, and masked tokens change no bit of a
// sum, a row's result does not depend on the rows beside it, nor on who computed which partition.
#include <cstring>
#include <utility>

#include "kv_cache.h"
#include "ops.h"
#include "parallel.h"

namespace quire::cpu {
namespace {

constexpr int64_t kMaxTokensPerGroup = 32;

struct Problem {
  const TensorView& out;
  const TensorView& query;
  const KVCacheView& cache;
  const AttentionMetadata& batch;
  const AttentionLayer& layer;
  const MatmulKernels& matmul;
  int type;
  int num_queries_per_kv;
  int head_size;  // D
  int depth;      // D as the staged query and the cached keys have it
  int block_size;
  int group_tokens;  // tokens per piece of values

  int query_begin(int r) const { return batch.query_start_loc.as<int32_t>()[r]; }
  int query_len(int r) const { return query_begin(r + 1) - query_begin(r); }
  const int32_t* block_ids(int r) const {
    return reinterpret_cast<const int32_t*>(batch.block_table.at(batch.state_indices.as<int32_t>()[r]));
  }
  int seq_len(int r) const { return batch.seq_lens.as<int32_t>()[r]; }
  int num_tiles(int r) const { return (query_len(r) * num_queries_per_kv + kQueryRows - 1) / kQueryRows; }
};

struct Tile {
  int request;
  int kv_head;
  int first_row, rows;
  int first_token, end_token;  // positions that some row attends to
  int first_partition, end_partition;
};

// Tiles of a request are numbered by KV head, the ones with the longest context first: the last to be
// handed out are then the cheapest, which evens out the threads.
Tile make_tile(const Problem& p, int request, int index) {
  const int tiles = p.num_tiles(request);
  Tile tile;
  tile.request = request;
  tile.kv_head = index / tiles;
  tile.first_row = (tiles - 1 - index % tiles) * kQueryRows;
  tile.rows = std::min(kQueryRows, p.query_len(request) * p.num_queries_per_kv - tile.first_row);
  const int computed = p.seq_len(request) - p.query_len(request);
  const int window = p.layer.sliding_window;
  const int first_position = computed + tile.first_row / p.num_queries_per_kv;
  tile.first_token = window > 0 ? std::max(0, first_position - window + 1) : 0;
  tile.end_token = computed + (tile.first_row + tile.rows - 1) / p.num_queries_per_kv + 1;
  tile.first_partition = tile.first_token / kPartitionTokens;
  tile.end_partition = (tile.end_token - 1) / kPartitionTokens + 1;
  return tile;
}

// The buffers of one thread, and the partial results of one (tile, partition).
struct Part {
  float* out;  // [rows, D]
  float* max;  // [rows]
  float* sum;  // [rows]
};

struct Buffers {
  std::byte* query;          // [kQueryRows, depth] staged
  std::byte* probabilities;  // [kQueryRows, kPartitionStride] staged
  float* scores;             // [kQueryRows, kPartitionStride]
  std::byte* tail;           // values of one group
  Part part, total;

  static size_t bytes(const Problem& p) {
    const size_t floats = static_cast<size_t>(kQueryRows) *
                          static_cast<size_t>(p.depth + 2 * kPartitionStride + 2 * p.head_size + 4);
    return (floats + static_cast<size_t>(kMaxTokensPerGroup * p.head_size)) * sizeof(float);
  }

  explicit Buffers(const Problem& p) {
    auto* next = static_cast<float*>(thread_scratch(bytes(p)));
    const auto take = [&](int64_t floats) { return std::exchange(next, next + floats); };
    scores = take(kQueryRows * kPartitionStride);
    probabilities = reinterpret_cast<std::byte*>(take(kQueryRows * kPartitionStride));
    query = reinterpret_cast<std::byte*>(take(int64_t{kQueryRows} * p.depth));
    tail = reinterpret_cast<std::byte*>(take(kMaxTokensPerGroup * p.head_size));
    for (Part* x : {&part, &total}) {
      x->out = take(int64_t{kQueryRows} * p.head_size);
      x->max = take(kQueryRows);
      x->sum = take(kQueryRows);
    }
  }
};

void stage_query(const Problem& p, const Tile& tile, const Buffers& buffers) {
  const TensorView& query = p.query;
  const int64_t row_bytes = int64_t{p.depth} * p.matmul.staged_element_bytes[p.type];
  for (int i = 0; i < tile.rows; ++i) {
    const int row = tile.first_row + i;
    const int64_t head = int64_t{tile.kv_head} * p.num_queries_per_kv + row % p.num_queries_per_kv;
    const std::byte* source = query.at(p.query_begin(tile.request) + row / p.num_queries_per_kv) +
                              head * query.stride[1] * static_cast<int64_t>(dtype_bytes(query.dtype));
    p.matmul.stage_query[p.type](buffers.query + i * row_bytes, source, p.head_size, p.depth);
  }
}

// The values of tokens [0, valid) of a group, and zeros: what lies in slots beyond the sequence may be
// NaN, and a probability of zero would not silence it.
const void* clean_tail(const Problem& p, const void* group, int valid, const Buffers& buffers) {
  const int64_t pair = p.type == kBF16 ? 2 : 1;
  const int64_t element = p.type == kBF16 ? 2 : 4;
  const int64_t line_bytes = p.head_size * pair * element;
  const int64_t whole = valid / pair;
  std::memcpy(buffers.tail, group, static_cast<size_t>(whole * line_bytes));
  std::memset(buffers.tail + whole * line_bytes, 0,
              static_cast<size_t>((p.group_tokens / pair - whole) * line_bytes));
  if (valid % pair != 0) {
    const auto* from =
        reinterpret_cast<const uint16_t*>(static_cast<const std::byte*>(group) + whole * line_bytes);
    auto* to = reinterpret_cast<uint16_t*>(buffers.tail + whole * line_bytes);
    for (int64_t d = 0; d < p.head_size; ++d) to[2 * d] = from[2 * d];
  }
  return buffers.tail;
}

void attend_partition(const Problem& p, const Tile& tile, int partition, const Buffers& buffers,
                      const Part& result) {
  const int base = partition * kPartitionTokens;
  // Pages before the first token may have been given away, so whole groups from its page on are read.
  const int first = std::max(0, tile.first_token - base) / p.group_tokens * p.group_tokens;
  const int used = std::min(kPartitionTokens, tile.end_token - base);
  const int last = (used + p.group_tokens - 1) / p.group_tokens * p.group_tokens;

  const void* keys[kPartitionTokens / 16];
  const void* values[kPartitionTokens / 16];
  const int32_t* table = p.block_ids(tile.request);
  const int64_t key_bytes = cpu::key_bytes(p.block_size, p.head_size, p.cache.dtype);
  const int64_t token_bytes = p.head_size * static_cast<int64_t>(dtype_bytes(p.cache.dtype));
  for (int column = first; column < last; column += p.group_tokens) {
    const int page = column / p.block_size;
    const std::byte* head = page_head(p.cache, table[(base + column) / p.block_size], tile.kv_head);
    keys[page] = head;
    values[column / p.group_tokens] = head + key_bytes + (column - page * p.block_size) * token_bytes;
  }
  const int written = p.seq_len(tile.request) - base;
  if (last > written) {
    const int group = last / p.group_tokens - 1;
    values[group] = clean_tail(p, values[group], written - group * p.group_tokens, buffers);
  }

  p.matmul.scores[p.type](buffers.query, tile.rows, keys, p.block_size, p.depth, first, last, buffers.scores);
  const int64_t element = p.matmul.staged_element_bytes[p.type];
  const int computed = p.seq_len(tile.request) - p.query_len(tile.request);
  for (int i = 0; i < tile.rows; ++i) {
    const int row = tile.first_row + i;
    const int column = computed + row / p.num_queries_per_kv - base;
    const int head = tile.kv_head * p.num_queries_per_kv + row % p.num_queries_per_kv;
    const SoftmaxRow softmax = {
        .scores = buffers.scores + i * kPartitionStride,
        .probabilities = buffers.probabilities + i * kPartitionStride * element,
        .first = first,
        .last = last,
        .begin = p.layer.sliding_window > 0 ? column - p.layer.sliding_window + 1 : 0,
        .end = column + 1,
        .scale = p.layer.scale,
        .soft_cap = p.layer.soft_cap,
        .alibi_slope = p.layer.alibi_slopes != nullptr ? p.layer.alibi_slopes[head] : 0.0F,
        .query_column = column};
    p.matmul.softmax[p.type](softmax, &result.max[i], &result.sum[i]);
  }
  p.matmul.values[p.type](buffers.probabilities + first * element, tile.rows, values + first / p.group_tokens,
                          p.group_tokens, (last - first) / p.group_tokens, p.head_size, result.out);
}

void clear(const Problem& p, const Tile& tile, const Part& total) {
  std::memset(total.out, 0, static_cast<size_t>(tile.rows) * p.head_size * sizeof(float));
  std::fill_n(total.max, tile.rows, kNoScore);
  std::fill_n(total.sum, tile.rows, 0.0F);
}

void fold(const Problem& p, const Tile& tile, const Part& total, const Part& part) {
  p.matmul.fold(tile.rows, p.head_size, total.out, total.max, total.sum, part.out, part.max, part.sum);
}

void store_tile(const Problem& p, const Tile& tile, const Part& total) {
  const TensorView& out = p.out;
  for (int i = 0; i < tile.rows; ++i) {
    const int row = tile.first_row + i;
    const int64_t head = int64_t{tile.kv_head} * p.num_queries_per_kv + row % p.num_queries_per_kv;
    std::byte* to = out.at(p.query_begin(tile.request) + row / p.num_queries_per_kv) +
                    head * out.stride[1] * static_cast<int64_t>(dtype_bytes(out.dtype));
    p.matmul.finish[type_index(out.dtype)](
        to, total.out + int64_t{i} * p.head_size, total.max[i], total.sum[i],
        p.layer.sinks != nullptr ? p.layer.sinks + head : nullptr, p.head_size);
  }
}

void attend_tile(const Problem& p, const Tile& tile, const Buffers& buffers) {
  stage_query(p, tile, buffers);
  clear(p, tile, buffers.total);
  for (int partition = tile.first_partition; partition < tile.end_partition; ++partition) {
    attend_partition(p, tile, partition, buffers, buffers.part);
    fold(p, tile, buffers.total, buffers.part);
  }
  store_tile(p, tile, buffers.total);
}

// Every thread takes whole tiles.
void attend_by_tiles(const Problem& p, const LaunchContext& ctx, int64_t num_tiles) {
  const int kv_heads = p.cache.num_kv_heads;
  WorkQueue queue(num_tiles);
  const auto work = [&](int32_t, int32_t) {
    const Buffers buffers(p);
    int request = 0;
    int64_t request_begin = 0, begin, end;
    while (queue.take(&begin, &end)) {
      while (begin >= request_begin + int64_t{p.num_tiles(request)} * kv_heads)
        request_begin += int64_t{p.num_tiles(request++)} * kv_heads;
      attend_tile(p, make_tile(p, request, static_cast<int>(begin - request_begin)), buffers);
    }
    if (p.matmul.release != nullptr) p.matmul.release();
  };
  // Multiply-adds worth waking another thread for.
  constexpr int64_t kGrainWork = 1 << 18;
  const int64_t rows = p.query.shape[0] * p.query.shape[1];
  if (num_tiles == 1 || rows * p.batch.max_seq_len * p.head_size < kGrainWork) {
    work(0, 1);
  } else {
    on_all_threads(ctx, work);
  }
}

// ---- few tiles, long contexts: the partitions of a tile are spread over the threads ------------------

constexpr int kMaxSplitTiles = 64;
constexpr int kMaxSplitRequests = 4;  // decoding requests that the workspace is sized for

struct SplitTile {
  Tile tile;
  int64_t first_part;
  std::atomic<int> partitions_left;
};

int64_t part_floats(int rows, int head_size) { return (int64_t{rows} * (head_size + 2) + 15) / 16 * 16; }

Part part_at(const Problem& p, void* workspace, int64_t index, int rows) {
  float* out = static_cast<float*>(workspace) + index * part_floats(rows, p.head_size);
  return {out, out + int64_t{rows} * p.head_size, out + int64_t{rows} * (p.head_size + 1)};
}

// Returns false, having done nothing, when the workspace does not hold all the partial results.
bool attend_by_partitions(const Problem& p, const LaunchContext& ctx, int num_tiles) {
  SplitTile tiles[kMaxSplitTiles];
  int64_t num_parts = 0;
  int rows = 0;
  for (int request = 0, next = 0; next < num_tiles; ++request) {
    const int count = p.num_tiles(request) * p.cache.num_kv_heads;
    for (int i = 0; i < count; ++i, ++next) {
      tiles[next].tile = make_tile(p, request, i);
      tiles[next].first_part = num_parts;
      const int partitions = tiles[next].tile.end_partition - tiles[next].tile.first_partition;
      tiles[next].partitions_left.store(partitions, std::memory_order_relaxed);
      num_parts += partitions;
      rows = std::max(rows, tiles[next].tile.rows);
    }
  }
  const size_t bytes = static_cast<size_t>(num_parts * part_floats(rows, p.head_size)) * sizeof(float);
  if (num_parts == num_tiles || bytes > ctx.workspace_bytes) return false;

  WorkQueue queue(num_parts);
  on_all_threads(ctx, [&](int32_t, int32_t) {
    const Buffers buffers(p);
    int at = 0, staged = -1;
    int64_t begin, end;
    while (queue.take(&begin, &end)) {
      while (at + 1 < num_tiles && tiles[at + 1].first_part <= begin) ++at;
      SplitTile& split = tiles[at];
      const Tile& tile = split.tile;
      if (staged != at) stage_query(p, tile, buffers);
      staged = at;
      attend_partition(p, tile, tile.first_partition + static_cast<int>(begin - split.first_part), buffers,
                       part_at(p, ctx.workspace, begin, rows));
      // Whoever finishes the last partition of a tile folds them all, in order.
      if (split.partitions_left.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
      clear(p, tile, buffers.total);
      for (int i = 0; i < tile.end_partition - tile.first_partition; ++i)
        fold(p, tile, buffers.total, part_at(p, ctx.workspace, split.first_part + i, rows));
      store_tile(p, tile, buffers.total);
    }
    if (p.matmul.release != nullptr) p.matmul.release();
  });
  return true;
}

}  // namespace

const char* select_attention(AttentionLayer& layer) {
  if (layer.dtype != DType::kFloat32 && layer.dtype != DType::kBFloat16)
    return "the KV cache must be float32 or bfloat16";
  if (layer.head_size < 16 || layer.head_size % 16 != 0) return "the head size must be a multiple of 16";
  if (layer.block_size < 16 || kPartitionTokens % layer.block_size != 0)
    return "the block size must be 16, 32, 64, 128 or 256";
  return nullptr;
}

size_t attention_workspace_bytes(int32_t max_tokens, int32_t max_seq_len, int32_t num_heads,
                                 int32_t num_kv_heads, int32_t head_size) {
  const int64_t requests = std::min(max_tokens, kMaxSplitRequests);
  const int64_t partitions = (int64_t{max_seq_len} + kPartitionTokens - 1) / kPartitionTokens;
  const int64_t parts = requests * partitions * num_kv_heads;
  return static_cast<size_t>(parts * part_floats(num_heads / num_kv_heads, head_size)) * sizeof(float);
}

void paged_attention(const Isa& isa, const LaunchContext& ctx, TensorView out, TensorView query,
                     const KVCacheView& cache, const AttentionMetadata& batch, const AttentionLayer& layer) {
  const Problem p = {
      .out = out,
      .query = query,
      .cache = cache,
      .batch = batch,
      .layer = layer,
      .matmul = isa.matmul,
      .type = type_index(cache.dtype),
      .num_queries_per_kv = layer.num_heads / layer.num_kv_heads,
      .head_size = cache.head_size,
      .depth = static_cast<int>(key_depth(cache.head_size, cache.dtype)),
      .block_size = cache.block_size,
      .group_tokens = static_cast<int>(std::min<int64_t>(cache.block_size, kMaxTokensPerGroup))};
  const int num_requests = static_cast<int>(batch.seq_lens.shape[0]);
  int64_t num_tiles = 0;
  for (int r = 0; r < num_requests; ++r) num_tiles += int64_t{p.num_tiles(r)} * cache.num_kv_heads;
  if (num_tiles == 0) return;
  const int64_t threads = ctx.host != nullptr ? ctx.host->num_threads : 1;
  const bool few = num_tiles < 4 * threads && num_tiles <= kMaxSplitTiles;
  if (threads > 1 && few && batch.max_seq_len > kPartitionTokens &&
      attend_by_partitions(p, ctx, static_cast<int>(num_tiles)))
    return;
  attend_by_tiles(p, ctx, num_tiles);
}

}  // namespace quire::cpu
