"""`opwise tune --machine`: numbers are found by which predictions agree with times; they are stored, shown, used and removed."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from recorded_runs import TOY
from stand_ins import FakeSeat
from support import DEVICE, needs_gpu
from test_tune_command import AskedHere, invoke
from tuned_tables import FACTS, forget

from opwise import provenance
from opwise.backends import BACKENDS, tuned_table
from opwise.backends.gemm import gpu
from opwise.backends.gemm.cost import Product, Work, fma_smem, mma_smem, predicted_us, tiled, wgmma_smem
from opwise.backends.gemm.gpu import H100, Gpu
from opwise.commands import tune_machine
from opwise.commands.executors import Ready
from opwise.ops.spec import Workload
from opwise.runner import WorkerLost
from opwise.runner.survey import Survey
from opwise.tuning import bench, fitting, machine, measuring, standing
from opwise.tuning.fitting import FITTED, Sample, fit
from opwise.tuning.machine import Sampled

CPU = torch.device("cpu")
UNITS = {"bfloat16": ("wgmma", "mma"), "tfloat32": ("wgmma_tf32", "mma_tf32"), "float32": ("fma",)}


def other_gpu(seed: int = 5) -> Gpu:
    """Numbers up to a half away from an H100's."""
    chance = random.Random(seed)
    changed: Any = {name: getattr(H100, name) * math.exp(chance.uniform(-0.4, 0.4)) for name in FITTED}
    return replace(H100, **{**changed, "overlap": 1.3, "overlap_wgmma": 5.0, "pingpong_hides": 0.5})


def works(product: Product) -> Iterator[tuple[str, Work]]:
    """Of a product by each unit: large and small tiles, clusters, split K, persistent CTAs and several an SM."""
    for unit in UNITS[product.kind]:
        for rows, columns, split in ((128, 256, 1), (128, 128, 1), (64, 64, 1), (64, 64, 4)):
            name = f"{unit}_{rows}x{columns}_s{split}"
            depth, size, alone = 64 // product.size, product.size, rows * columns >= 128 * 128
            if unit.startswith("wgmma"):
                smem = wgmma_smem(rows, columns, size)
                yield name, tiled(product, rows, columns, depth, unit, smem, 4, split_k=split, persistent=split == 1, pingpong=alone)
                continue
            smem = fma_smem(rows, columns, 8, 8) if unit == "fma" else mma_smem(rows, columns, 32, 32, size)
            loads = (rows + columns) * size / 512
            each = 1 if alone else 3
            yield name, tiled(product, rows, columns, depth, unit, smem, 3, split_k=split, ctas_per_sm=each, loads=loads, setup=alone)


def samples(truth: Gpu, shapes: list[tuple[int, int, int]]) -> list[Sample]:
    products = [Product(*shape, kind) for kind in UNITS for shape in shapes]  # type: ignore[call-arg]
    return [Sample(str(p), name, work, predicted_us(work, truth)) for p in products for name, work in works(p)]


SEEN = [(32, 32, 32), (16, 4096, 4096), (128, 16384, 128), (1024, 1024, 1024), (2048, 256, 2048), (3072, 3072, 3072), (4096, 128, 4096)]
UNSEEN = [(256, 512, 1024), (64, 4096, 4096), (2048, 2048, 2048), (8192, 256, 4096), (1536, 1536, 1536)]


def test_a_gpu_that_obeys_the_model_with_other_numbers_is_predicted_within_3_percent() -> None:
    truth = other_gpu()
    seen, unseen = samples(truth, SEEN), samples(truth, UNSEEN)
    assert fitting.loss(fitting.by_product(unseen), H100).error > 2 * 0.03, "the shipped numbers are wrong for this GPU"
    parts: list[float] = []
    found = fit(seen, H100, trials=2500, told=parts.append)
    for each in (seen, unseen):
        loss = fitting.loss(fitting.by_product(each), found)
        assert loss.error < 0.03
        assert loss.chosen < 0.01
    assert (found.sms, found.clock_mhz) == (H100.sms, H100.clock_mhz), "read, not fitted"
    assert parts == sorted(parts)
    assert parts[-1] == 1.0


def test_the_same_times_give_the_same_numbers_and_right_ones_stay() -> None:
    seen = samples(H100, SEEN[:3])
    assert fit(seen, H100, trials=50) == fit(seen, H100, trials=50)
    assert fitting.loss(fitting.by_product(seen), fit(seen, H100, trials=50)) == (0.0, 0.0, 0.0)
    assert fit(seen, H100, most_s=0.0) == H100
    with pytest.raises(ValueError, match="no sample is given"):
        fit([], H100)


