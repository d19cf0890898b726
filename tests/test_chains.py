"""`opwise choose --for compile`: the chains compute the same in every way, and what is said of their times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from invoking import invoke

from opwise.choosing import chains
from opwise.choosing.chains import APART, EAGER, FUSED, OPERATOR, Timed
from opwise.commands import choose_compiled
from opwise.measure.figures import Timing
from opwise.ops import Workload


class FakeClock:
    """Runs what it is given, and tells times that it was given."""

    def __init__(self, us: Mapping[str, float]) -> None:
        self.us, self.refusals = us, {way: "CUDA error" for way in chains.WAYS if way not in us}

    def cold(self, launches: Mapping[str, Sequence[Callable[[], Any]]], turn: Callable[[str], None]) -> dict[str, Timing]:
        for each in launches.values():
            each[0]()
        return {way: Timing(us, us * 0.99, us * 1.01, 40, True, "events", rounds_us=(us, us * 1.001, us)) for way, us in self.us.items()}


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    """Dynamo keeps a few compilations a function, whoever asked for them."""
    torch._dynamo.reset()


US = {FUSED: 10.0, OPERATOR: 12.0, APART: 20.0, EAGER: 30.0}


@pytest.mark.parametrize("op", chains.CHAINS)
def test_every_way_computes_the_chain(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    workload = Workload(op, (6, 8, 5) if op == "matmul" else (7, 33), "float32")
    turns: list[str] = []
    found = chains.timed(lambda way, phase: turns.append(way), "cpu", str(workload), FakeClock(US))  # type: ignore[arg-type]
    assert list(dict.fromkeys(turns)) == list(chains.WAYS)
    assert all(each.error < 1e-5 for each in found.values())
    assert {way: (each.us, each.tied) for way, each in found.items()} == {way: (us, way == FUSED) for way, us in US.items()}
    assert chains.CHAINS[op].text.startswith(op) or op == "matmul"


def test_the_operator_is_opaque_to_what_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        graphs.append(graph.code)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    workload = Workload("softmax", (5, 9), "float32")
    functions, inputs = chains.ways(workload), chains.inputs_of(workload, torch.device("cpu"))
    for way in chains.COMPILED:
        functions[way](*inputs)
    assert ["opwise.softmax" in code for code in graphs] == [False, True]


@pytest.mark.parametrize(
    ("us", "said"),
    [(US, "Choosing nothing wins"), ({**US, OPERATOR: 9.95}, "Choosing nothing wins"), ({**US, OPERATOR: 8.0}, "1.25 times as long"),
     ({**US, APART: 5.0}, "Not compiled it is quicker: opwise's function")],
)  # fmt: skip
def test_what_wins(us: Mapping[str, float], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    best = min(us.values())
    found = {way: Timed(each, each, each, each / best, each == best, 1e-7) for way, each in us.items()}
    assert said in chains.sentence(found, "a chain")
    choose_compiled.show(found, Workload("gelu", (64,), "float16"), "NVIDIA Toy")
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_way_that_does_not_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    us = {way: each for way, each in US.items() if way != OPERATOR}
    with pytest.raises(RuntimeError, match="operator: CUDA error"):
        chains.timed(lambda way, phase: None, "cpu", "gelu/64/float32", FakeClock(us))  # type: ignore[arg-type]


def test_it_asks_for_a_gpu_and_for_one_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    asked = ("choose", "gelu", "--shape", "64", "--dtype", "float16", "--for", "compile")
    assert "torch sees no GPU here: ask on a machine with one" in " ".join(invoke(*asked).output.split())
    assert "leave out --recorded, --measure and --invariant" in " ".join(invoke(*asked, "--measure").output.split())
