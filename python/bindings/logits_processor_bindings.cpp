#include "logits_processor_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "quire/logits_processor.h"
#include "values.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

// An object that C++ lets go on any thread. When Python is about to end, it stays.
class HeldObject {
 public:
  explicit HeldObject(nb::object object) : object_(std::move(object)) {
    const std::lock_guard lock(all().mutex);
    all().objects.insert(this);
  }
  HeldObject(const HeldObject&) = delete;
  HeldObject& operator=(const HeldObject&) = delete;
  ~HeldObject() {
    const AcquiredGil gil;
    {
      const std::lock_guard lock(all().mutex);
      all().objects.erase(this);
    }
    if (gil) {
      object_.reset();
    } else {
      (void)object_.release();
    }
  }
  const nb::object& get() const {
    if (!object_) throw std::runtime_error("Python is ending");
    return object_;
  }

  // A script's class and its engine refer to each other, the class by what its functions see of the script.
  // Python's collector does not look into engines, so at the end, when none runs, their part of it is undone.
  static void let_go_of_all() {
    std::vector<nb::object> objects;  // outlives the lock: what goes with them may be held as well
    const std::lock_guard lock(all().mutex);
    for (HeldObject* held : all().objects) objects.push_back(std::move(held->object_));
  }

 private:
  struct All {
    std::mutex mutex;  // taken by who has the lock of Python already, or never takes it
    std::set<HeldObject*> objects;
  };
  static All& all() {
    static auto* const one = new All;
    return *one;
  }
  nb::object object_;
};

std::string describe_error(const nb::python_error& error) {
  try {
    const nb::object describe = nb::module_::import_("quire.logits_processors").attr("describe_error");
    return nb::cast<std::string>(describe(error.value()));
  } catch (const std::exception&) {
    return "an error that cannot be printed";
  }
}

// Calls `run` in Python. What it raises becomes a C++ exception that holds nothing of Python's.
template <typename Run>
auto in_python(const Run& run) {
  const AcquiredGil gil;
  if (!gil) throw std::runtime_error("Python is ending");
  try {
    return run();
  } catch (const nb::python_error& error) {
    // It was meant for whoever waits for the engine.
    if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
    throw std::runtime_error(describe_error(error));
  }
}

// A class as an engine's configuration has it: what tells whether a thread is in it goes by its address.
struct PythonProcessor : NamedLogitsProcessor {};

thread_local std::vector<const void*> processors_of_this_thread;

// Calls the host of a Python processor (quire/logits_processors.py) with the rows of a step. What requests
// come and go is only noted: Python is entered when there are rows.
class PythonLogitsProcessor final : public LogitsProcessor {
 public:
  PythonLogitsProcessor(nb::object host, const void* identity, int32_t vocab_size)
      : host_(std::move(host)),
        identity_(identity),
        vocab_size_(static_cast<size_t>(vocab_size)),
        is_argmax_invariant_(nb::cast<bool>(host_.get().attr("is_argmax_invariant"))) {}
  ~PythonLogitsProcessor() override {
    const AcquiredGil gil;
    for (std::vector<Request>* requests : {&rows_, &gone_}) {
      for (Request& request : *requests) {
        if (!gil) request.leave();
      }
      requests->clear();
    }
  }

  void update_state(const BatchUpdate& update) override {
    for (const int32_t row : update.removed) gone_.push_back(std::exchange(at(row), {}));
    for (const AddedRequest& added : update.added) {
      if (static_cast<size_t>(added.row) >= rows_.size()) rows_.resize(static_cast<size_t>(added.row) + 1);
      Request& request = at(added.row);
      request.key = ++num_requests_;
      request.params = added.params;
      request.prompt = added.prompt_token_ids;
    }
    for (const MovedRequest& moved : update.moved) at(moved.to) = std::exchange(at(moved.from), {});
    rows_.resize(static_cast<size_t>(update.batch_size));
  }

  void apply(std::span<const LogitsRow> rows) override {
    in_python([&] {
      gone_.clear();
      processors_of_this_thread.push_back(identity_);
      try {
        // With drafts a request has several rows, and one place in a batch.
        for (size_t nth = 0; take_nth(rows, nth); ++nth) run();
      } catch (...) {
        processors_of_this_thread.pop_back();
        throw;
      }
      processors_of_this_thread.pop_back();
    });
  }
  bool is_argmax_invariant() const override { return is_argmax_invariant_; }

