"""quire's chat templates against transformers: the same prompt, to the byte.

The templates in chat_templates/ are written for this test, in the manner of the model families they
are named after: the constructs are theirs, the words are not.
"""
# ruff: noqa: RUF001  (the texts hold look-alike characters on purpose)

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from quire._core import ChatTemplate
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import models
from transformers import PreTrainedTokenizerFast

Message = dict[str, Any]

TEMPLATES = {p.stem: p.read_text("utf-8") for p in Path(__file__).parent.glob("chat_templates/*.jinja")}

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Wetter für <Ort> & "Zeit"',
            "parameters": {
                "type": "object",
                "required": ["city"],
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "unit": {"enum": ["°C", "°F"]},
                    "where": {
                        "type": "object",
                        "required": ["lat"],
                        "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
                    },
                },
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "noop",
            "description": "",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]

TEXTS = [
    "Hi",
    "",
    "  spaced out \n\n",
    "Zeile 1\nZeile 2\n",
    "<think>\nhm\n</think>\n\nSo: 4",
    "天气怎么样？ 👩‍🚀",
    "'single' \"double\" \\ back",
]
TEXTS += [
    "{{ 7 * 7 }} {% raw %}",
    "<tool_response>x</tool_response>",
    "\u00a0nbsp\u3000",
    "\x00\x1f\x7f",
    "ΑΣ ΣΑΣ ß ŉ",
]


def random_messages(rng: random.Random) -> list[Message]:
    messages: list[Message] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(TEXTS)})
    for _ in range(rng.randint(1, 5)):
        content: Any = rng.choice(TEXTS)
        if rng.random() < 0.1:
            content = [{"type": "text", "text": content}, {"type": "image"}]
        messages.append({"role": "user", "content": content})
        kind = rng.random()
        if kind < 0.25:
            call = {
                "name": "get_weather",
                "arguments": {"city": rng.choice(TEXTS), "n": [1, 2.5, -1e22, None, True]},
            }
            calls = [{"id": "123456789", "type": "function", "function": call}]
            if rng.random() < 0.3:
                calls.append({"type": "function", "function": {"name": "noop", "arguments": {}}})
            messages.append(
                {
                    "role": "assistant",
                    "content": rng.choice([None, "", "calling"]),
                    "tool_calls": calls,
                }
            )
            messages.append({"role": "tool", "content": rng.choice(TEXTS), "name": "get_weather"})
        elif kind < 0.8:
            answer: Message = {"role": "assistant", "content": rng.choice(TEXTS)}
            if rng.random() < 0.3:
                answer[rng.choice(["reasoning_content", "thinking", "reasoning"])] = rng.choice(TEXTS)
            messages.append(answer)
    return messages


SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def write_model(directory: Path, config: dict[str, Any]) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL_TOKENS, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    vocab = {token: i for i, token in enumerate(SPECIAL_TOKENS.values())}
    HfTokenizer(models.BPE(vocab, [])).save(str(directory / "tokenizer.json"))


def reference(directory: Path) -> Callable[..., str]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(directory))

    def render(messages: list[Message], **options: Any) -> str:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))

    return render


class Pair:
    def __init__(self, directory: Path, template: Any) -> None:
        write_model(directory, {"chat_template": template})
        self.directory = directory
        self.ours = ChatTemplate(str(directory))
        self.theirs = reference(directory)

    def render_other(self, template: str, messages: list[Message]) -> str:
        """With a template of one test only."""
        (self.directory / "chat_template.jinja").write_text(template, encoding="utf-8")
        return str(ChatTemplate(str(self.directory)).render(messages))

    def check(self, messages: list[Message], **options: Any) -> None:
        options.setdefault("add_generation_prompt", True)
        ours = {**options, "chat_template_content_format": "openai"}
        try:
            expected = self.theirs(messages, **options)
        except Exception:
            # An assistant without content says nothing, as in vLLM; transformers leaves that to the template.
            silent = [
                {**each, "content": ""}
                if each.get("role") == "assistant" and each.get("content") is None
                else each
                for each in messages
            ]
            try:
                expected = self.theirs(silent, **options)
            except Exception:
                with pytest.raises(ValueError):
                    self.ours.render(messages, **ours)
                return
        assert self.ours.render(messages, **ours) == expected


MakePair = Callable[[Any], Pair]


