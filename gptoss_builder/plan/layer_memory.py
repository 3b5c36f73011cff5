"""What one layer holds and drops in its forward and its backward, in the order of the code.

Each function follows one module line by line: `norm` (model/norm.py), `attention`
(model/attention.py and its kernels), `experts` (model/moe.py, kernels/experts.py). The
comparison with the real model under fake tensors (tests/plan/test_memory_oracle.py) fails when
a line there and a line here part.

The forward leaves on the tape what the backward needs; the backward starts from that and the
gradient of the layer's output, and leaves the gradient of its input and what it added to the
parameters' gradients.

A compiled block's backward is one function (`size.fused`), and some things stay until it ends, as
the code that torch 2.11 and 2.13 generate shows: the matrices' gradients, which are outputs in the
products' type; the gradient that came in, which autograd holds; and what the weight of the norm
before the experts needs, because both norms' weights get their gradients in one kernel. Those are
that norm's input and the gradient of its output, unsummed: one part each from the router, the
routed and the shared experts.
"""

from __future__ import annotations

from gptoss_builder.plan.attention_memory import kernel_backward, kernel_forward
from gptoss_builder.plan.elementwise_memory import (
    activation_backward_bytes,
    activation_bytes,
    combine_bytes,
)
from gptoss_builder.plan.sizes import FP32, INT64, Sizes
from gptoss_builder.plan.tape import Tape, rounded
from gptoss_builder.spec.schema import LayerKind

GRADIENTS = "gradients"
DY = "gradient of the residual stream"
DX = "gradient of a normalised input"
OUTPUTS = "gradients of a block's matrices"
TEMPORARIES = "elementwise temporaries"


