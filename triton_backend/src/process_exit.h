// The end of the process, which a server with open connections leaves to chance.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <shared_mutex>

namespace quire::triton {

using SteadyTime = std::chrono::steady_clock::time_point;

// Call when the backend starts. From then on
// - the first SIGTERM or SIGINT of a tritonserver program is noticed (told_to_end), and another one ends it;
// - once its models are gone, the program ends 5 s after `grace` has passed since that signal, whatever
//   streams its clients keep open: the server waits for them without end;
// - when the process exits, requests under way are told so, and enter_server waits for ever.
// Other programs that have a server inside keep their signals, and exit in their own time.
void guard_process_exit(std::chrono::seconds grace);

// When the signal came.
std::optional<SteadyTime> told_to_end();
bool process_is_exiting();

// Holds the process's end off while a thread of ours is in the server. When it exits without having unloaded
// its models (a stream kept one past the server's exit timeout), the server's parts disappear under threads
// that still run: from then on this waits for ever.
std::shared_lock<std::shared_timed_mutex> enter_server();

// What a model does when the process exits around it: it has its requests answered, soon, and returns how
// many are left. Called until none is, or a moment has passed; not after withdraw_from_exit.
using EndRequests = std::function<size_t()>;
void enlist_for_exit(const void* model, EndRequests end_requests);
void withdraw_from_exit(const void* model);

}  // namespace quire::triton
