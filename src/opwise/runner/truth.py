"""Inputs with the only truth about them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from opwise.ops.spec import OpSpec, Workload


@dataclass
class Truth:
    """`reference` and `bound` are float64, of the inputs as they were rounded to their dtype."""

    inputs: tuple[Tensor, ...]
    reference: Tensor
    bound: Tensor

    @classmethod
    def of(cls, spec: OpSpec, workload: Workload, inputs: tuple[Tensor, ...]) -> Truth:
        exact = [x.double() for x in inputs]
        reference = spec.reference(*exact)
        return cls(inputs, reference, spec.error_bound(workload, reference, *exact))
