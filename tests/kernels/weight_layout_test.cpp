// How packed weights lie in memory, said once more: files hold them. An order that changes needs another
// KernelTable::weight_layout, so that nobody reads files of the old one.
#include "kernel_test.h"

namespace quire {
namespace {

constexpr int64_t kN = 70, kK = 45;

// Where element [n, k] is: panels of 32 outputs, in them lines of 32 outputs with `together` inputs of each.
int64_t panels32_place(int64_t n, int64_t k, int64_t depth, int64_t together) {
  return n / 32 * 32 * depth + k / together * together * 32 + n % 32 * together + k % together;
}

template <typename Value>
void check_panels32(const KernelTable& table, DType dtype, DType element, int64_t depth, int64_t together) {
  std::vector<Value> rows(kN * kK);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<Value>(i + 1);
  const size_t bytes = table.linear_weight_bytes(kN, kK, element);
  ASSERT_GE(bytes, 96 * static_cast<size_t>(depth) * sizeof(Value));
  Memory memory(bytes);
  std::memset(memory.data(), 0, bytes);
  LinearWeight weight{memory.data(), kN, kK, dtype, /*packed=*/true};
  table.linear_pack_rows(LaunchContext(), weight, 0, TensorView(rows.data(), element, kN, kK));
  std::vector<Value> expected(bytes / sizeof(Value));
  for (int64_t n = 0; n < kN; ++n)
    for (int64_t k = 0; k < kK; ++k)
      expected[static_cast<size_t>(panels32_place(n, k, depth, together))] =
          rows[static_cast<size_t>(n * kK + k)];
  EXPECT_EQ(std::memcmp(memory.data(), expected.data(), bytes), 0) << table.variant;
}

TEST(WeightLayoutTest, AllTablesOfTheHostPackPanelsOf32) {
  for (const KernelTable* table : cpu_kernel_tables()) {
    ASSERT_STREQ(table->weight_layout, "cpu-panels32") << table->variant;
    check_panels32<float>(*table, DType::kFloat32, DType::kFloat32, kK, 1);
    check_panels32<uint16_t>(*table, DType::kBFloat16, DType::kBFloat16, 64, 2);
    check_panels32<int8_t>(*table, DType::kFloat32, DType::kInt8, kK, 1);
    check_panels32<int8_t>(*table, DType::kBFloat16, DType::kInt8, 64, 1);
  }
}

}  // namespace
}  // namespace quire
