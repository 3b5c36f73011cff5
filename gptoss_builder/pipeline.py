"""Load, spec rules, resolve, plan rules: the one line from a file to a plan.

Nothing here judges anything; it calls those who do, in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from checkers import run
from gptoss_builder.errors import InputError, SpecError, TargetError
from gptoss_builder.findings import Finding, Severity
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.schema import Plan
from gptoss_builder.spec.data_paths import with_data_paths
from gptoss_builder.spec.load import Document, read_document
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import Target, lookup

Source = str | PathLike[str] | Mapping[str, Any] | Spec


@dataclass(frozen=True)
class Checked:
    """A spec after every rule that could run."""

    document: Document
    """The spec as it was read."""
    plan: Plan | None
    """What it comes to, data paths as the spec has them; None when the findings say why it
    cannot be made."""
    findings: tuple[Finding, ...]
    """Everything that was found, from the top of the file to its end."""
    suppressed: int = 0
    """Findings that the spec accepts and that are therefore not listed."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make the spec illegal."""
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)


def check(
    source: Source,
    *,
    target: str | None = None,
    text: str | bytes | None = None,
    compile_kernels: bool = False,
) -> Checked:
    """Run every rule on a spec.

    Args:
        source: path of a spec, a mapping, or a `Spec`.
        target: card, architecture or `cpu`, in place of the spec's own.
        text: the content, or its bytes, when it does not come from the file that `source` names.
        compile_kernels: also compile the plan's kernels for its card; no GPU is needed.

    Raises:
        InputError: the path is not there or cannot be read.
        TargetError: `target` is not in the table. A bad spec raises nothing.
        MissingTritonError: a kernel is to be compiled, and Triton is not installed.
        KernelError: the compiler's process died.
    """
    values = source.model_dump(mode="json") if isinstance(source, Spec) else source
    document = read_document(values, text=text)
    card = _card(document, target)
    report = run.check_document(document, card)
    findings = [*document.findings, *report.findings]
    plan = None
    if report.plannable and document.spec is not None and card is not None:
        try:
            plan = resolve(document.spec, card)
        except InputError as error:
            findings.append(run.unresolved(document, error))
        else:
            findings += run.check_plan(document, plan)
            if compile_kernels:
                findings += run.check_compiled(document, plan)
    kept, dropped = run.suppress(document, findings, plan=plan)
    return Checked(document, plan, tuple(sorted(kept, key=run.by_position)), dropped)


def make_plan(source: Source, *, target: str | None = None) -> Plan:
    """Check a spec and give its plan; the arguments are those of `check`.

    Relative data paths of a file start at its folder, and the plan has them absolute: it trains
    from any working directory. Those of a mapping or a `Spec`, which have no place, start at the
    working directory of the training.

    Raises:
        SpecError: the spec has errors; its `findings` are all of them.
        InputError, TargetError: as `check`; InputError also of a folder whose name is not UTF-8.
    """
    checked = check(source, target=target)
    if checked.errors or checked.plan is None:
        raise SpecError(checked.errors)
    if isinstance(source, Mapping | Spec):
        return checked.plan
    folder = checked.document.directory
    spec = with_data_paths(checked.plan.spec, lambda path: str((folder / path).resolve()))
    return checked.plan.model_copy(update={"spec": spec})


def plan_again(spec: Spec, *, target: str | None = None) -> Plan:
    """Plan a spec that was judged before, whatever data lie where it says today.

    What is suppressed was judged there too, perhaps for another card and beside other data.

    Raises:
        SpecError, InputError, TargetError: as `make_plan`: this version refuses the spec.
    """
    judged: dict[str, object] = {"data": None, "suppress": ()}
    plan = make_plan(spec.model_copy(update=judged), target=target)
    kept = {field: getattr(spec, field) for field in judged}
    return plan.model_copy(update={"spec": plan.spec.model_copy(update=kept)})


def _card(document: Document, target: str | None) -> Target | None:
    named = document.valid(("target", "gpu")) and document.partial is not None
    own = document.partial.target.gpu if document.partial is not None and named else None
    if target is not None:
        return lookup(target, keep=own)
    if own is None:
        return None
    try:
        return lookup(own)
    except TargetError:
        return None  # SP101 says so, with the position.
