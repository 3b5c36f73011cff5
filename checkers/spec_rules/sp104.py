"""What resolve refuses although every rule passed; a finding of this code is a missing rule."""

from checkers.rule import LoadRule

rule = LoadRule(
    code="SP104",
    title="the spec resolves on its card",
    why="The plan is made by code that checks again what it needs. What it refuses is reported "
    "in its own words.",
    bad="kernel: {block_t: 128, block_k: 64, block_n: 128, num_warps: 4, num_stages: 9}",
    good="kernel: auto",
)
