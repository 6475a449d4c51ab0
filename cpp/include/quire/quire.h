// Quire for C, and for whatever calls C: an engine of a model directory, requests as text, messages or ids
// with parameters in JSON, and answers as JSON in the words of OpenAI's API.
//
//   quire_engine_options options = {.struct_size = sizeof options, .model = "path/to/model"};
//   quire_engine engine;
//   if (quire_engine_create(&options, &engine) != QUIRE_OK) puts(quire_last_error());
//
// Errors. A function that can fail returns a quire_status; quire_last_error() then says why, in one line that
// names the argument or field, the value and what would do. No C++ exception leaves a function. Null, and
// handles that were never made or are gone, are errors; any other pointer must be what it says.
//
// Handles are numbers, never given twice in a process; 0 is none. In a child that is forked, those of the
// parent are errors, and the child may make engines of its own.
//
// Ownership. Arguments are copied before a function returns. Memory that a function gives is the library's
// and lives as long as its comment says.
//
// Threads. Every function may be called from any thread at any time, but that one request is polled by one
// thread at a time. See quire_callback for what a callback may call.
//
// Growth. A struct that crosses begins with its own size, which the caller sets to sizeof. Later versions
// append fields, never change or remove one: a program that was compiled against an older header runs with a
// newer library. A newer program's struct is taken by an older library as long as the fields that this one
// does not know are zero.
#ifndef QUIRE_QUIRE_H
#define QUIRE_QUIRE_H

#include <stddef.h>
#include <stdint.h>

#include "quire/export.h"