class Layer:
    """The tapes of one kind of layer.

    Args:
        size: dimensions of a micro-batch.
        kind: window or full.
        fresh: whether this backward makes the parameters' gradients; later micro-batches of an
            accumulation add to those that are there.
        scratch: count what kernels allocate inside, which fake tensors cannot show.
    """

    def __init__(self, size: Sizes, kind: LayerKind, *, fresh: bool, scratch: bool = True) -> None:
        self.size, self.kind, self.fresh, self.scratch = size, kind, fresh, scratch
        self._outputs: list[int] = []

    def forward(self, tape: Tape) -> None:
        """From `layer input`, held, to what is saved and `layer output`."""
        size = self.size
        norm_forward(tape, size, "attention")
        self._attention_forward(tape)
        norm_forward(tape, size, "experts")
        self._experts_forward(tape)
        tape.hold("layer output", size.stream)
        tape.drop("expert output")

    def backward(self, tape: Tape) -> None:
        """From what is saved and DY, held, to DY and the parameters' gradients."""
        size = self.size
        experts_norm = ("residual after attention", "experts norm statistics")
        self._experts_backward(tape)
        tape.drop("normalised expert input")
        if size.fused:
            tape.hold(DY, size.stream)
        else:
            norm_backward(tape, size, fresh=self.fresh)
            tape.drop(*experts_norm)
        self._attention_backward(tape)
        tape.drop("normalised attention input")
        norm_backward(tape, size, fresh=self.fresh)
        tape.drop("layer input", "attention norm statistics")
        if size.fused:
            tape.drop(*experts_norm)
            tape.shrink(DY, size.stream)
            self._end(tape)

    def _attention_forward(self, tape: Tape) -> None:
        size = self.size
        keys = size.kv_heads * size.head_dim * size.tokens * size.element
        queries = size.heads * size.head_dim * size.tokens * size.element
        tape.hold("qkv", queries + 2 * keys)
        half, part, whole = self._rotated()
        if size.fused:
            tape.touch(TEMPORARIES, whole)
        elif size.low:
            tape.touch(TEMPORARIES, max(part + 5 * half, 2 * half + 2 * part + whole))
        else:
            tape.touch(TEMPORARIES, max(4 * half, 2 * half + whole))
        tape.hold("rotated queries and keys", whole)
        tape.hold("values", keys)
        kernel_forward(tape, size, self.kind)
        tape.hold("attention projection", size.stream)
        tape.drop("qkv")
        tape.hold("residual after attention", size.stream)
        tape.drop("attention projection")

    def _attention_backward(self, tape: Tape) -> None:
        size = self.size
        keys = size.kv_heads * size.head_dim * size.tokens * size.element
        queries = size.heads * size.head_dim * size.tokens * size.element
        d, width = size.d_model, size.heads * size.head_dim
        tape.hold("gradient of a projection", d * width * size.element)
        tape.hold("gradient of the attention output", queries)
        self._master(tape, "gradient of a projection", d * width)
        kernel_backward(tape, size, self.kind, scratch=self.scratch, fresh=self.fresh)
        half, _, whole = self._rotated()
        # compiled: two parts, which are added in the kernel that writes the gradient of qkv
        tape.hold("gradient of q and k", 2 * whole if size.fused else whole)
        if not size.fused:
            tape.drop("gradient of q", "gradient of k")
            tape.touch(
                TEMPORARIES,
                max(5 * half, whole + 3 * half) if size.low else whole + 4 * half,
            )
        tape.hold("gradient of qkv", queries + 2 * keys)
        if size.fused:
            tape.drop("gradient of q", "gradient of k")
        tape.drop("gradient of q and k", "gradient of v")
        out = width + 2 * size.kv_heads * size.head_dim
        tape.hold("gradient of a projection", d * out * size.element)
        tape.hold(DX, size.stream)
        tape.drop("gradient of qkv")
        self._master(tape, "gradient of a projection", d * out)

    def _rotated(self) -> tuple[int, int, int]:
        """Bytes of half the rotated dimensions in fp32 and as they are, and of all q and k."""
        size = self.size
        heads = size.tokens * (size.heads + size.kv_heads)
        half = heads * (size.rotary[self.kind] // 2)
        return half * FP32, half * size.element, heads * size.head_dim * size.element

    def _experts_forward(self, tape: Tape) -> None:
        size = self.size
        e, probabilities = size.element, size.tokens * size.experts * FP32
        if size.low:
            tape.touch(TEMPORARIES, size.wide + probabilities)
        tape.hold("router logits", probabilities)
        tape.hold("routing", size.rows * (3 * INT64 + FP32))
        tape.touch(TEMPORARIES, 3 * size.rows * INT64)
        hidden, rows = size.rows * size.d_ff * e, size.rows * size.d_model * e
        self._swiglu_forward(tape, "gate and up", hidden, rows if size.gathers else 0, rows)
        tape.touch("expert rows", rows + size.stream + combine_bytes(size))
        tape.hold("expert output", size.stream)
        if size.shared:
            shared = size.tokens * size.shared * e
            self._swiglu_forward(tape, "shared gate and up", shared, 0, size.stream)
            tape.touch("shared output", 2 * size.stream)
        tape.hold("router probabilities", probabilities)
        tape.drop("router logits")

    def _swiglu_forward(self, tape: Tape, name: str, hidden: int, gathered: int, out: int) -> None:
        size = self.size
        width = size.d_ff if name == "gate and up" else size.shared
        chunk = activation_bytes(size, hidden // (width * size.element), width)
        if size.saves:
            tape.hold(name, 2 * hidden)
            tape.touch("expert hidden and rows", max(gathered, hidden + max(out, chunk)))
        else:
            both = 0 if name == "gate and up" and not size.gathers else 2 * hidden
            tape.touch(
                "expert gate, up and rows",
                max(both + gathered, both + hidden + chunk, hidden + out),
            )

    def _experts_backward(self, tape: Tape) -> None:
        size = self.size
        e, d, f = size.element, size.d_model, size.d_ff
        tape.hold("gradient of the router logits", size.tokens * size.experts * FP32)
        tape.drop("router probabilities")
        if size.shared:
            hidden = size.tokens * size.shared * e
            tape.hold("gradient of the hidden rows", hidden)
            self._activation_backward(tape, "shared gate and up", hidden, d * size.shared * e)
            tape.hold("gradient of w13", 2 * size.shared * d * e)
            tape.hold(DX, size.stream)
            tape.drop("gradient of gate and up")
            if size.saves:
                tape.drop("shared gate and up")
            self._master(tape, "gradient of w2", d * size.shared)
            self._master(tape, "gradient of w13", 2 * d * size.shared)
        hidden, rows = size.rows * f * e, size.rows * d * e
        tape.hold("gradient of the rows", rows)
        tape.hold("gradient of the hidden rows", hidden)
        self._activation_backward(tape, "gate and up", hidden, size.experts * d * f * e)
        tape.drop("gradient of the rows")
        tape.hold("gathered rows", rows)
        tape.hold("gradient of w13", 2 * size.experts * d * f * e)
        tape.drop("gathered rows")
        tape.hold("gradient of the rows", rows)
        tape.drop("gradient of gate and up")
        tape.touch(DX, size.stream + combine_bytes(size))
        tape.drop("gradient of the rows", "routing")
        if size.saves:
            tape.drop("gate and up")
        if size.fused or not size.shared:
            tape.hold(DX, size.stream)
        self._master(tape, "gradient of w13", 2 * size.experts * d * f)
        self._master(tape, "gradient of w2", size.experts * d * f)
        tape.touch(TEMPORARIES, 2 * size.wide if size.low else size.wide)
        if size.fused:
            tape.hold(DX, size.stream)
        if self.fresh:
            tape.hold(GRADIENTS, size.experts * d * FP32)
        tape.drop("gradient of the router logits")

    def _activation_backward(self, tape: Tape, name: str, hidden: int, w2: int) -> None:
        """Gate and up, again or saved; their gradient, and that of w2 from the hidden rows.

        The Triton kernel writes its results over its inputs; elsewhere they lie beside them.
        """
        size, routed = self.size, name == "gate and up"
        if not size.saves:
            if routed and size.gathers:
                tape.touch(
                    "gate, up and rows, again", 2 * hidden + size.rows * size.d_model * size.element
                )
            tape.hold("gate and up, again", 2 * hidden)
        if routed:
            tape.hold("row weights", 2 * size.rows * FP32)
        if size.in_place:
            tape.hold("gradient of gate and up", 2 * hidden if size.saves else 0)
        else:
            tape.hold("gradient of gate and up", 2 * hidden)
            tape.hold("hidden rows", hidden)
            rows, width = (size.rows, size.d_ff) if routed else (size.tokens, size.shared)
            tape.touch(TEMPORARIES, activation_backward_bytes(size, rows, width, scaled=routed))
            tape.drop("gradient of the hidden rows")
            if not size.saves:
                tape.drop("gate and up, again")
        tape.hold("gradient of w2", w2)
        tape.drop("gradient of the hidden rows" if size.in_place else "hidden rows")
        if routed:
            tape.drop("row weights")
        if size.in_place and not size.saves:
            tape.drop("gradient of gate and up")
            tape.rename("gate and up, again", "gradient of gate and up")

    def _master(self, tape: Tape, name: str, parameters: int) -> None:
        """A product's gradient, held under `name`, joins the fp32 gradient of its master."""
        if self.size.fused:
            tape.rename(name, OUTPUTS)
            self._outputs.append(parameters)
            return
        if self.fresh:
            if not self.size.low:
                tape.drop(name)
            tape.hold(GRADIENTS, parameters * FP32)
        if name in tape.items:
            tape.drop(name)

    def _end(self, tape: Tape) -> None:
        """The outputs of a compiled block join the masters' gradients, one after the other."""
        if self.fresh:
            tape.hold(GRADIENTS, self.size.d_model * FP32)
        for parameters in self._outputs:
            if self.fresh and self.size.low:
                tape.hold(GRADIENTS, parameters * FP32)
            tape.shrink(OUTPUTS, rounded(parameters * self.size.element))
            if self.fresh and not self.size.low:
                tape.hold(GRADIENTS, parameters * FP32)
        tape.drop(OUTPUTS)


def norm_forward(tape: Tape, size: Sizes, where: str) -> None:
    """RMSNorm keeps its input (held already), one number a token, and its output."""
    name = {"attention": "normalised attention input", "experts": "normalised expert input"}
    tape.hold(f"{where} norm statistics", size.tokens * FP32)
    if not size.fused:
        tape.touch(TEMPORARIES, (3 if size.low else 2) * size.wide)
    tape.hold(name[where], size.stream)


def norm_backward(tape: Tape, size: Sizes, *, fresh: bool) -> None:
    """From the gradient of its output, held, to that of its input, added to DY."""
    if size.fused:
        tape.touch(TEMPORARIES, size.stream)
    else:
        tape.touch(TEMPORARIES, (5 if size.low else 4) * size.wide)
    tape.drop(DX)
    if fresh:
        tape.hold(GRADIENTS, size.d_model * FP32)