@pytest.fixture
def make_pair(tmp_path: Path) -> MakePair:
    return lambda template: Pair(tmp_path, template)


@pytest.mark.parametrize("family", sorted(TEMPLATES))
def test_families_render_alike(make_pair: MakePair, family: str) -> None:
    pair = make_pair(TEMPLATES[family])
    rng = random.Random(family)
    for _ in range(300):
        options: dict[str, Any] = {
            "add_generation_prompt": rng.random() < 0.6,
            "tools": rng.choice([None, None, [], TOOLS]),
        }
        if rng.random() < 0.2:
            options |= {"enable_thinking": rng.random() < 0.5, "date_string": "26 Jul 2024"}
        pair.check(random_messages(rng), **options)


@pytest.mark.parametrize("family", ["chatml", "llama3", "qwen3", "phi3", "gemma", "deepseek"])
def test_the_final_message_can_be_continued(make_pair: MakePair, family: str) -> None:
    pair = make_pair(TEMPLATES[family])
    endings: list[Any] = ["Sure, ", "Sure,\n\n", "Sure", " padded "]
    for ending in [*endings, [{"type": "text", "text": "The answer "}]]:
        messages: list[Message] = [{"role": "user", "content": "Well?"}]
        messages.append({"role": "assistant", "content": ending})
        pair.check(messages, add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize(
    "space", ["", " ", "\n", "  \n", "\n\n  ", "a", "a ", "\t", " a\n ", "\r\n", "\u00a0"]
)
def test_white_space_around_tags(make_pair: MakePair, space: str) -> None:
    tags = [
        "{{ 1 }}",
        "{{- 1 -}}",
        "{% if 1 %}",
        "{%- if 1 %}",
        "{% if 1 -%}",
        "{%+ if 1 %}",
        "{% if 1 +%}",
        "{# c #}",
        "{#- c -#}",
        "{% raw %}",
        "{%- raw -%}",
        "{#+ c +#}",
    ]
    for first in tags:
        for second in tags:
            parts = [space]
            for tag in (first, second):
                parts += [tag, space, "x", space]
                parts += (
                    ["{% endif %}", space] if "if" in tag else ["{% endraw %}", space] if "raw" in tag else []
                )
            make_pair("".join(parts)).check([{"role": "user", "content": "x"}])


def parts(text: str) -> list[str]:
    """What stands between ";;" and line ends."""
    return [part.strip() for line in text.strip().splitlines() for part in line.split(";;")]


# Put together in all combinations.
VALUES = parts(
    r"""
0 ;; 7 ;; -3 ;; 2.5 ;; 1e22 ;; -0.5 ;; true ;; false ;; none ;; missing ;; '' ;; 'a b c'
'ß Straße ΑΣ' ;; ' x\n' ;; '10' ;; '3.7' ;; '<&>\'\"\x7f\u200b' ;; [] ;; [3, 1, 2]
['b', 'A', 'c'] ;; (1,) ;; (1, 'a') ;; {} ;; {'a': 1, 'items': {'c': [1]}} ;; range(3) ;; messages
messages[0] ;; messages[0].content ;; namespace(a=[1]).a
"""
)
FILTERS = parts(
    r"""
trim ;; trim('a') ;; length ;; join(',') ;; join ;; tojson ;; tojson(indent=2)
tojson(sort_keys=true) ;; upper ;; lower ;; default('D') ;; d('D', true) ;; list ;; first ;; last
replace('a', 'Z', 1) ;; string ;; int(5) ;; float ;; capitalize ;; map('upper') | list
map(attribute='role') | list ;; selectattr('role', 'equalto', 'user') | list ;; title ;; abs
safe ;; rejectattr('role') | list ;; select('string') | list ;; reject('none') | list
items | list ;; dictsort ;; indent(2, true) ;; unique | list ;; sort ;; sort(reverse=true)
reverse | list ;; round ;; round(1, 'ceil') ;; sum ;; min ;; max ;; count
tojson(ensure_ascii=true, separators=(',', ':')) ;; map(attribute='a.c', default=3) | list
select | list | length
"""
)
OPERATORS = parts(
    r"""
+ ;; - ;; * ;; / ;; // ;; ~ ;; == ;; != ;; < ;; <= ;; > ;; >= ;; in ;; not in ;; and ;; or
"""
)
TESTS = parts(
    r"""
defined ;; undefined ;; none ;; string ;; mapping ;; sequence ;; iterable ;; number ;; integer
float ;; boolean ;; true ;; false ;; odd ;; even ;; lower ;; upper ;; divisibleby 2 ;; eq 1
ne 1 ;; lt 2 ;; ge 1 ;; in [1, 'abc'] ;; sameas true
"""
)
ACCESSES = parts(
    r"""
[0] ;; [-1] ;; [9] ;; ['a'] ;; ['items'] ;; .a ;; .items() | list ;; .keys() | list ;; .get('a')
.get('z', 'd') ;; .upper() ;; .lower() ;; .title() ;; .capitalize() ;; .strip() ;; .strip('a ')
.lstrip() ;; .rstrip('c') ;; .split() ;; .split(' ', 1) ;; .rsplit(maxsplit=1) ;; .startswith('a')
.endswith(('x', 'c')) ;; .replace('a', 'b') ;; .foo ;; .find('b') ;; .count('b') ;; .isdigit()
.splitlines() ;; .zfill(5) ;; .center(8, '*') ;; .partition(' ') ;; .foo.bar ;; .removeprefix('a')
.append(1) ;; .pop() ;; .join(['x', 'y']) ;; .index(1) ;; .0 ;; [none] ;; [true] ;; ['__class__']
"""
)
SLICES = parts(
    r"""
[1:] ;; [:-1] ;; [::-1] ;; [::2] ;; [-2:] ;; [5:0:-1] ;; [:9]
"""
)
# Refused although Python has an answer: addresses of objects, and integers beyond 64 bits.
REFUSED = [("1e22", "| int(5)")]
NOT_SLICED = [
    "0",
    "7",
    "-3",
    "2.5",
    "1e22",
    "-0.5",
    "true",
    "false",
    "none",
    "{}",
    "{'a': 1, 'items': {'c': [1]}}",
    "range(3)",
]


def expressions() -> list[str]:
    found = [f"({v}) | {f}" for v in VALUES for f in FILTERS if (v, f"| {f}") not in REFUSED]
    found += [f"({a}) {op} ({b})" for a in VALUES for op in OPERATORS for b in VALUES]
    found += [f"({v}) is {word}{test}" for v in VALUES for word in ("", "not ") for test in TESTS]
    found += [
        f"({v}){access}" for v in VALUES for access in ACCESSES if not ("items']" in access and "{" in v)
    ]
    found += [f"({v}){part}" for v in VALUES if v not in NOT_SLICED for part in SLICES]
    return [e for e in found if "(messages[0])['items']" not in e and e != "({})['items']"]


def test_expressions_have_their_values(make_pair: MakePair) -> None:
    # Each in a template of its own, since many raise; in one file they are rendered by name.
    messages = [
        {"role": "user", "content": "Hi <b>\"x\"</b> é 'q' 字"},
        {"role": "assistant", "content": " ok "},
    ]
    pair = make_pair("x")
    wrong = []
    for expression in random.Random(0).sample(expressions(), 2000):
        template = "{{ " + expression + " }}"
        try:
            expected: str | None = pair.theirs(messages, chat_template=template)
        except Exception:
            expected = None
        try:
            actual: str | None = pair.render_other(template, messages)
        except ValueError:
            actual = None
        if actual != expected:
            wrong.append((template, expected, actual))
    assert wrong == []


REFUSALS = [
    ("\n{% include 'x' %}", "line 2: the statement 'include' is not supported"),
    ("{% block a %}{% endblock %}", "the statement 'block' is not supported"),
    ("{% do x.append(1) %}", "the statement 'do' is not supported"),
    ("{{ x | xmlattr }}", "the filter 'xmlattr' is not supported"),
    ("{{ (x | safe) + y }}", "the filter 'safe' inside an expression is not supported"),
    ("{{ x is escaped }}", "the test 'escaped' is not supported"),
    ("{% for a in b recursive %}{% endfor %}", "'recursive' is not supported"),
    ("{{ f(*a) }}", "the argument '*..' is not supported"),
    ("{{ cycler(1, 2) }}", "the function 'cycler' is not supported"),
    ("{{ 1 +", "a tag without '}}'"),
    ("{% if x %}", "the template ends before 'endif'"),
    ("{% break %}", "'break' outside a loop"),
    ("{{ 'abc }}", "a string without an end"),
    ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "nested more than"),
    ("{{ 1" + " + 1" * 5000 + " }}", "nested more than"),
    ("{% if 1 %}" * 5000, "nested more than"),
]


