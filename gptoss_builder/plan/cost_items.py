"""The parts of a training step: what each computes or moves, and how long that takes.

Their names are those of the profile that `benchmarks.train_step --profile` prints.
"""

# Bytes are counted from the code. T tokens, R = T · top_k rows, D model width, Q width of the
# queries, X of q, k and v together, F hidden width of an expert, V vocabulary, E experts.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gptoss_builder.plan import cost_rates as rates
from gptoss_builder.plan.cost_rates import BOUND, Efficiency
from gptoss_builder.plan.counts import ELEMENT_BYTES, attended_pairs, layer_window
from gptoss_builder.plan.schema import CostItem, Execution, Flops, ParameterCounts
from gptoss_builder.spec.schema import Spec, TrainingSpec

_ROUTER_FORWARD = 2 / 3
"""Part of the router's time that a checkpointed layer spends again."""
_LAUNCHES_A_LAYER = 121
_LAUNCHES_A_FORWARD = 50
_LAUNCHES_BESIDE = 250
"""Loss, embedding and update."""


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step on one card."""

    spec: Spec
    training: TrainingSpec
    execution: Execution
    parameters: ParameterCounts
    rate: float
    bandwidth: float

    @property
    def tokens(self) -> int:
        """Tokens of the step."""
        return self.training.micro_batch * self.training.context * self.training.accumulate

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return self.spec.model.layers

    @property
    def again(self) -> int:
        """Layers whose forward runs a second time."""
        return len(self.execution.checkpointed_layers)

    @property
    def element(self) -> int:
        """Bytes of an element of the stream."""
        return ELEMENT_BYTES[self.execution.precision]

    @property
    def recomputes(self) -> bool:
        """Whether the backward makes gate and up a second time."""
        return self.execution.backward == "recompute"

    @property
    def big_matrices(self) -> int:
        """Parameters that have a bf16 copy."""
        parts = self.parameters
        if self.execution.precision == "fp32":
            return 0
        return parts.attention + parts.experts + parts.shared_experts

    def items(self, flops: Flops) -> Iterator[CostItem]:
        """Every part of the step; what the spec does not have takes no time."""
        yield from self._products(flops)
        yield from self._scores()
        yield from self._expert_passes()
        yield from self._other_passes()
        yield self._router()
        yield from self._update()
        yield self._gaps()

    def _products(self, flops: Flops) -> list[CostItem]:
        """The matrix products: forward, twice that backward, and what is computed again."""
        run, forward = self.execution, flops.forward
        again = self.again / self.layers
        gate_up = again + (1.0 if self.recomputes else 0.0)
        up, down = forward.experts * 2 / 3, forward.experts / 3
        shared_up, shared_down = forward.shared_experts * 2 / 3, forward.shared_experts / 3
        shared = (3 + gate_up) * shared_up + (3 + again) * shared_down
        parts = (
            ("vocabulary products", 3 * forward.head, rates.VOCABULARY),
            ("experts' up-projection", (1 + gate_up) * up, self._up_rate()),
            (
                "experts' other products",
                2 * up + (3 + again) * down,
                rates.EXPERTS[run.backward_products],
            ),
            ("shared experts' products", shared, rates.SHARED),
            ("projections", (3 + again) * forward.projections, rates.PROJECTIONS),
        )
        return [self._computed(name, self.tokens * part, how) for name, part, how in parts]

    def _up_rate(self) -> Efficiency:
        """A spec's own launch configuration was timed nowhere: it may take many times as long."""
        run = self.execution.up_products
        return BOUND if run == "triton" and self.spec.kernel != "auto" else rates.UP[run]

    def _scores(self) -> list[CostItem]:
        """Attention beyond its projections; a backward that keeps no scores is 5/2 of a forward."""
        attention, run, kinds = self.spec.model.attention, self.execution, self.spec.layer_kinds()
        items, fused = [], 0
        for kind in dict.fromkeys(kinds):
            kernel = run.window_attention if kind == "window" else run.full_attention
            context = self.training.context
            window = layer_window(self.spec, kind)
            forward, backward = rates.scores(kernel, context, window) or (BOUND, BOUND)
            pairs = attended_pairs(context, window) / context
            layer = 4.0 * attention.heads * attention.head_dim * pairs * self.tokens
            layers = kinds.count(kind)
            again = sum(kinds[index] == kind for index in run.checkpointed_layers)
            back = 2.0 if kernel == "math" else 2.5
            name = f"{kernel} attention, {kind} layers"
            items += [
                self._computed(f"{name}, forward", (layers + again) * layer, forward),
                self._computed(f"{name}, backward", layers * back * layer, backward),
            ]
            if kernel != "math":
                fused += layers
        # dout · out, dq zeroed, summed in fp32 and cast, dk and dv summed over the queries' groups
        moved = 20 * attention.heads * attention.head_dim * self.tokens * fused
        items.append(self._moved("attention gradients, cast and summed", moved, rates.ATTENTION))
        return items

    def _expert_passes(self) -> list[CostItem]:
        """Elementwise work of the experts: activations, rows gathered and summed."""
        model, moe, run = self.spec.model, self.spec.model.moe, self.execution
        rows, shared = self.tokens * moe.top_k, self.tokens * moe.shared_experts
        forwards, fused = self.layers + self.again, run.up_products == "triton"
        elsewhere = rates.ACTIVATION["plain" if run.elementwise == "plain" else "compiled"]
        # a forward reads gate and up and writes h; a backward reads both and dh and writes all
        # the kernel does the first for routed rows, and one beside it the second for all
        forward, backward = 3 * forwards, 6 * self.layers
        activation = (rows + shared) * backward if fused else rows * (forward + backward)
        of_shared = shared * (forward if fused else forward + backward)
        kept = 2 * forwards if fused and not self.recomputes else 0
        # combine twice, gathers of dy and x in the backward, of x where the kernel cannot do it
        gathers = 0 if fused else forwards + (self.layers if self.recomputes else 0)
        combined = (rows + self.tokens) * (forwards + self.layers)
        gathered = 2 * rows * (2 * self.layers + gathers)
        parts = (
            (
                "experts' activation",
                moe.d_ff * activation,
                rates.ACTIVATION["triton"] if fused else elsewhere,
            ),
            ("experts' gate and up, kept", rows * moe.d_ff * kept, rates.KEPT),
            ("experts' gathers and sums", model.d_model * (combined + gathered), rates.GATHERS),
            ("shared experts' activation", moe.d_ff * of_shared, elsewhere),
        )
        return [self._moved(name, self.element * part, how) for name, part, how in parts]

    def _other_passes(self) -> list[CostItem]:
        """Elementwise work outside the experts."""
        model, attention = self.spec.model, self.spec.model.attention
        forwards, compiled = self.layers + self.again, self.execution.compile
        d_model, table = model.d_model, model.vocab * model.d_model
        query = attention.heads * attention.head_dim
        qkv = query + 2 * attention.kv_heads * attention.head_dim
        sinks = 2 * query if attention.sinks else 0
        norms = forwards * (10 * d_model + 2 * qkv + sinks)
        # the gradients of q and k go through memory twice on their way to that of qkv
        turned = 4 * (query + attention.kv_heads * attention.head_dim)
        norms += self.layers * (15 * d_model + 2 * qkv + turned + sinks) + 5 * d_model
        logits = 3 * model.vocab * self.element
        weights = self.training.accumulate * table
        # what the tied head's gradient joins is read and written once more
        dense = 16 if model.tie_embeddings else 4
        parts = (
            ("loss, elementwise", self.tokens * logits + 18 * weights, rates.LOSS),
            ("norms, residuals, rotation", self.tokens * norms * self.element, rates.NORMS),
            ("embedding", dense * weights + 28 * d_model * self.tokens, rates.EMBEDDING),
        )
        return [
            self._moved(name, moved, how if compiled or name == "embedding" else BOUND)
            for name, moved, how in parts
        ]

    def _router(self) -> CostItem:
        """Logits, choice and order: small kernels, whose time does not go to zero with the rows."""
        model, moe = self.spec.model, self.spec.model.moe
        layers = self.layers + self.again * _ROUTER_FORWARD
        token = 3 * model.d_model * self.element + 36 * moe.experts + 128 * moe.top_k
        moved, name = self.tokens * token * layers, "router and sort"
        if not self.execution.compile:
            return self._moved(name, moved, BOUND)
        full = moved / self.bandwidth
        fixed = self.training.accumulate * layers * rates.ROUTER_SECONDS
        seconds = full / rates.ROUTER.value + fixed
        return _item(name, seconds, replace(rates.ROUTER, value=full / seconds), moved=moved)

    def _update(self) -> list[CostItem]:
        """Gradients on their way to fp32, their norm, AdamW, the copies to bf16."""
        total, copied, more = self.parameters.total, self.big_matrices, self.training.accumulate - 1
        # bf16 to fp32 at the first micro-batch, then added: 2 + 4 and 2 + 4 + 4 bytes
        gradients = copied * (6 + 10 * more) + 12 * (total - copied) * more + 4 * total
        return [
            self._moved("gradient moves and norm", gradients, rates.GRADIENTS),
            # reads parameter, gradient and two moments, writes all but the gradient
            self._moved("optimizer and bf16 copies", 28 * total + 6 * copied, rates.OPTIMIZER),
        ]

    def _gaps(self) -> CostItem:
        """Time in which the card waits for the next kernel."""
        layers = self.layers * _LAUNCHES_A_LAYER + self.again * _LAUNCHES_A_FORWARD
        launches = self.training.accumulate * (layers + _LAUNCHES_BESIDE)
        seconds = launches * rates.GAP_SECONDS
        return _item("idle between kernels", seconds, rates.GAPS)

    def _computed(self, name: str, flops: float, how: Efficiency) -> CostItem:
        used = how if self.execution.precision == "bf16" else BOUND
        return _item(name, flops / (self.rate * used.value), used, flops=flops)

    def _moved(self, name: str, moved: float, how: Efficiency) -> CostItem:
        return _item(name, moved / (self.bandwidth * how.value), how, moved=moved)


def _item(
    name: str, seconds: float, how: Efficiency, *, flops: float = 0, moved: float = 0
) -> CostItem:
    return CostItem(
        name=name,
        seconds=seconds,
        flops=flops,
        bytes=moved,
        efficiency=how.value,
        evidence=how.evidence,
    )
