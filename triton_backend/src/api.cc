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

InstanceState* instance_state(TRITONBACKEND_ModelInstance* instance) {
  void* state = nullptr;
  check(server_api().TRITONBACKEND_ModelInstanceState(instance, &state));
  return static_cast<InstanceState*>(state);
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

// Instances of a model on one device share its engine there; each adds a thread that reads and tokenizes
// requests.
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  return guarded([&] {
    TRITONBACKEND_Model* model = nullptr;
    check(server_api().TRITONBACKEND_ModelInstanceModel(instance, &model));
    ModelState* state = model_state(model);
    auto made = std::make_unique<InstanceState>(
        InstanceState{state, state->engine_for(instance), std::make_shared<LiveInstance>(instance)});
    check(server_api().TRITONBACKEND_ModelInstanceSetState(instance, made.get()));
    made.release();
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return guarded([&] {
    const std::unique_ptr<InstanceState> state(instance_state(instance));
    if (state) state->instance->end();  // requests of it go on
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance) {
  return guarded([&] {
    const std::string error = instance_state(instance)->engine->dead_error();
    if (!error.empty()) throw ServerError(TRITONSERVER_ERROR_UNAVAILABLE, "the engine has ended: " + error);
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests,
                                                       uint32_t num_requests) {
  InstanceState* state = nullptr;
  if (TRITONSERVER_Error* error = guarded([&] { state = instance_state(instance); })) return error;
  for (uint32_t i = 0; i < num_requests; ++i) {
    try {
      state->model->execute(*state, requests[i]);
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
