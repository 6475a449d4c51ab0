#include "triton_test.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "host/server_log.h"

namespace quire::triton::host {

std::string demo_config(const std::map<std::string, std::string>& parameters, bool decoupled) {
  std::map<std::string, std::string> all = {{"model", kDemoModel},
                                            {"kv_cache_memory_bytes", std::to_string(16 << 20)},
                                            {"num_threads", "1"},
                                            {"max_num_seqs", "16"},
                                            {"flight_recorder_bytes", "0"}};
  for (const auto& [name, value] : parameters) all[name] = value;
  nlohmann::json config = {{"name", "demo"}, {"backend", "quire"}, {"max_batch_size", 0}};
  config["input"] = nlohmann::json::array();
  config["output"] = nlohmann::json::array();
  config["model_transaction_policy"] = {{"decoupled", decoupled}};
  for (const auto& [name, value] : all) config["parameters"][name] = {{"string_value", value}};
  return config.dump();
}

size_t num_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

size_t num_open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

void HostTest::SetUp() {
  Ledger::instance().reset();
  ServerLog::instance().take();
}

void HostTest::TearDown() {
  Faults::instance().disarm();
  host_.reset();
  for (const std::string& violation : Ledger::instance().violations()) ADD_FAILURE() << violation;
  EXPECT_EQ(Ledger::instance().num_alive(), 0U) << "objects of the server's were left behind";
  Ledger::instance().reset();
}

Host& HostTest::host() {
  if (!host_) host_ = std::make_unique<Host>();
  return *host_;
}

}  // namespace quire::triton::host
