// Recordings on a signal: an operator asks a running process what it has been doing.
#pragma once

#include <functional>
#include <memory>

namespace quire {

// While it lives, `dump` is called, on a thread of the process's own, each time the signal comes. The handler
// itself only writes a byte. The signal's earlier handler is back when the last of them is gone; all that
// live at once must ask for the same signal. Throws InvalidArgument otherwise, or when the signal cannot be
// caught.
class SignalDump {
 public:
  SignalDump(int signal, std::function<void()> dump);
  ~SignalDump();
  SignalDump(const SignalDump&) = delete;
  SignalDump& operator=(const SignalDump&) = delete;

 private:
  struct Registry;
  std::shared_ptr<Registry> registry_;
  std::function<void()> dump_;
};

}  // namespace quire