@pytest.mark.parametrize(("template", "message"), REFUSALS, ids=range(len(REFUSALS)))
def test_what_is_not_supported_is_refused_when_loaded(tmp_path: Path, template: str, message: str) -> None:
    write_model(tmp_path, {"chat_template": template})
    with pytest.raises(ValueError, match="chat_template: line") as caught:
        ChatTemplate(str(tmp_path))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "messages must hold at least one message"),
        (["hi"], r"messages\[0\] must be an object, got str"),
        ([{"content": "x"}], r"messages\[0\].role is missing"),
        ([{"role": "user", "content": "x"}, {"role": 1}], r"messages\[1\].role must be a string"),
        (
            [{"role": "user", "content": 5}],
            r"messages\[0\].content must be a string or a list of parts, got int",
        ),
        ([{"role": "user", "content": [5]}], r"messages\[0\].content\[0\] must be an object"),
    ],
)
def test_messages_that_are_none_are_named(make_pair: MakePair, messages: list[Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_pair(TEMPLATES["chatml"]).ours.render(messages)


def test_a_template_may_refuse_messages_in_its_own_words(make_pair: MakePair) -> None:
    with pytest.raises(ValueError, match="refuses these messages: no system role here"):
        make_pair(TEMPLATES["gemma"]).ours.render([{"role": "system", "content": "x"}])


def growing(start: str, step: str) -> str:
    return (
        "{% set ns = namespace(x=" + start + ") %}"
        "{% for i in range(10000) %}{% set ns.x = " + step + " %}{% endfor %}"
    )


ENDLESS = [
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    growing("'x'", "ns.x ~ ns.x"),
    growing("[1]", "ns.x + ns.x"),
    growing("[]", "[ns.x, ns.x]"),
    growing("[]", "[ns.x]"),
    "{% macro f(x) %}{{ f(x + 1) }}{% endmacro %}{{ f(1) }}",
    "{{ 'x' * 10 ** 12 }}",
    "{{ range(10 ** 12) | list }}",
    "{{ 'x' | indent(10 ** 12) }}",
    "{{ ('x' * 100000).replace('', 'y' * 100000) }}",
    "{{ [1] | tojson(indent=10 ** 12) }}",
]
ONE_MESSAGE = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("template", ENDLESS)
def test_the_work_of_a_template_is_bounded(make_pair: MakePair, template: str) -> None:
    with pytest.raises(ValueError, match="chat_template: line 1"):
        make_pair("x").render_other(template, ONE_MESSAGE)


def test_chains_of_namespaces_are_freed(make_pair: MakePair) -> None:
    template = growing("0", "namespace(x=ns.x)") + "ok"
    assert make_pair("x").render_other(template, ONE_MESSAGE) == "ok"


def test_templates_are_chosen_by_name_and_by_file(tmp_path: Path) -> None:
    def check() -> None:
        ours, theirs = ChatTemplate(str(tmp_path)), reference(tmp_path)
        for tools in (None, TOOLS):
            assert ours.render(ONE_MESSAGE, tools=tools) == theirs(ONE_MESSAGE, tools=tools)

    named = {"default": "D", "tool_use": "T"}
    listed = [{"name": name, "template": template} for name, template in named.items()]
    write_model(tmp_path, {"chat_template": listed})
    check()
    (tmp_path / "chat_template.jinja").write_text("from the file\n")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools\n")
    check()


def test_special_tokens_may_be_objects(tmp_path: Path) -> None:
    flags = dict.fromkeys(["lstrip", "normalized", "rstrip", "single_word"], False)
    token = {"__type": "AddedToken", "content": "<s>", **flags}
    template = "{{ bos_token }}{{ unk_token is defined }}"
    write_model(tmp_path, {"chat_template": template, "bos_token": token})
    ours = ChatTemplate(str(tmp_path))
    assert ours.render(ONE_MESSAGE) == reference(tmp_path)(ONE_MESSAGE) == "<s>False"
    assert ours.render(ONE_MESSAGE, bos_token="B") == "BFalse"


def test_a_directory_without_a_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no chat template"):
        ChatTemplate(str(tmp_path))
