"""A small clean spec that the tests edit."""

SAMPLE = """\
spec: 1
name: sample
model:
  vocab: 256
  d_model: 64
  layers: 4
  attention:
    heads: 4
    kv_heads: 2
    head_dim: 16
    pattern: [window, full]
    window: 8
  moe:
    experts: 4
    top_k: 2
    d_ff: 64
training:
  context: 128
  micro_batch: 2
  steps: 100
  precision: fp32
  optimizer: {lr: 1.0e-3, warmup_steps: 10}
data: {path: text}
inference: {context: 128}
target: {gpu: cpu}
"""


def edited(text: str, *edits: tuple[str, str]) -> str:
    """The text with each old piece, which must be there, replaced by the new one."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


GPU_SAMPLE = edited(SAMPLE, ("gpu: cpu", "gpu: h200"), ("precision: fp32", "precision: bf16"))