 private:
  struct Request {
    uint64_t key = 0;  // 0: nobody's row
    const SamplingParams* params = nullptr;
    std::span<const int32_t> prompt;
    nb::object described;        // (params, prompt, output); null before the first row
    nb::object output;           // a list, of `described`
    std::vector<int32_t> known;  // what `output` holds

    // Keeps what is Python's for ever.
    void leave() {
      (void)described.release();
      (void)output.release();
    }
  };

  Request& at(int32_t row) { return rows_[static_cast<size_t>(row)]; }

  // The nth row of each request that has so many; false when there is none.
  bool take_nth(std::span<const LogitsRow> rows, size_t nth) {
    taken_.clear();
    size_t place = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      place = i > 0 && rows[i].row == rows[i - 1].row ? place + 1 : 0;
      if (place == nth) taken_.push_back(&rows[i]);
    }
    return !taken_.empty();
  }

  void describe(Request& request, std::span<const int32_t> output) {
    if (!request.described) {
      nb::list prompt;
      for (const int32_t id : request.prompt) prompt.append(id);
      request.output = nb::list();
      request.known.clear();
      request.described = nb::make_tuple(SamplingParams(*request.params), prompt, request.output);
    }
    // The list stays the same one, and grows: processors keep it.
    const auto agreed =
        static_cast<size_t>(std::ranges::mismatch(request.known, output).in1 - request.known.begin());
    const auto length = static_cast<Py_ssize_t>(nb::len(request.output));
    const size_t kept = static_cast<size_t>(length) == request.known.size() ? agreed : 0;
    if (static_cast<Py_ssize_t>(kept) < length &&
        PyList_SetSlice(request.output.ptr(), static_cast<Py_ssize_t>(kept), length, nullptr) != 0)
      throw nb::python_error();
    nb::list list = nb::borrow<nb::list>(request.output);
    for (const int32_t id : output.subspan(kept)) list.append(id);
    request.known.assign(output.begin(), output.end());
  }

  void run() {
    try {
      run_rows();
    } catch (...) {
      told_.clear();
      throw;
    }
  }
  void run_rows() {
    keys_.clear();
    for (const LogitsRow* row : taken_) keys_.push_back(at(row->row).key);
    nb::object batch = nb::none();
    if (keys_ != told_) {
      nb::list requests;
      for (const LogitsRow* row : taken_) {
        Request& request = at(row->row);
        describe(request, row->output_token_ids);
        requests.append(nb::make_tuple(request.key, request.described));
      }
      batch = requests;
    } else {
      for (const LogitsRow* row : taken_) describe(at(row->row), row->output_token_ids);
    }
    // Whether rows are at equal distances, as all rows of a step are.
    const float* first = taken_.front()->logits.data();
    const std::ptrdiff_t stride =
        taken_.size() > 1 ? taken_[1]->logits.data() - first : static_cast<std::ptrdiff_t>(vocab_size_);
    bool in_place = taken_.front()->memory != nullptr && stride > 0;
    for (size_t i = 0; i < taken_.size(); ++i)
      in_place &= taken_[i]->logits.data() == first + static_cast<std::ptrdiff_t>(i) * stride;
    std::shared_ptr<void> memory;
    float* data = taken_.front()->logits.data();
    if (in_place) {
      memory = *taken_.front()->memory;
    } else {
      const auto copy = std::make_shared<std::vector<float>>(taken_.size() * vocab_size_);
      data = copy->data();
      memory = copy;
      for (size_t i = 0; i < taken_.size(); ++i) std::ranges::copy(taken_[i]->logits, data + i * vocab_size_);
    }
    const nb::capsule owner(new std::shared_ptr<void>(memory), [](void* pointer) noexcept {
      delete static_cast<std::shared_ptr<void>*>(pointer);
    });
    const nb::ndarray<nb::numpy, float, nb::ndim<2>> logits(
        data, {taken_.size(), vocab_size_}, owner,
        {in_place ? stride : static_cast<std::ptrdiff_t>(vocab_size_), 1});
    host_.get().attr("apply")(nb::cast(logits, nb::rv_policy::reference), batch);
    told_ = keys_;
    for (size_t i = 0; !in_place && i < taken_.size(); ++i)
      std::copy_n(data + i * vocab_size_, vocab_size_, taken_[i]->logits.begin());
  }

  const HeldObject host_;
  const void* const identity_;
  const size_t vocab_size_;
  const bool is_argmax_invariant_;
  uint64_t num_requests_ = 0;
  std::vector<Request> rows_;
  std::vector<Request> gone_;  // to be let go when Python is entered next
  std::vector<uint64_t> keys_, told_;
  std::vector<const LogitsRow*> taken_;
};