def test_what_the_times_do_not_tell_stays_near_what_ships() -> None:
    float32 = [sample for sample in samples(other_gpu(), SEEN) if "float32'" in sample.product and "tf" not in sample.product]
    found = fit(float32, H100, trials=600)
    moved = fitting.moved(found, H100)
    assert abs(moved["fma"]) > 0.1
    assert max(abs(moved[name]) for name in ("wgmma", "mma", "wgmma_tf32", "mma_tf32")) < 0.1


# -- what is measured --------------------------------------------------------------------------------------------------------


class PlayedClock:
    """Launches once, and says that each takes as long as its name."""

    refusals: ClassVar[dict[str, str]] = {}

    def rotation(self, nbytes: int) -> int:
        return 2

    def cold(self, launches: Any, **_: Any) -> dict[str, Any]:
        for each in launches.values():
            for launch in each:
                launch()
        return {name: SimpleNamespace(median_us=float(len(name)), sm_clock_mhz=1500.0) for name in launches}


def test_a_product_s_launches_are_checked_and_what_is_wrong_or_breaks_is_told() -> None:
    workload = Workload("matmul", (8, 16, 4), "float32")
    named = {"right": "torch_eager/matmul", "wrong": "tune_wrong/matmul", "broken": "torch_eager/matmul:no_such"}

    def implementation(name: str, device: torch.device) -> Any:
        if name == named["wrong"]:
            return SimpleNamespace(prepare=lambda a, b, out: lambda: out.fill_(1.0))
        return original(name, device)

    original = bench.backends.implementation
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.backends, "implementation", implementation)
        launches, refused = bench.launches(workload, named, CPU, PlayedClock())  # type: ignore[arg-type]
    assert {name: len(each) for name, each in launches.items()} == {bench.BASELINE: 2, "right": 2}
    assert refused.keys() == {"wrong", "broken"}
    assert refused["wrong"].startswith("ValueError: wrong by ")


def test_what_is_timed_is_what_is_predicted_to_be_quickest_of_products_of_every_kind() -> None:
    sheet, start = machine.outlined(None, "cpu")
    assert start == H100
    assert {w.dtype for w in machine.workloads()} == set(UNITS)
    assert 35 <= len(sheet.jobs) <= len(machine.workloads())
    assert all(1 < len(job.implementations) <= machine.EACH for job in sheet.jobs)
    assert {unit.implementation for unit in sheet.builds} == {name for job in sheet.jobs for name in job.implementations}
    assert all(unit.implementation.startswith("tune_cuda_src/matmul:") for unit in sheet.builds)


@needs_gpu
@pytest.mark.slow
def test_on_a_gpu_a_product_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuned_table.VARIABLE, tuned_table.OFF)
    monkeypatch.setitem(BACKENDS, "tune_cuda_src", "")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "opwise.tuning.tune_cuda_src", None)  # type: ignore[arg-type]
    sheet, _ = machine.outlined(None, str(DEVICE))
    bench.install((sheet.stand,))
    (job,) = (job for job in sheet.jobs if str(job.workload) == "matmul/1024x1024x1024/bfloat16")
    found = machine.sampled(None, str(DEVICE), job.workload, job.implementations)
    assert found.lost == ()
    assert [sample.name for sample in found.samples] == [name.partition(":")[2] for name in job.implementations]
    assert all(1 < sample.us < 1000 for sample in found.samples)


# -- the command -------------------------------------------------------------------------------------------------------------


class Played(FakeSeat):
    """A seat whose worker is this process; the second product takes its worker down."""

    asked = 0

    def ask(self, kind: str, payload: Any = None, patience: Any = None) -> Any:
        if kind != "apply":
            return super().ask(kind, payload, patience)
        type(self).asked += 1
        if self.asked == 2:
            raise WorkerLost("the GPU fell off the bus", ("", "apply"))
        return payload[0](None, *payload[1:])


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of tables; and a GPU that is the CPU in truth, whose times are the model's by other numbers."""
    truth = other_gpu()

    def sampled(turn: object, device: str, workload: Workload, implementations: list[str]) -> Sampled:
        made = samples(truth, [workload.shape])  # type: ignore[list-item]
        return Sampled(tuple(sample for sample in made if workload.dtype in sample.product), 1500.0)

    monkeypatch.setenv(tuned_table.VARIABLE, str(tmp_path))
    monkeypatch.setattr("opwise.commands.tune.chosen_device", lambda name: "cuda:0")
    monkeypatch.setattr(tune_machine, "ready", lambda device, share: nullcontext(Ready(Survey("cpu", FACTS, {}))))
    monkeypatch.setattr(tune_machine, "Worker", AskedHere)
    monkeypatch.setattr(machine, "Seat", Played)
    monkeypatch.setattr(measuring, "Seat", Played)
    monkeypatch.setattr(machine, "sampled", sampled)
    monkeypatch.setattr(fitting, "TRIALS", 20)
    monkeypatch.setattr(tune_machine, "FIT_S", 1.0)
    monkeypatch.setattr(Played, "asked", 0)
    return tmp_path


