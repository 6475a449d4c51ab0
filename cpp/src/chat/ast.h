// A template, parsed.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chat/value.h"

namespace quire::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

// What each kind has in `operands` and `name`:
struct Expression {
  enum class Kind {
    kLiteral,      // literal
    kName,         // name
    kList,         // the items
    kTuple,        // the items
    kDict,         // key, value, key, value, ..
    kAttribute,    // the object; name
    kSubscript,    // the object, the index
    kSlice,        // the object, start, end, step; each of the three may be null
    kCall,         // the callee, the positional arguments; named
    kFilter,       // the input (of a filter block: null), the positional arguments; name; named
    kTest,         // the input, the positional arguments; name; named
    kNegate,       // one
    kPositive,     // one
    kNot,          // one
    kAnd,          // two
    kOr,           // two
    kBinary,       // two; name is the operator
    kConcat,       // any number
    kCompare,      // any number; operators between them
    kConditional,  // the condition, the value if it holds, the other value or null
  };

  Kind kind;
  int line;
  int depth = 1;  // of the tree under it, so that evaluating it needs little stack
  Value literal;
  std::string name;
  std::vector<ExpressionPtr> operands;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
};

// Where a value goes: a name, an attribute of a namespace, or several of them.
struct Target {
  std::string name;
  std::string attribute;      // empty: the name itself
  std::vector<Target> parts;  // not empty: unpacks into these
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct MacroDefinition {
  struct Parameter {
    std::string name;
    ExpressionPtr default_value;  // may be null
  };
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  // Whether the body looks at these, and so may be called with arguments that have no parameter.
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};

struct Statement {
  enum class Kind {
    kText,         // text
    kOutput,       // expressions
    kIf,           // branches, in order; an else branch has no condition
    kFor,          // target, expressions[0], condition (may be null), body, otherwise
    kSet,          // target, expressions[0]
    kSetBlock,     // target, filter (may be null), body
    kWith,         // assignments, body
    kMacro,        // macro
    kCallBlock,    // expressions[0], a call; macro is the caller
    kFilterBlock,  // filter, body
    kScope,        // body, as it is
    kBreak,
    kContinue,
  };

  struct Branch {
    ExpressionPtr condition;
    Body body;
  };

  Kind kind;
  int line;
  std::string text;
  Target target;
  std::vector<ExpressionPtr> expressions;
  ExpressionPtr condition;
  ExpressionPtr filter;  // the innermost input is null: it is the text of the body
  Body body;
  Body otherwise;
  std::vector<Branch> branches;
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  std::unique_ptr<MacroDefinition> macro;
};

// Throws InvalidArgument, naming the construct and its line, for what is malformed or not supported.
Body parse_template(std::string_view source);

}  // namespace quire::chat
