// What the server calls. Nothing but translation: states in and out, exceptions to errors.
#include <malloc.h>

#include <memory>

#include "backend_state.h"
#include "model_state.h"
#include "process_exit.h"
#include "server_api.h"

using namespace quire::triton;  // this file is the edge of the namespace

namespace {

ModelState* model_state(TRITONBACKEND_Model* model) {
  void* state = nullptr;
  check(server_api().TRITONBACKEND_ModelState(model, &state));
  return static_cast<ModelState*>(state);
}

ModelState* model_state(TRITONBACKEND_ModelInstance* instance) {
  void* state = nullptr;
  check(server_api().TRITONBACKEND_ModelInstanceState(instance, &state));
  return static_cast<ModelState*>(state);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  return guarded([&] {
    require_server_api();
    auto state = std::make_unique<BackendState>(backend);
    guard_process_exit(state->exit_grace());
    check(server_api().TRITONBACKEND_BackendSetState(backend, state.get()));
    state.release();
  });
}

TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) {
  return guarded([&] {
    void* state = nullptr;
    check(server_api().TRITONBACKEND_BackendState(backend, &state));
    delete static_cast<BackendState*>(state);
  });
}

// The engine places itself: without this the server would want a GPU for each instance.
TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(TRITONBACKEND_Backend*,
                                                      TRITONBACKEND_BackendAttribute* attributes) {
  return guarded([&] {
    check(server_api().TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
        attributes, TRITONSERVER_INSTANCEGROUPKIND_MODEL, /*count=*/1, nullptr, 0));
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return guarded([&] {
    auto state = std::make_unique<ModelState>(model);
    check(server_api().TRITONBACKEND_ModelSetState(model, state.get()));
    state.release();
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  // At the process's end its threads wait for ever, and joining them would too.
  if (process_is_exiting()) return nullptr;
  return guarded([&] {
    delete model_state(model);
    malloc_trim(0);  // what the allocator keeps for the next model goes back to the system
  });
}

// Instances of a model share its engine; each adds a thread that reads and tokenizes requests.
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  return guarded([&] {
    TRITONBACKEND_Model* model = nullptr;
    check(server_api().TRITONBACKEND_ModelInstanceModel(instance, &model));
    check(server_api().TRITONBACKEND_ModelInstanceSetState(instance, model_state(model)));
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance*) { return nullptr; }

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance) {
  return guarded([&] {
    const std::string error = model_state(instance)->dead_error();
    if (!error.empty()) throw ServerError(TRITONSERVER_ERROR_UNAVAILABLE, "the engine has ended: " + error);
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests,
                                                       uint32_t num_requests) {
  ModelState* state = nullptr;
  if (TRITONSERVER_Error* error = guarded([&] { state = model_state(instance); })) return error;
  for (uint32_t i = 0; i < num_requests; ++i) {
    try {
      state->execute(instance, requests[i]);
    } catch (const std::exception& error) {
      // Others of the batch are ours already, so this one cannot be handed back either.
      log(TRITONSERVER_LOG_ERROR, std::string("a request could not be answered: ") + error.what());
      log_failure(server_api().TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL),
                  "releasing a request");
    }
  }
  return nullptr;
}

}  // extern "C"
