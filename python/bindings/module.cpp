#include "bindings.h"
#include "quire/error.h"

namespace nb = nanobind;

namespace {

// InvalidArgument is the caller's mistake, ResourceExhausted a lack of room; the rest is ours.
void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const quire::InvalidArgument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const quire::ResourceExhausted& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const quire::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The engine, as it is in C++. Import `quire` instead.";
  nb::register_exception_translator(translate);
  quire::bindings::bind_gil(m);
  quire::bindings::bind_sampling(m);
  quire::bindings::bind_logits_processors(m);
  quire::bindings::bind_metrics(m);
  quire::bindings::bind_config(m);
  quire::bindings::bind_memory(m);
  quire::bindings::bind_outputs(m);
  quire::bindings::bind_text(m);
  quire::bindings::bind_chat_parsers(m);
  quire::bindings::bind_engine(m);
  quire::bindings::bind_http(m);
  quire::bindings::bind_fields(m);
  quire::bindings::bind_recorder(m);
  quire::bindings::bind_simulator(m);
}
