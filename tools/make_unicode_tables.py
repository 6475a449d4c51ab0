"""Writes the Unicode tables: cpp/src/tokenizer/generated and cpp/src/chat/generated.

    python tools/make_unicode_tables.py            # writes them
    python tools/make_unicode_tables.py --check    # fails where the files are not what would be written

The libraries we must agree with carry different Unicode versions, so nothing is taken from a
Unicode data file. The tokenizer's tables are read off Hugging Face `tokenizers` by asking it about
every code point; the chat tables are read off Python's `str`, which is what Jinja templates run on.
Another version of either may know more characters, and then gives other tables.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

ROOT = Path(__file__).resolve().parent.parent
SURROGATES = range(0xD800, 0xE000)
CODE_POINTS = [c for c in range(0x110000) if c not in SURROGATES]
HANGUL_SYLLABLES = range(0xAC00, 0xD7A4)
CATEGORIES = ["Cn", "Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd"]
CATEGORIES += ["Nl", "No", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl"]
CATEGORIES += ["Zp", "Zs"]

Range = tuple[int, int]  # first and last, both included


def to_ranges(code_points: Iterable[int]) -> list[Range]:
    ranges: list[Range] = []
    for c in sorted(code_points):
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1] = (ranges[-1][0], c)
        else:
            ranges.append((c, c))
    return ranges


# What `tokenizers` answers


def matching(pre_tokenizer: pre_tokenizers.PreTokenizer, text: str) -> set[int]:
    return {ord(c) for piece, _ in pre_tokenizer.pre_tokenize_str(text) for c in piece}


def regex_members(pattern: str, text: str | None = None) -> set[int]:
    """The code points of `text` that the split regex matches, one by one."""
    split = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    return matching(split, ALL_TEXT if text is None else text)


ALL_TEXT = "".join(map(chr, CODE_POINTS))


def whitespace_word_members() -> set[int]:
    """What the Whitespace pre-tokenizer takes for a part of a word."""
    whitespace = pre_tokenizers.Whitespace()
    return {c for c in CODE_POINTS if len(whitespace.pre_tokenize_str(f"a{chr(c)}b")) == 1}


def removed(changes: dict[int, str]) -> set[int]:
    return {c for c, new in changes.items() if not new}


def added_token_members(token: AddedToken, matches: Callable[[Tokenizer, str], bool]) -> set[int]:
    """The code points c for which an added token, written beside c, does something."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens([token])
    return {c for c in CODE_POINTS if matches(tokenizer, chr(c))}


def word_members() -> set[int]:
    token = AddedToken("<x>", single_word=True, normalized=False)
    return added_token_members(token, lambda t, c: not t.encode(f"<x>{c}").ids)


def space_members() -> set[int]:
    token = AddedToken("<x>", rstrip=True, normalized=False)
    return added_token_members(token, lambda t, c: t.encode(f"<x>{c}").offsets[0][1] == 4)


def changed_by(normalizer: normalizers.Normalizer) -> dict[int, str]:
    return {c: new for c in CODE_POINTS if (new := normalizer.normalize_str(chr(c))) != chr(c)}


def isolated_by(pre_tokenizer: pre_tokenizers.PreTokenizer) -> set[int]:
    """The code points that a pre-tokenizer cuts out from between two letters."""
    return {c for c in CODE_POINTS if len(pre_tokenizer.pre_tokenize_str(f"a{chr(c)}b")) == 3}


def charsmap(keys: Iterable[str]) -> bytes:
    """A SentencePiece character map that makes each of `keys` (none a part of another) a "b"."""
    trie: dict[int, Any] = {}
    for key in keys:
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
    # Each inner node has a block of 256 units to itself; unit 255, of a byte that no text has, is the value.
    blocks = [trie]
    units = [0] * 256
    units[255] = 1 << 31
    for number, node in enumerate(blocks):
        for byte, child in node.items():
            position = number * 256 ^ byte
            if child:
                blocks.append(child)
                units += [0] * 256
                target, leaf = (len(blocks) - 1) * 256, 0
            else:
                target, leaf = 255, 1 << 8
            units[position] = (position ^ target) << 10 | leaf | byte
    packed = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(packed).to_bytes(4, "little") + packed + b"b\0"