// `resolved`: name, class that hosts it, names of extra_args, and a validate_params or None.
std::shared_ptr<const NamedLogitsProcessor> make_processor(const nb::tuple& resolved) {
  const auto processor = std::make_shared<PythonProcessor>();
  processor->name = nb::cast<std::string>(resolved[0]);
  const auto make_host = std::make_shared<HeldObject>(resolved[1]);
  const auto names = nb::cast<std::vector<std::string>>(resolved[2]);
  const void* identity = processor.get();
  processor->factory.make = [make_host, identity](const LogitsProcessorConfig& config) {
    return in_python([&]() -> std::unique_ptr<LogitsProcessor> {
      return std::make_unique<PythonLogitsProcessor>(make_host->get()(config), identity, config.vocab_size);
    });
  };
  // Asked of every request, by the engine's threads too: Python is not entered for it.
  processor->factory.validate_params = [names](const SamplingParams& params) {
    return names.empty() ||
           std::ranges::any_of(names, [&](const std::string& name) { return has_extra_arg(params, name); });
  };
  if (!nb::object(resolved[3]).is_none()) {
    processor->factory.check_params =
        [validate = std::make_shared<HeldObject>(resolved[3])](const SamplingParams& params) {
          in_python([&] { validate->get()(SamplingParams(params)); });
        };
  }
  return processor;
}

}  // namespace

bool set_logits_processors(EngineConfig& config, nb::handle value) {
  config.logits_processors.clear();
  config.own_logits_processors.clear();
  if (value.is_none()) return true;
  const nb::list resolved =
      nb::cast<nb::list>(nb::module_::import_("quire.logits_processors").attr("resolve")(value));
  for (const nb::handle entry : resolved) {
    std::string name;
    if (!nb::try_cast(entry, name)) {
      config.own_logits_processors.push_back(make_processor(nb::cast<nb::tuple>(entry)));
      name = config.own_logits_processors.back()->name;
    }
    config.logits_processors.push_back(std::move(name));
  }
  return true;
}

bool is_in_logits_processor(const EngineConfig& config) {
  return std::ranges::any_of(config.own_logits_processors, [](const auto& own) {
    return std::ranges::find(processors_of_this_thread, own.get()) != processors_of_this_thread.end();
  });
}
bool is_in_logits_processor() { return !processors_of_this_thread.empty(); }

void bind_logits_processors(nb::module_& m) {
  nb::class_<LogitsProcessorConfig> config(m, "LogitsProcessorConfig",
                                           "What a logits processor is made for.");
  config.def_ro("vocab_size", &LogitsProcessorConfig::vocab_size)
      .def_ro("think_start_token_ids", &LogitsProcessorConfig::think_start_token_ids)
      .def_ro("think_end_token_ids", &LogitsProcessorConfig::think_end_token_ids)
      .def_ro("rank", &LogitsProcessorConfig::rank)
      .def_ro("world_size", &LogitsProcessorConfig::world_size);
  def_plain_value<&LogitsProcessorConfig::vocab_size, &LogitsProcessorConfig::think_start_token_ids,
                  &LogitsProcessorConfig::think_end_token_ids, &LogitsProcessorConfig::rank,
                  &LogitsProcessorConfig::world_size>(
      config, {"vocab_size", "think_start_token_ids", "think_end_token_ids", "rank", "world_size"});
  m.def(
      "let_go_of_processors", HeldObject::let_go_of_all,
      "Python's logits processors are forgotten: for the end of the process, when no engine runs any more.");
}

}  // namespace quire::bindings
