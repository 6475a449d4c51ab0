// What the interpreter does to call a function of a template.
#include <algorithm>

#include "chat/budget.h"
#include "chat/globals.h"
#include "chat/interpreter.h"
#include "chat/python_format.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire::chat {
namespace {

using Kind = Value::Kind;

// Takes an argument out of those given by name.
std::optional<Value> take_named(Arguments& arguments, const std::string& name) {
  const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                  [&](const auto& argument) { return argument.first == name; });
  if (found == arguments.named.end()) return std::nullopt;
  std::pair<std::string, Value> argument = std::move(*found);
  arguments.named.erase(found);
  return std::move(argument.second);
}

}  // namespace

Value Interpreter::call(const Value& callee, Arguments arguments) {
  require_defined(callee);
  if (!callee.is(Kind::kFunction)) fail(str("'", callee.type_name(), "' object is not callable"));
  const Function& function = callee.as_function();
  switch (function.kind) {
    case Function::Kind::kGlobal: return call_global(function.name, arguments);
    case Function::Kind::kMacro: return call_macro(function, std::move(arguments));
    case Function::Kind::kMethod: break;
  }
  // A method looks at the arguments it is given, and at its object if that is no mere look-up.
  for (const Value& argument : arguments.positional) spend(argument.weight());
  if (function.name != "get") spend(function.self.weight());
  return call_method(function.self, function.name, arguments);
}

Value Interpreter::call_global(const std::string& name, const Arguments& arguments) {
  if (name == "namespace") return make_namespace(arguments);
  if (name != "raise_exception") return apply_global(name, arguments);
  const BoundArguments bound(name, arguments, {"message"});
  const std::string message = to_text(bound.required(0));
  is_located_ = true;  // the template speaks to whoever wrote the messages
  throw InvalidArgument("the chat template refuses these messages: " + message);
}

Value Interpreter::make_namespace(const Arguments& arguments) {
  const Value attributes = make_dict(arguments);
  spend_bytes(256);
  namespaces_.push_back(std::make_unique<Namespace>());
  for (const auto& [name, value] : attributes.as_dict().items) {
    check_namespace_name(require_string(name, "namespace"));
    namespaces_.back()->set(name.as_string(), value);
  }
  return Value::name_space(namespaces_.back().get());
}

Value Interpreter::call_macro(const Function& function, Arguments arguments) {
  const MacroDefinition& macro = *function.macro;
  const ScopePtr definition = function.scope.lock();
  if (!definition)
    fail(str("calling the macro '", macro.name, "' outside the block that defines it is not supported"));
  const ScopePtr scope = std::make_shared<Scope>(Scope{definition, {}});
  Values& positional = arguments.positional;
  const size_t num_parameters = macro.parameters.size();
  spend(static_cast<int64_t>(num_parameters + num_parameters * arguments.named.size() / 8));
  for (size_t i = 0; i < num_parameters; ++i) {
    const MacroDefinition::Parameter& parameter = macro.parameters[i];
    if (i < positional.size()) {
      scope->set(parameter.name, positional[i]);
    } else if (auto named = take_named(arguments, parameter.name)) {
      scope->set(parameter.name, std::move(*named));
    } else if (parameter.default_value) {
      scope->set(parameter.name, evaluate(*parameter.default_value, scope));
    } else {
      scope->set(parameter.name, Value::undefined(str("parameter '", parameter.name, "' was not provided")));
    }
  }
  if (macro.uses_caller && !scope->find("caller")) {
    auto caller = take_named(arguments, "caller");
    scope->set("caller", caller ? std::move(*caller) : Value::undefined("No caller defined"));
  }
  if (macro.uses_kwargs && !scope->find("kwargs")) {
    Dict named;
    for (const auto& [name, value] : arguments.named) named.set(Value(name), value);
    arguments.named.clear();
    scope->set("kwargs", Value::dict(std::move(named)));
  }
  if (!arguments.named.empty()) {
    fail(str("macro '", macro.name, "' takes no keyword argument '", arguments.named[0].first, "'"));
  }
  if (macro.uses_varargs && !scope->find("varargs")) {
    const size_t num_taken = std::min(num_parameters, positional.size());
    scope->set("varargs",
               Value::tuple({positional.begin() + static_cast<ptrdiff_t>(num_taken), positional.end()}));
  } else if (positional.size() > num_parameters) {
    fail(str("macro '", macro.name, "' takes not more than ", num_parameters, " argument(s)"));
  }
  std::string text;
  execute(macro.body, scope, text);
  return Value(std::move(text));
}

}  // namespace quire::chat
