"""What the parser refuses; the other source rules need its tree."""

from checkers.rule import LoadRule

rule = LoadRule(
    code="SP203",
    title="Python source parses",
    why="The source rules read Python as a syntax tree. A file without one is not judged, and a "
    "file that is not judged is not clean.",
    bad="def broken(:",
    good="def whole():\n    return 1",
)