class Graphemes:
    """What joins characters in clusters of less than six bytes, the only ones that Precompiled maps whole.

    A cluster is replaced where a character at its start is mapped, so that a part of it vanishes.
    """

    def __init__(self) -> None:
        mark = "\u0301"
        a_to_b = normalizers.Precompiled(charsmap(["a"]))
        self.extending = {c for c in CODE_POINTS if a_to_b.normalize_str("a" + chr(c)) == "b"}
        self.prepended = {
            c for c in CODE_POINTS if a_to_b.normalize_str(chr(c) + "a" + mark)[1:] == "b" + mark
        }
        # Whatever takes four bytes makes six with the shortest mark.
        asked = [c for c in CODE_POINTS if 0 < c < 0x10000 and chr(c) != mark]
        all_to_b = normalizers.Precompiled(charsmap(map(chr, asked)))
        self.controls = {c for c in asked if all_to_b.normalize_str(chr(c) + mark) == "b" + mark} | {0}


def bert(*, clean_text: bool = False, strip_accents: bool = False) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(
        clean_text=clean_text, handle_chinese_chars=False, strip_accents=strip_accents, lowercase=False
    )


def case_classes(categories: dict[int, str]) -> list[list[int]]:
    """The sets of code points that (?i:) takes for one another."""
    cased = {c for c in CODE_POINTS if len({chr(c).lower(), chr(c).upper(), chr(c).casefold()}) > 1}
    cased |= {c for c in CODE_POINTS if categories[c] in ("Lu", "Ll", "Lt")}
    # The zero bytes keep neighbours from matching as a pair: (?i:ß) also matches "ss".
    text = "\0".join(map(chr, sorted(cased)))
    found: dict[int, frozenset[int]] = {}
    for c in sorted(cased):
        members = regex_members(f"(?i:{chr(c)})", text)
        if len(members) > 1:
            found[c] = frozenset(members)
    for c, members_of_c in found.items():
        assert all(found[other] == members_of_c for other in members_of_c), hex(c)
    return sorted(sorted(members) for members in set(found.values()))


def multiple_folds() -> list[str]:
    """What folds to several characters, and those characters: (?i:ss) also matches "ß"."""
    return sorted({chr(c).casefold() for c in CODE_POINTS if len(chr(c).casefold()) > 1})


class Normalization:
    def __init__(self) -> None:
        nfd, nfkd, nfc = normalizers.NFD(), normalizers.NFKD(), normalizers.NFC()
        self.canonical: dict[int, str] = {}
        self.compatibility: dict[int, str] = {}
        for c in CODE_POINTS:
            if c in HANGUL_SYLLABLES:  # by arithmetic
                continue
            char = chr(c)
            if (full := nfd.normalize_str(char)) != char:
                self.canonical[c] = full
            if (full_compatible := nfkd.normalize_str(char)) != full:
                self.compatibility[c] = full_compatible
        self.combining_class = self._combining_classes(nfd)
        self.compositions: dict[tuple[int, int], int] = {}
        for c, decomposed in self.canonical.items():
            if nfc.normalize_str(decomposed) != chr(c):
                continue  # excluded from composition
            first, second = nfc.normalize_str(decomposed[:-1]), decomposed[-1]
            assert len(first) == 1 and nfc.normalize_str(first + second) == chr(c), hex(c)
            self.compositions[ord(first), ord(second)] = c

    @staticmethod
    def _combining_classes(nfd: normalizers.Normalizer) -> dict[int, int]:
        """Normalization sorts marks by class: comparing each with a known one finds its class."""
        import unicodedata

        lowest, highest = "\u0334", "\u0345"

        def swaps(first: str, second: str) -> bool:
            return bool(nfd.normalize_str(f"a{first}{second}") != "a" + first + second)

        # Of each class a mark that normalization knows: Python's Unicode is the newer one.
        known: dict[int, str] = {}
        for c in CODE_POINTS:
            char = chr(c)
            sorts = char in (lowest, highest) or swaps(char, lowest) or swaps(highest, char)
            if sorts and (value := unicodedata.combining(char)):
                known.setdefault(value, char)

        classes: dict[int, int] = {}
        for c in CODE_POINTS:
            char = chr(c)
            if nfd.normalize_str(char) != char:
                if unicodedata.combining(char):  # such as U+0344: decomposed before it is sorted
                    assert len(unicodedata.normalize("NFD", char)) >= 1
                continue
            if not (swaps(char, lowest) or swaps(highest, char)):
                continue
            smaller = [k for k, r in known.items() if swaps(char, r)]
            not_larger = [k for k, r in known.items() if not swaps(r, char)]
            value = min(k for k in known if not smaller or k > max(smaller))
            assert value in not_larger and not swaps(char, known[value]), hex(c)
            classes[c] = value
        return classes


