"""The variant `invariant`: a row of C has the same bits whatever m is. Not in recipes.py, whose digest all ops' records hold."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from opwise.backends.cuda_src import matmul, recipes
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.cuda_src.recipes import RECIPES, Recipe
from opwise.backends.gemm import gpu
from opwise.backends.protocol import Build, Variant
from opwise.backends.tuned import look


def variant(built: Callable[[Recipe], Build]) -> Variant:
    """The variant in a backend; built(recipe) is its build."""
    recipe = Recipe("batch-invariant: K summed in one order, whatever M is", _plan, RECIPES["matmul"][""].sizes)
    return Variant(built(recipe), recipe.summary, takes_transposed=True)


def _plan(a: Tensor, b: Tensor, out: Tensor) -> Plan:
    return matmul.plan_invariant(recipes._product(a, b, out), recipes._machine(a), gpu.of(a.device), look(matmul.TABLE, a.device))
