"""What is written beside a figure, here and on a machine without NVML."""

from __future__ import annotations

import pytest
import torch

from opwise.measure.device import Monitor, State, facts, is_called, slug


def test_facts_of_the_cpu() -> None:
    found = facts(torch.device("cpu"))
    assert found["device"] == slug(found) == "cpu"
    assert found["cores"] >= 1
    assert found["cpu"]
    assert found["versions"]["torch"] == torch.__version__, "with its local part: +cpu and +cu130 are two builds"
    assert {"numpy", "torch"} <= set(found["versions"])


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3", "nvidia-h100", "h100", "H100", "hbm3", "h100 80gb"])
def test_a_device_goes_by_its_name_how_that_begins_and_words_of_it(name: str) -> None:
    assert is_called("NVIDIA H100 80GB HBM3", name)


@pytest.mark.parametrize("name", ["h200", "h10", "00", "80gb-h100", "nvidia-h100-pcie", "100"])
def test_a_device_does_not_go_by_another_name(name: str) -> None:
    assert not is_called("NVIDIA H100 80GB HBM3", name)


def test_slugs_are_folder_names() -> None:
    assert slug({"device": "NVIDIA H200"}) == "nvidia-h200"
    assert slug({"device": "NVIDIA GeForce RTX 4090 / Laptop (2)"}) == "nvidia-geforce-rtx-4090-laptop-2"
    assert slug({"device": "../"}) == "unknown"


def test_what_nobody_can_tell_is_none() -> None:
    monitor = Monitor(torch.device("cpu"))
    assert monitor.sample() == State(None, None, None, ())