# C++


def lines_of(entries: Iterable[str], width: int = 110) -> str:
    """As many entries to a line as fit, none of them broken."""
    lines = [""]
    for entry in entries:
        if len(lines[-1]) + len(entry) + 1 > width:
            lines.append("")
        lines[-1] += entry + ","
    return "\n".join(lines)


def array(kind: str, name: str, values: Iterable[int | str]) -> str:
    written = (value if isinstance(value, str) else f"{value:#x}" for value in values)
    return (
        f"static const {kind} {name}Data[] = {{\n{lines_of(written)}\n}};\n"
        f"const std::span<const {kind}> {name}{{{name}Data}};\n"
    )


def range_array(name: str, code_points: Iterable[int]) -> str:
    return array("CodePointRange", name, [f"{{{a:#x},{b:#x}}}" for a, b in to_ranges(code_points)])


def mapping_arrays(name: str, mapping: dict[int, str]) -> str:
    """A sorted index into one pool of characters."""
    pool = "".join(mapping[c] for c in sorted(mapping))
    entries, offset = [], 0
    for c in sorted(mapping):
        entries.append(f"{{{c:#x},{offset},{len(mapping[c])}}}")
        offset += len(mapping[c])
    return (
        array("CodePointMapping", f"{name}", entries)
        + "\n"
        + array("char32_t", f"{name}Pool", map(ord, pool))
    )


def source(header: str, namespace: str, sections: list[str]) -> str:
    return (
        "// Made by `python tools/make_unicode_tables.py`; do not edit.\n"
        f'#include "{header}"\n\nnamespace {namespace} {{\n\n'
        + "\n".join(sections)
        + f"\n}}  // namespace {namespace}\n"
    )


