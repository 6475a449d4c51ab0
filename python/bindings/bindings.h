// The parts of the extension module. Bindings translate names, docs and lifetimes; logic lives below.
#pragma once

#include <nanobind/nanobind.h>

namespace quire {
struct RankMemory;
}

namespace quire::bindings {

// Other Python threads run during a call. When Python is about to end, a thread does not return from it:
// Python would end the thread as it takes the lock, in the middle of C++, which ends the process by a signal.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil();
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};
using ReleaseGil = nanobind::call_guard<ReleasedGil>;

// A thread of the engine's is in Python, unless Python is about to end: then it has no lock, and must touch
// nothing of Python's.
class AcquiredGil {
 public:
  AcquiredGil();
  ~AcquiredGil();
  AcquiredGil(const AcquiredGil&) = delete;
  AcquiredGil& operator=(const AcquiredGil&) = delete;
  explicit operator bool() const { return acquired_; }

 private:
  bool acquired_ = false;
  PyGILState_STATE state_{};
};

// The items by their names.
nanobind::dict memory_as_dict(const RankMemory& memory);

void bind_gil(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_fields(nanobind::module_& m);
void bind_metrics(nanobind::module_& m);
void bind_config(nanobind::module_& m);
void bind_memory(nanobind::module_& m);
void bind_logits_processors(nanobind::module_& m);
void bind_outputs(nanobind::module_& m);
void bind_text(nanobind::module_& m);
void bind_chat_parsers(nanobind::module_& m);
void bind_engine(nanobind::module_& m);
void bind_http(nanobind::module_& m);
void bind_recorder(nanobind::module_& m);
void bind_simulator(nanobind::module_& m);

}  // namespace quire::bindings
