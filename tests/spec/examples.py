"""A small legal spec as text, and edits of it."""

from __future__ import annotations

from pathlib import Path

from gptoss_builder.findings import Finding
from gptoss_builder.spec.load import Document, read_document

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "specs").glob("*.yaml"))

LEGAL = """\
spec: 1
name: example
seed: 3
model:
  vocab: 1000
  d_model: 96
  layers: 3
  norm_eps: 1e-5
  attention:
    heads: 6
    kv_heads: 2
    head_dim: 16
    pattern: [window, full]
    window: 33
    rope: {theta: 1.5e5}
  moe:
    experts: 5
    top_k: 2
    d_ff: 72
    aux_loss: 0.01
training:
  context: 65
  steps: 10
  precision: fp32
  compile: false
  optimizer: {lr: 1e-3, betas: [0.9, 0.95]}
data: {path: text, tokenizer: bytes}
inference: {context: 130}
target: {gpu: cpu}
"""


def edited(old: str, new: str, text: str = LEGAL) -> str:
    """Replace what stands exactly once."""
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
    return text.replace(old, new)


def read(text: str | bytes) -> Document:
    """Read a text as the file s.yaml."""
    return read_document("s.yaml", text=text)


def only(document: Document) -> Finding:
    """Give the finding of a document that has exactly one."""
    assert len(document.findings) == 1, [str(finding) for finding in document.findings]
    return document.findings[0]


def at(finding: Finding) -> tuple[int, int]:
    """Give line and column."""
    assert finding.position is not None
    return finding.position.line, finding.position.column