#ifdef __cplusplus
extern "C" {
#endif

// Counts what has been added to this header. See quire_abi_version().
#define QUIRE_ABI_VERSION 2

typedef uint64_t quire_engine;
typedef uint64_t quire_request;

typedef int32_t quire_status;
enum {
  QUIRE_OK = 0,
  QUIRE_INVALID_ARGUMENT = 1,    // the caller's mistake
  QUIRE_RESOURCE_EXHAUSTED = 2,  // no room: memory, the queue, or an engine that has ended
  QUIRE_TIMEOUT = 3,             // nothing came in that time; no failure
  QUIRE_END = 4,                 // all events have been taken; no failure
  QUIRE_ERROR = 5                // all else
};

typedef struct quire_engine_options {
  size_t struct_size;
  // A Hugging Face directory, or a name on the hub, "org/name" or "org/name@revision", from its local cache.
  const char* model;
  // An object, or null: the fields of EngineConfig (quire/engine_config.h) by their names, and of strings
  // "reasoning_parser", "tool_parser" (how the model writes them, by vLLM's names), "chat_template" (Jinja
  // instead of the model's own) and "served_model_name" (what answers call the model).
  const char* config_json;
} quire_engine_options;

// A piece of an answer.
typedef struct quire_event {
  size_t struct_size;
  quire_request request;
  // UTF-8, ended by a zero that json_size does not count. Without "stream" in a request's parameters, its one
  // event is the body of /v1/completions or /v1/chat/completions; with "stream": true each is a chunk of
  // these. Of a failure, {"error": {"message", "type", "param", "code"}}.
  const char* json;
  size_t json_size;
  quire_status status;  // QUIRE_OK, or what kind of failure ended the request
  int32_t finished;     // 1 in a request's last event, else 0
} quire_event;

// Takes a request's events, on a thread of the engine's (the last one, of a request that is unfinished when
// its engine is destroyed, on the thread that destroys it). The event and what it points to end with the
// call. It must return soon, since all answers of the engine wait for it, and must not throw or jump out. Of
// the same engine it may call quire_cancel and quire_release; what else refers to an engine or a request of
// it is refused. Events of one request come one at a time and in order, the first perhaps before quire_submit
// has returned; each request that was submitted has exactly one event with `finished`, unless it is released
// before.
typedef void (*quire_callback)(const quire_event* event, void* user_data);

// Exactly one of text, messages_json and token_ids is not null.
typedef struct quire_submission {
  size_t struct_size;
  const char* text;  // UTF-8, text_size bytes, at least one
  size_t text_size;
  const char* messages_json;  // a conversation: an array of {"role", "content", ...}
  const int32_t* token_ids;   // num_token_ids of them, at least one
  size_t num_token_ids;
  // An object, or null: whatever a body of /v1/completions (for text and token_ids) or /v1/chat/completions
  // (for messages_json) may have beside the prompt: "max_tokens", "temperature", "stream", "tools", ...
  const char* params_json;
  quire_callback callback;  // null: events are taken with quire_poll
  void* user_data;          // the callback's, or null
} quire_submission;

// Of an engine since its start.
typedef struct quire_engine_stats {
  size_t struct_size;
  uint64_t num_steps;
  uint64_t num_scheduled_tokens;
  uint64_t num_generation_tokens;
  uint64_t num_preemptions;
  uint64_t prefix_cache_queries;  // prompt tokens looked up
  uint64_t prefix_cache_hits;     // prompt tokens found
  int64_t num_waiting_tokens;     // prompt tokens of waiting requests
  int32_t num_running_reqs;
  int32_t num_waiting_reqs;
  int32_t num_free_blocks;
  int32_t num_total_blocks;
  double kv_cache_usage;  // [0, 1]
} quire_engine_stats;

// An adapter (LoRA): a directory as PEFT saves them. Since version 2 of the ABI, like the functions that take
// it. The engine's config_json has "enable_lora": true.
typedef struct quire_lora {
  size_t struct_size;
  const char* name;  // what requests call it, as "lora_name" or "model" of their parameters
  const char* path;
  int32_t int_id;        // a number of the caller's that no other adapter has; 0: none
  int32_t load_inplace;  // not 0: one that has the name is replaced; requests that compute with it keep it
} quire_lora;

// The library's version, "0.1.0", for ever. Never null.
QUIRE_API const char* quire_version(void);
// QUIRE_ABI_VERSION of the library that runs: what a header of at most this version declares is there.
QUIRE_API uint32_t quire_abi_version(void);
// Why the last call that failed on this thread did: until the next one on this thread. Never null.
QUIRE_API const char* quire_last_error(void);

// Loads a model, which takes its time. *engine is 0 where it fails.
QUIRE_API quire_status quire_engine_create(const quire_engine_options* options, quire_engine* engine);
// Ends the engine after the step that runs, and frees its memory. Unfinished requests get a last event with
// QUIRE_ERROR. Handles of requests stay until they are released, and what has arrived can be polled.
QUIRE_API quire_status quire_engine_destroy(quire_engine engine);
QUIRE_API quire_status quire_engine_get_stats(quire_engine engine, quire_engine_stats* stats);

// Reads an adapter, on this thread: requests may name it from then on. Does nothing when it is there already.
QUIRE_API quire_status quire_add_lora(quire_engine engine, const quire_lora* lora);
// Requests cannot name it any more; it goes when the last one that has it is over. An adapter that is not
// there is QUIRE_INVALID_ARGUMENT, here and in the next.
QUIRE_API quire_status quire_remove_lora(quire_engine engine, const char* name);
// It stays in memory until it is removed.
QUIRE_API quire_status quire_pin_lora(quire_engine engine, const char* name);
// *json is an array of objects, in the order in which the adapters were added: "lora_name", "lora_int_id",
// "lora_path", "rank", "is_loaded" (in memory), "is_pinned", "num_requests" (unfinished ones that have it).
// It lives until the next call of this function on this thread.
QUIRE_API quire_status quire_list_loras(quire_engine engine, const char** json);

// Queues a request: *request is to be given to quire_release at some time. Where it fails, *request is 0,
// nothing was queued and no callback is called.
QUIRE_API quire_status quire_submit(quire_engine engine, const quire_submission* submission,
                                    quire_request* request);
// The next event, for which it waits at most timeout_ms milliseconds; without limit where that is negative.
// QUIRE_TIMEOUT when none came, QUIRE_END when the last one has been taken. event->json lives until the
// request is polled again or released. Not for requests with a callback.
QUIRE_API quire_status quire_poll(quire_request request, int64_t timeout_ms, quire_event* event);
// Ends a request soon: its last event has what there is, with "finish_reason": "abort". Does nothing to one
// that is finished.
QUIRE_API quire_status quire_cancel(quire_request request);
// Ends a request if it is unfinished, and the handle. Its callback is not called any more, and is not being
// called when this returns, unless it is the one that calls.
QUIRE_API quire_status quire_release(quire_request request);

#ifdef __cplusplus
}
#endif

#endif
