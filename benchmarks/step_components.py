"""Which component of a training step a kernel belongs to: one function over what launched it."""

from __future__ import annotations

from dataclasses import dataclass

from gptoss_builder.plan.schema import Plan

REST = "rest"
Shapes = tuple[tuple[int, ...], ...]

_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
_ROUTER_OPS = ("aten::topk", "aten::sort", "gptoss::pick", "gptoss::spread")
_AROUND_SCORES = ("dot_do_o", "convert_dq", "reduce_head", "reduce_kernel", "Memset", "Fill")
_ENGINE = "autograd::engine::evaluate_function: "
_BY_CALLER = (
    (("aten::_fused_adamw_", "aten::_foreach_copy_"), "optimizer and bf16 copies"),
    (
        ("aten::_foreach_norm", "aten::linalg_vector_norm", "torch::autograd::AccumulateGrad"),
        "gradient moves and norm",
    ),
    (("aten::embedding", f"{_ENGINE}Embedding"), "embedding"),
)
_OF_EXPERTS = (
    (("gptoss::triton_up",), "experts' up-projection"),
    (("gptoss::triton_activation_backward",), "experts' activation"),
    (("gptoss::combine", "aten::index_select"), "experts' gathers and sums"),
)


@dataclass(frozen=True)
class Launch:
    """Kernels that were launched alike, with their time."""

    chain: tuple[str, ...]
    """Operators, outermost first; the last one launched the kernel."""
    shapes: Shapes
    """Of the last operator's inputs, () for what is not a tensor."""
    values: tuple[str, ...]
    """The last operator's inputs that are plain values, "" for others."""
    kernel: str
    ms: float
    """Of all launches in a step."""
    count: float
    """Launches a step."""

    @property
    def op(self) -> str:
        """The operator that launched the kernel; a compiled kernel's own name."""
        return self.chain[-1]

    def within(self, *names: str) -> bool:
        """Whether an operator of the chain begins with one of the names."""
        return any(op.startswith(names) for op in self.chain)


def component(row: Launch, plan: Plan) -> str:
    """The component, by the name that `plan.cost` gives it; `rest` for what fits nowhere."""
    if row.within("_LinearCrossEntropy"):
        return "vocabulary products" if row.op in _PRODUCTS else "loss, elementwise"
    for callers, name in _BY_CALLER:
        if row.within(*callers):
            return name
    if row.within("gptoss::experts"):
        return _experts(row, plan)
    if any("attention_" in op for op in row.chain if op.startswith("aten::")):
        return _attention(row, plan)
    return _block(row, plan)


def _experts(row: Launch, plan: Plan) -> str:
    """Routed and shared experts, the same operator: routed ones have rows sorted by expert."""
    sizes = _sizes(plan)
    for callers, name in _OF_EXPERTS:
        if row.within(*callers):
            return name
    if row.within("gptoss::silu_mul"):
        shared = any(shape[:1] == (sizes["T"],) for shape in row.shapes)
        return "shared experts' activation" if shared else "experts' activation"
    if row.within("aten::_grouped_mm", "gptoss::loop_"):
        return "experts' up-projection" if _is_up(row, sizes) else "experts' other products"
    # what is neither a product nor elementwise counts the rows' positions
    return "shared experts' products" if row.op in _PRODUCTS else "router and sort"


def _is_up(row: Launch, sizes: dict[str, int]) -> bool:
    """Whether it is x · W13ᵀ; in the gradient of x the weight has the other order."""
    weight = row.shapes[1] if len(row.shapes) > 1 else ()
    return len(weight) >= 2 and weight[-2:] == (sizes["D"], 2 * sizes["F"])


def _attention(row: Launch, plan: Plan) -> str:
    run, backward = plan.execution, any("backward" in op for op in row.chain)
    if backward and any(word in row.kernel for word in _AROUND_SCORES):
        return "attention gradients, cast and summed"
    name = "cudnn" if any("cudnn" in op for op in row.chain) else "flash"
    window = run.window_attention == name
    if window and run.full_attention == name and row.values:
        # flash names the keys before the query that it sees; −1 or nothing is all of them
        window = str((plan.spec.model.attention.window or 0) - 1) in row.values
    kind = "window" if window else "full"
    return f"{name} attention, {kind} layers, {'backward' if backward else 'forward'}"


def _block(row: Launch, plan: Plan) -> str:
    """What runs outside the operators above: in compiled blocks, the last norm, around them."""
    compiled = row.within("CompiledFunction", f"{_ENGINE}CompiledFunction", "Torch-Compiled")
    if compiled and (row.within(*_ROUTER_OPS) or _of_router(row, plan)):
        return "router and sort"
    if compiled and row.op in _PRODUCTS:
        return "projections"
    if row.op.startswith("triton_") or (compiled and row.op.startswith("aten::sum")):
        return "norms, residuals, rotation"
    cast = row.op == "aten::copy_" and [len(shape) for shape in row.shapes[:2]] == [3, 3]
    return "embedding" if cast else REST  # the stream is cast where it begins


def _of_router(row: Launch, plan: Plan) -> bool:
    """Whether it works on nothing but logits, choices, rows' numbers and router weights."""
    sizes = _sizes(plan)
    tokens, experts, top_k, d_model = (sizes[name] for name in "TEKD")
    tensors = [shape for shape in row.shapes if shape]
    if row.op in _PRODUCTS:
        return any(3 * experts in shape for shape in tensors)
    small = {
        (tokens, experts),
        (tokens, 3 * experts),
        (tokens, top_k),
        (tokens * top_k,),
        (experts,),
        (experts + 1,),
        (1,),
        (experts, d_model),
        (3 * experts, d_model),
    }
    # sums over tokens are made in two steps, with [experts, parts] between
    parts = {shape for shape in tensors if len(shape) == 2 and shape[0] == experts}
    return bool(tensors) and small.union(parts).issuperset(tensors)


def _sizes(plan: Plan) -> dict[str, int]:
    model, training = plan.spec.model, plan.spec.training
    tokens = training.micro_batch * training.context if training is not None else 0
    return {
        "T": tokens,
        "D": model.d_model,
        "E": model.moe.experts,
        "K": model.moe.top_k,
        "F": model.moe.d_ff,
    }
