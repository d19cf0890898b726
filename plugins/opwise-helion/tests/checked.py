"""Run by test_interpreter.py in a process of its own, where Triton interprets: each workload named in every variant named, a line each."""

from __future__ import annotations

import importlib
import json
import sys

import torch
from opwise.backends.protocol import Implementation, variants_of
from opwise.measure.validate import check
from opwise.ops import OPS, Workload

import opwise_helion

CPU = torch.device("cpu")

opwise_helion.probe(CPU)
for line in sys.argv[1:]:
    name, _, named = line.partition(":")
    workload = Workload.parse(name)
    spec, variants = OPS[workload.op], variants_of(importlib.import_module(f"opwise_helion.{workload.op}"))
    for variant in named.split(",") if named else variants:
        implementation = Implementation("helion", spec, variant, variants[variant], "cpu")
        for make in filter(None, (spec.make_inputs, spec.hard_inputs, spec.whole_inputs)):
            inputs = make(workload, CPU, 1)
            exact = [x.double() for x in inputs]
            truth = spec.reference(*exact)
            with workload.precision():
                verdict = check(implementation.prepare, inputs, truth, spec.error_bound(workload, truth, *exact))
            sys.stdout.write(json.dumps({"workload": name, "variant": variant, "ok": verdict.ok, "reason": verdict.reason}) + "\n")
