"""Inputs with their float64 reference, and the kinds of inputs on which all implementations are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from opwise.ops.spec import OpSpec, Workload


def kinds_of(spec: OpSpec) -> Mapping[str, Callable[[Workload, torch.device, int], tuple[Tensor, ...]]]:
    """Kind -> function that makes such inputs. The first kind is the one that is timed."""
    kinds = {"easy": spec.make_inputs, "hard": spec.hard_inputs}
    whole = getattr(spec, "whole_inputs", None)  # the history measures commits whose ops have none
    return {**kinds, "whole": whole} if whole else kinds


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
