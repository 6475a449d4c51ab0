// Threads that call the engine while Python ends.
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "bindings.h"

namespace nb = nanobind;

namespace quire::bindings {
namespace {

std::atomic<bool> python_ends{false};
std::atomic<std::thread::id> ending_thread;
std::atomic<int> num_restoring{0};  // threads between the look at python_ends and having the lock

void hold_threads() {
  ending_thread = std::this_thread::get_id();
  python_ends = true;
  // What such threads refer to is never freed, and that is no news.
  const nb::object num_threads = nb::module_::import_("threading").attr("active_count")();
  if (nb::cast<int>(num_threads) > 1) nb::set_leak_warnings(false);
  while (num_restoring > 0) {
    const nb::gil_scoped_release release;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

ReleasedGil::~ReleasedGil() {
  ++num_restoring;
  if (python_ends && ending_thread.load() != std::this_thread::get_id()) {
    --num_restoring;
    while (true) pause();
  }
  PyEval_RestoreThread(state_);
  --num_restoring;
}

AcquiredGil::AcquiredGil() {
  ++num_restoring;
  if (!python_ends || ending_thread.load() == std::this_thread::get_id()) {
    state_ = PyGILState_Ensure();
    acquired_ = true;
  }
  --num_restoring;
}
AcquiredGil::~AcquiredGil() {
  if (acquired_) PyGILState_Release(state_);
}

void bind_gil(nb::module_& m) {
  m.def("hold_threads", hold_threads,
        "Threads in the engine do not come back to Python from now on; for the end of the process.");
  nb::module_::import_("atexit").attr("register")(m.attr("hold_threads"));
  // The threads that it counted are not in a child, where the parent's engines stay as they are for ever.
  pthread_atfork(nullptr, nullptr, [] {
    num_restoring = 0;
    nb::set_leak_warnings(false);
  });
}

}  // namespace quire::bindings