def test_it_measures_fits_stores_and_shows(toy: Path) -> None:
    told = invoke("--machine")
    said = " ".join(told.output.split())
    assert told.exit_code == 0, told.output
    assert "by the numbers that ship:" in said
    assert "by this GPU's own:" in said
    assert "clock_mhz │ 1980 │ 1500 │ 0.76" in said, "the clock is the one at which it was timed"
    assert "sms │ 132 │ the same" in said
    assert "matmul/1x768x2304/bfloat16: the GPU fell off the bus" in said, "which costs its product alone"
    stored = gpu.stored(TOY.device)
    assert stored is not None
    assert stored != H100
    assert stored.clock_mhz == 1500.0
    shown = " ".join(invoke("--machine", "--show", "--device", "nvidia-toy").output.split())
    assert "clock_mhz │ 1980 │ 1500 │ 0.76" in shown
    assert "the GPU's numbers" in invoke("--show", "--device", "nvidia-toy").output
    assert "the GPU's numbers" not in invoke("softmax", "--show", "--device", "nvidia-toy").output
    assert json.loads(invoke("--machine", "--show", "--json", "--device", "nvidia-toy").output)["numbers"] == asdict(stored)
    assert "tuned tables in force: the GPU's numbers" in standing.told(FACTS)[0]
    assert "removed of nvidia-toy: nothing" in invoke("softmax", "--reset", "--device", "nvidia-toy").output
    assert "removed of nvidia-toy: the GPU's numbers" in invoke("--machine", "--reset", "--device", "nvidia-toy").output
    assert gpu.stored(TOY.device) is None


def test_ctrl_c_leaves_what_was_stored(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = gpu.write(other_gpu(7), toy, TOY.device).read_bytes()

    def interrupted(*_: Any, **__: Any) -> Gpu:
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "fit", interrupted)
    told = invoke("--machine")
    assert told.exit_code == 130
    assert "the numbers stay as they were" in told.output
    assert gpu.path_of(toy, TOY.device).read_bytes() == before


def test_with_too_few_products_nothing_is_stored(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "sampled", lambda *_: Sampled(lost=("a kernel: no compiler",)))
    told = invoke("--machine")
    assert (told.exit_code, gpu.stored(TOY.device)) == (1, None)
    assert "0 products have times, 20 are needed" in " ".join(told.output.split())
    assert "a kernel: no compiler" in told.output


def test_without_a_gpu_it_says_what_to_do_and_what_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuned_table.VARIABLE, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told = invoke("--machine")
    assert told.exit_code == 1
    assert "run it on the machine with that GPU; --show says what is stored" in " ".join(told.output.split())
    told = invoke("matmul", "--machine", "--quick")
    assert told.exit_code == 2
    assert "leave ops and workloads, --quick out" in " ".join(told.output.split())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The toy GPU in this machine."""
    monkeypatch.setenv(tuned_table.VARIABLE, str(tmp_path))
    found = SimpleNamespace(name=TOY.device, multi_processor_count=10, clock_rate=1_200_000)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: TOY.device)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    forget()
    yield tmp_path
    forget()


def test_stored_numbers_are_used_on_gpus_of_that_name_and_a_torn_file_is_reported(here: Path) -> None:
    device = torch.device("cuda", 0)
    assert gpu.of(device) == replace(H100, sms=10, clock_mhz=1200.0)
    path = gpu.write(other_gpu(), here, TOY.device)
    forget()
    assert gpu.of(device) == other_gpu()
    assert gpu.stored("NVIDIA H100 80GB HBM3") is None
    path.write_text('{"sms": 1}')
    forget()
    with pytest.warns(UserWarning, match="opwise tune --machine makes it anew"):
        assert gpu.of(device).sms == 10
    assert gpu.digest(TOY.device) == ""


def test_a_record_says_that_they_were_in_force(here: Path) -> None:
    device = torch.device("cuda", 0)
    assert provenance.tables("cupy_raw", "matmul", device) == ""
    gpu.write(other_gpu(), here, TOY.device)
    own = gpu.digest(TOY.device)
    assert len(own) == 16
    for backend in ("cupy_raw", "triton_jit", "numba_cuda"):
        assert provenance.tables(backend, "matmul", device) == own == standing.in_force(backend, "matmul", FACTS)
    assert provenance.tables("cupy_raw", "softmax", device) == "" == standing.in_force("cupy_raw", "softmax", FACTS)
    assert provenance.tables("torch_eager", "matmul", device) == ""
    gpu.write(other_gpu(6), here, TOY.device)
    assert gpu.digest(TOY.device) != own
