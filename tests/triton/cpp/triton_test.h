// What the tests with a server in their process share.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "host/host.h"

namespace quire::triton::host {

// The demo model with a small KV cache, one compute thread, and these parameters besides.
std::string demo_config(const std::map<std::string, std::string>& parameters = {}, bool decoupled = true);

// Threads and open files of this process, and its resident memory.
size_t num_threads();
size_t num_open_files();
size_t resident_bytes();

// Fails when the backend has broken a rule, or has left something behind.
class HostTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Started with the first use.
  Host& host();
  // Finalizes the backend.
  void stop_host() { host_.reset(); }
  std::shared_ptr<Model> load_demo(const std::map<std::string, std::string>& parameters = {},
                                   bool decoupled = true) {
    return host().load("demo", demo_config(parameters, decoupled));
  }

 private:
  std::unique_ptr<Host> host_;
};

inline const std::string kDemoModel = std::filesystem::absolute(QUIRE_DEMO_MODEL);
inline const char kStory[] = "Once upon a time";

}  // namespace quire::triton::host