def tokenizer_tables() -> str:
    categories: dict[int, str] = dict.fromkeys(CODE_POINTS, "")
    for category in CATEGORIES:
        if category == "Cs":
            continue  # no text holds a surrogate
        for c in regex_members(rf"\p{{{category}}}"):
            assert not categories[c]
            categories[c] = category
    assert all(categories.values())
    assert regex_members(r"\d") == {c for c in CODE_POINTS if categories[c] == "Nd"}

    starts = []
    everything = [categories.get(c, "Cs") for c in range(0x110000)]
    for category, group in itertools.groupby(range(0x110000), key=lambda c: everything[c]):
        starts.append(next(iter(group)) << 5 | CATEGORIES.index(category))

    cleaned = changed_by(bert(clean_text=True))
    graphemes = Graphemes()
    classes = case_classes(categories)
    normalization = Normalization()
    ccc = normalization.combining_class
    pairs = sorted(normalization.compositions.items())
    return source(
        "tokenizer/unicode_tables.h",
        "quire::unicode",
        [
            array("uint32_t", "kCategoryStarts", starts),
            range_array("kRegexSpace", regex_members(r"\s")),
            range_array("kRegexWord", regex_members(r"\w")),
            range_array("kAddedTokenSpace", space_members()),
            range_array("kAddedTokenWord", word_members()),
            range_array("kNumeric", isolated_by(pre_tokenizers.Digits(individual_digits=True))),
            range_array("kPunctuation", isolated_by(pre_tokenizers.Punctuation())),
            range_array("kWhitespaceWord", whitespace_word_members()),
            range_array("kCombiningMarks", removed(changed_by(normalizers.StripAccents()))),
            range_array("kNonspacingMarks", removed(changed_by(bert(strip_accents=True)))),
            range_array("kBertRemoved", removed(cleaned)),
            range_array("kBertSpace", (c for c, new in cleaned.items() if new == " ")),
            range_array("kNmtRemoved", removed(changed_by(normalizers.Nmt()))),
            range_array("kNmtSpace", (c for c, new in changed_by(normalizers.Nmt()).items() if new == " ")),
            range_array("kGraphemeExtending", graphemes.extending),
            range_array("kGraphemePrepended", graphemes.prepended),
            range_array("kGraphemeControls", graphemes.controls),
            mapping_arrays("kLowercase", changed_by(normalizers.Lowercase())),
            array("char32_t", "kCaseClasses", [c for members in classes for c in [*members, 0]]),
            range_array("kMultipleFoldCharacters", (c for c in CODE_POINTS if len(chr(c).casefold()) > 1)),
            array(
                "char32_t",
                "kMultipleFolds",
                [c for fold in multiple_folds() for c in [*map(ord, fold), 0]],
            ),
            array(
                "CombiningClass",
                "kCombiningClasses",
                [f"{{{c:#x},{ccc[c]}}}" for c in sorted(ccc)],
            ),
            array(
                "Composition",
                "kCompositions",
                [f"{{{a:#x},{b:#x},{c:#x}}}" for (a, b), c in pairs],
            ),
            mapping_arrays("kCanonicalDecompositions", normalization.canonical),
            mapping_arrays("kCompatibilityDecompositions", normalization.compatibility),
        ],
    )


def chat_tables() -> str:
    def changes(method: Callable[[str], str]) -> dict[int, str]:
        return {c: mapped for c in CODE_POINTS if (mapped := method(chr(c))) != chr(c)}

    def after_sigma(text: str) -> bool:
        """Whether a capital sigma before `text` is written as in the middle of a word."""
        return ("A\u03a3" + text).lower()[1] == "\u03c3"

    case_ignorable = {c for c in CODE_POINTS if not after_sigma(chr(c)) and after_sigma(chr(c) + "A")}
    members: dict[str, Callable[[str], bool]] = {
        "kSpace": str.isspace,
        "kPrintable": str.isprintable,
        "kAlpha": str.isalpha,
        "kDecimal": str.isdecimal,
        "kDigit": str.isdigit,
        "kNumeric": str.isnumeric,
        "kUpperLetters": str.isupper,
        "kLowerLetters": str.islower,
        "kTitleLetters": lambda c: c.istitle() and not c.isupper(),
        "kCased": lambda c: (c + "a").title()[-1] == "a",
    }
    return source(
        "chat/python_unicode.h",
        "quire::chat",
        [
            *(range_array(name, (c for c in CODE_POINTS if f(chr(c)))) for name, f in members.items()),
            range_array("kCaseIgnorable", case_ignorable),
            mapping_arrays("kLower", changes(str.lower)),
            mapping_arrays("kUpper", changes(str.upper)),
            mapping_arrays("kTitle", changes(str.title)),
        ],
    )


TABLES: dict[str, Callable[[], str]] = {
    "cpp/src/tokenizer/generated/unicode_tables.cpp": tokenizer_tables,
    "cpp/src/chat/generated/python_unicode_tables.cpp": chat_tables,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file differs")
    check = parser.parse_args().check
    differ = []
    for name, make in TABLES.items():
        path, text = ROOT / name, make()
        if not check:
            path.write_text(text, encoding="utf-8")
            print(f"{name}: {len(text):,} bytes")
        elif path.read_text("utf-8") != text:
            differ.append(name)
    if differ:
        sys.exit(f"not what this Python and its tokenizers give: {', '.join(differ)}")


if __name__ == "__main__":
    main()
