// A model's adapters: those that it was loaded with, and what requests make of them.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "in_flight_request.h"
#include "model_config.h"
#include "request_adapter.h"

namespace quire::triton {

// Every engine of a model has the same adapters. Thread-safe.
class LoraController {
 public:
  // `settings` and the engines live longer.
  explicit LoraController(const ModelSettings& settings) : settings_(settings) {}
  // Waits for the adapter that is being read. Requests that still wait are told that the model is gone.
  ~LoraController();
  LoraController(const LoraController&) = delete;
  LoraController& operator=(const LoraController&) = delete;

  // The first engine is given the settings' adapters, a later one what the model has by then. Throws what
  // Engine::add_lora does, with the file and the entry.
  void enroll(Engine& engine);

  // Takes a control request over. They are carried out one after the other, on a thread of their own, and
  // answered there. Throws ResourceExhausted when too many wait.
  void submit(std::shared_ptr<InFlightRequest> in_flight, LoraControl control);

  // Requests that are not answered yet.
  size_t num_unfinished() const;

 private:
  struct Job {
    std::shared_ptr<InFlightRequest> in_flight;
    LoraControl control;
  };

  void run();
  void answer(InFlightRequest& in_flight, const LoraControl& control);
  // These return what is to be logged.
  std::string carry_out(const LoraControl& control);
  std::string load(const LoraRequest& lora);
  std::string unload(const std::string& name);
  std::string list() const;

  const ModelSettings& settings_;
  mutable std::mutex engines_mutex_;  // held while adapters are read
  std::vector<Engine*> engines_;

  mutable std::mutex mutex_;
  std::deque<Job> jobs_;  // the first one is being carried out
  bool stopping_ = false;
  std::condition_variable wake_;
  std::thread thread_;  // started by the first request
};

}  // namespace quire::triton
