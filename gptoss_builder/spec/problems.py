"""Every kind of fault that the loader reports, and `Fault`, one of them before it is located.

The table is what `--explain` and the rule reference print; the tests check that each bad
fragment brings its code and that the good one does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from gptoss_builder.findings import Edit, FieldPath, Position


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of fault."""

    code: str
    title: str
    """What holds in a good spec."""
    why: str
    """What goes wrong otherwise."""
    bad: str
    """A fragment that brings the code."""
    good: str
    """The same fragment, repaired."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, at a field or, for text that could not be read as fields, at a position."""

    code: str
    message: str
    fix: str
    path: FieldPath = ()
    at_key: bool = False
    """Whether the fault is in the key of `path` rather than in its value."""
    position: Position | None = None
    """Where, if not at `path`."""
    edit: Edit | None = None


NOT_UTF8 = "SP001"
CHARACTER = "SP002"
TOO_LARGE = "SP003"
BROKEN = "SP004"
EMPTY_FILE = "SP005"
ROOT = "SP006"
DOCUMENTS = "SP007"
DUPLICATE = "SP008"
TAG = "SP009"
ALIAS = "SP010"
KEY = "SP011"
UNKNOWN = "SP012"
MISSING = "SP013"
EMPTY_VALUE = "SP014"
TYPE = "SP015"
SPELLING = "SP016"
RANGE = "SP017"
FINITE = "SP018"
CHOICE = "SP019"
TEXT = "SP020"
LENGTH = "SP021"
CAP = "HC001"

_TABLE = (
    Problem(
        NOT_UTF8,
        "The file is UTF-8",
        "A spec means the same on every machine only if its bytes do. Latin-1 and UTF-16 "
        "files are refused, whatever the locale; a UTF-8 byte order mark is accepted.",
        "name: caf\\xe9   # saved as Latin-1",
        "name: cafe      # saved as UTF-8",
    ),
    Problem(
        CHARACTER,
        "The text has no control characters",
        "Control characters and Unicode's line separators are invisible in an editor, and "
        "YAML readers and editors count lines differently after them.",
        "name: tiny\x00",
        "name: tiny",
    ),
    Problem(
        TOO_LARGE,
        "The file is no larger and no deeper than a spec can be",
        "Limits on bytes, values and nesting keep a hostile file from taking the checker's "
        "time or memory.",
        "spec: " + "[" * 40 + "]" * 40,
        "spec: 1",
    ),
    Problem(
        BROKEN,
        "The file is YAML",
        "Nothing after the fault can be read, so only what comes before it is checked.",
        "model:\n\tlayers: 4",
        "model:\n  layers: 4",
    ),
    Problem(
        EMPTY_FILE,
        "The file holds a spec",
        "An empty file, or one with comments only, has nothing to check.",
        "# to be written",
        "spec: 1",
    ),
    Problem(
        ROOT,
        "The outermost level is a set of fields",
        "A spec is `key: value` lines at the outermost level, not a list and not one value.",
        "- spec: 1",
        "spec: 1",
    ),
    Problem(
        DOCUMENTS,
        "A file is one document",
        "A line `---` starts a second document, and only one of them could be meant.",
        "spec: 1\n---\nspec: 1",
        "---\nspec: 1",
    ),
    Problem(
        DUPLICATE,
        "A key is given once",
        "YAML readers keep the last one without a word. Keys that some readers take for the "
        "same value (`yes` and `true`) count as the same.",
        "seed: 1\nseed: 2",
        "seed: 2",
    ),
    Problem(
        TAG,
        "Values have no YAML tags",
        "Tags make readers build objects of other types, or run code. A spec is plain values; "
        "nothing in it is ever executed.",
        "name: !!python/object/apply:os.getcwd []",
        "name: tiny",
    ),
    Problem(
        ALIAS,
        "There are no anchors, aliases or merge keys",
        "A spec says each thing where it stands: with `&`, `*` and `<<` a value can come from "
        "far away, and a few lines can expand to gigabytes.",
        "seed: &s 1\nmodel: {layers: *s}",
        "seed: 1\nmodel: {layers: 1}",
    ),
    Problem(
        KEY,
        "Keys are text",
        "Keys are the names of fields. A list, a mapping or nothing as a key is mostly a "
        "template that was not filled in.",
        "model: {layers: {{ LAYERS }}}",
        "model: {layers: 4}",
    ),
    Problem(
        UNKNOWN,
        "Every key is a field of its section",
        "A misspelt or misplaced key that is dropped in silence lets a run train on defaults.",
        "model:\n  layer: 4",
        "model:\n  layers: 4",
    ),
    Problem(
        MISSING,
        "Every field without a default is there",
        "Fields that decide what the model is have no default.",
        "target: {margin_gib: 2}",
        "target: {gpu: cpu, margin_gib: 2}",
    ),
    Problem(
        EMPTY_VALUE,
        "Every key has a value",
        "Nothing after the colon is mostly a line that was lost, or one indented too little. "
        "Write `null` where a field is meant to be absent.",
        "training:\ndata:",
        "training: null\ndata: null",
    ),
    Problem(
        TYPE,
        "Every value has its field's type",
        "Types are never converted: `true` is not 1, `12.0` is not 12 and `'12'` is text.",
        "seed: true",
        "seed: 1",
    ),
    Problem(
        SPELLING,
        "Numbers and truth values are those of YAML 1.2, in decimal",
        "`010` is 8, 10 or text and `1:30` is 90 or text, by the version of YAML; `yes` is "
        "text in YAML 1.2. Numbers are read as YAML 1.2's, in decimal: `1e-4` and `.5` are "
        "numbers; leading zeros, `0x`, `0o`, `_`, units and base 60 are refused.",
        "seed: 010",
        "seed: 10",
    ),
    Problem(
        RANGE,
        "Every number is in its range",
        "Each number has a range in the reference, outside which no model can be built.",
        "seed: -1",
        "seed: 0",
    ),
    Problem(
        FINITE,
        "Every number is finite",
        "NaN, infinity and numbers too large for a double would only show up as a broken run.",
        "model: {norm_eps: .nan}",
        "model: {norm_eps: 1e-5}",
    ),
    Problem(
        CHOICE,
        "Every choice is one of those that there are",
        "The field takes one of a few words, and nothing is guessed.",
        "training: {precision: fp16}",
        "training: {precision: bf16}",
    ),
    Problem(
        TEXT,
        "Text has the form that its field asks for",
        "A name becomes a folder, so it has no separators and cannot leave the output folder.",
        "name: ../elsewhere",
        "name: elsewhere",
    ),
    Problem(
        LENGTH,
        "Every list has a length that its field takes",
        "The field takes a certain number of items.",
        "model: {attention: {pattern: []}}",
        "model: {attention: {pattern: [full]}}",
    ),
    Problem(
        CAP,
        "d_model and d_ff are at most 8192",
        "A hard cap: the kernels' index arithmetic and launch tables are made and tested up to "
        "it. It holds here, at resolve and in the op itself, and cannot be suppressed.",
        "model: {d_model: 8193}",
        "model: {d_model: 8192}",
    ),
)

PROBLEMS: dict[str, Problem] = {problem.code: problem for problem in _TABLE}
"""Every code that the loader gives, in the order of the reference."""
