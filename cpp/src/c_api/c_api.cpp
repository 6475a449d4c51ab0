#include <new>
#include <string>

#include "c_api/arguments.h"
#include "c_api/engine_handle.h"
#include "c_api/handles.h"
#include "c_api/request_handle.h"
#include "quire/quire.h"

namespace quire::c_api {
namespace {

thread_local std::string last_error;

quire_status fail(quire_status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

// What the function returns; what it throws becomes a status and quire_last_error().
template <typename Function>
quire_status guarded(const Function& function) noexcept {
  try {
    return function();
  } catch (const InvalidArgument& error) {
    return fail(QUIRE_INVALID_ARGUMENT, error.what());
  } catch (const ResourceExhausted& error) {
    return fail(QUIRE_RESOURCE_EXHAUSTED, error.what());
  } catch (const std::bad_alloc&) {
    return fail(QUIRE_RESOURCE_EXHAUSTED, "there is no memory left");
  } catch (const std::exception& error) {
    return fail(QUIRE_ERROR, error.what());
  } catch (...) {
    return fail(QUIRE_ERROR, "an exception of an unknown kind");
  }
}

template <typename Handle>
void clear_result(Handle* result, const char* name) {
  if (result == nullptr) throw InvalidArgument(str(name, " is null; give a place for the handle"));
  *result = 0;
}

void check_is_there(bool found, const std::string& lora_name) {
  if (!found) throw InvalidArgument(str("name '", lora_name, "' is no adapter's; quire_list_loras has them"));
}

quire_engine_stats stats_of(const Engine& engine) {
  const EngineStats stats = engine.stats();
  quire_engine_stats c{};
  c.num_steps = stats.num_steps;
  c.num_scheduled_tokens = stats.num_scheduled_tokens;
  c.num_generation_tokens = stats.num_generation_tokens;
  c.num_preemptions = stats.num_preemptions;
  c.prefix_cache_queries = stats.prefix_cache_queries;
  c.prefix_cache_hits = stats.prefix_cache_hits;
  c.num_waiting_tokens = stats.num_waiting_tokens;
  c.num_running_reqs = stats.num_running_reqs;
  c.num_waiting_reqs = stats.num_waiting_reqs;
  c.num_free_blocks = stats.num_free_blocks;
  c.num_total_blocks = stats.num_total_blocks;
  c.kv_cache_usage = stats.kv_cache_usage;
  return c;
}

}  // namespace
}  // namespace quire::c_api

using namespace quire::c_api;
using quire::InvalidArgument;

const char* quire_version(void) { return QUIRE_VERSION; }
uint32_t quire_abi_version(void) { return QUIRE_ABI_VERSION; }
const char* quire_last_error(void) { return last_error.c_str(); }

quire_status quire_engine_create(const quire_engine_options* options, quire_engine* engine) {
  return guarded([&] {
    clear_result(engine, "engine");
    const EngineSettings settings = engine_settings(read_struct(options, kFirstOptionsSize, "options"));
    auto made = std::make_shared<EngineHandle>(settings);
    const quire_engine id = Handles::make_id();
    Handles::of_this_process().add(id, std::move(made));
    *engine = id;
    return QUIRE_OK;
  });
}

quire_status quire_engine_destroy(quire_engine engine) {
  return guarded([&] {
    Handles& handles = Handles::of_this_process();
    handles.find_engine(engine)->check_outside_callbacks("quire_engine_destroy");
    const auto taken = handles.take_engine(engine);
    taken->destroy([&] {
      for (const auto& request : handles.requests_of(*taken)) request->close();
    });
    return QUIRE_OK;
  });
}

quire_status quire_engine_get_stats(quire_engine engine, quire_engine_stats* stats) {
  return guarded([&] {
    struct_size(stats, kFirstStatsSize, "stats");
    const auto handle = Handles::of_this_process().find_engine(engine);
    const EngineHandle::Use use = handle->use("quire_engine_get_stats");
    write_struct(stats_of(use.engine()), stats);
    return QUIRE_OK;
  });
}

quire_status quire_add_lora(quire_engine engine, const quire_lora* lora) {
  return guarded([&] {
    const quire::LoraRequest given = lora_request(read_struct(lora, kFirstLoraSize, "lora"));
    const auto handle = Handles::of_this_process().find_engine(engine);
    const EngineHandle::Use use = handle->use("quire_add_lora");
    use.engine().add_lora(given);
    return QUIRE_OK;
  });
}

quire_status quire_remove_lora(quire_engine engine, const char* name) {
  return guarded([&] {
    const std::string given = lora_name(name);
    const auto handle = Handles::of_this_process().find_engine(engine);
    const EngineHandle::Use use = handle->use("quire_remove_lora");
    check_is_there(use.engine().remove_lora(given), given);
    return QUIRE_OK;
  });
}

quire_status quire_pin_lora(quire_engine engine, const char* name) {
  return guarded([&] {
    const std::string given = lora_name(name);
    const auto handle = Handles::of_this_process().find_engine(engine);
    const EngineHandle::Use use = handle->use("quire_pin_lora");
    check_is_there(use.engine().pin_lora(given), given);
    return QUIRE_OK;
  });
}

quire_status quire_list_loras(quire_engine engine, const char** json) {
  return guarded([&] {
    if (json == nullptr) throw InvalidArgument("json is null; give a place for the text's address");
    *json = nullptr;
    const auto handle = Handles::of_this_process().find_engine(engine);
    const EngineHandle::Use use = handle->use("quire_list_loras");
    thread_local std::string text;
    text = list_text(use.engine().list_loras());
    *json = text.c_str();
    return QUIRE_OK;
  });
}

quire_status quire_submit(quire_engine engine, const quire_submission* submission, quire_request* request) {
  return guarded([&] {
    clear_result(request, "request");
    const quire_submission given = read_struct(submission, kFirstSubmissionSize, "submission");
    Handles& handles = Handles::of_this_process();
    const auto handle = handles.find_engine(engine);
    const EngineHandle::Use use = handle->use("quire_submit");
    const RequestBody body = request_body(given);
    const quire_request id = Handles::make_id();
    const auto made = std::make_shared<RequestHandle>(id, handle, given.callback, given.user_data);
    // Before it begins: its callback may release it.
    handles.add(id, made);
    *request = id;
    try {
      made->begin(use, body);
    } catch (...) {
      *request = 0;
      handles.take_request(id);
      throw;
    }
    return QUIRE_OK;
  });
}

quire_status quire_poll(quire_request request, int64_t timeout_ms, quire_event* event) {
  return guarded([&] {
    struct_size(event, kFirstEventSize, "event");
    quire_event polled{};
    const quire_status status = Handles::of_this_process().find_request(request)->poll(timeout_ms, polled);
    write_struct(polled, event);
    return status;
  });
}

quire_status quire_cancel(quire_request request) {
  return guarded([&] {
    Handles::of_this_process().find_request(request)->cancel();
    return QUIRE_OK;
  });
}

quire_status quire_release(quire_request request) {
  return guarded([&] {
    Handles::of_this_process().take_request(request)->release();
    return QUIRE_OK;
  });
}
