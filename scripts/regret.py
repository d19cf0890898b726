"""What a choice costs where nobody measured: of each workload of a recorded run, the backend that is chosen from all other figures,
beside the best one by the run itself.

    python scripts/regret.py random-part-2e191a2
    python scripts/regret.py core-5ee6402 --worst 10
    python scripts/regret.py core-5ee6402 --unknown        as on a GPU that has no figures

Other figures are those of every stored run without this one, and without this workload. Regret is the chosen backend's time in a busy
stream over the best one's; "over eager" is the chosen one's over torch eager's.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from opwise import clocks, library
from opwise.choosing.asked import NothingMeasured
from opwise.choosing.query import choose_from
from opwise.choosing.ranking import BASELINE
from opwise.choosing.selection import stream_us
from opwise.choosing.store import Gpu, Store
from opwise.ops.spec import Workload
from opwise.record import Record, read

RESULTS = Path(__file__).resolve().parents[1] / "results"


def without(store: Store, workload: Workload, device: str = "") -> Store:
    return Store([r for r in store.records if r.workload != workload and r.device != device])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a stored run: a file or part of its name")
    parser.add_argument("--worst", type=int, default=5, help="so many of each op are named")
    parser.add_argument("--unknown", action="store_true", help="leave out every figure of this GPU")
    options = parser.parse_args(arguments)
    path = library.find(options.run, RESULTS)
    cells: dict[Workload, dict[str, Record]] = defaultdict(dict)
    for record in read(path):
        if record.timed and not record.variant and record.call_us is not None:
            cells[record.workload][record.backend] = record
    others = [each for each in library.stored(RESULTS) if each != path]
    found: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for op in dict.fromkeys(workload.op for workload in cells):
        store = Store.load(others, op)
        for workload, timed in cells.items():
            if workload.op != op or BASELINE not in timed:
                continue
            gpu = Gpu(timed[BASELINE].device, timed[BASELINE].capability)
            try:
                chosen = choose_from(without(store, workload, gpu.device if options.unknown else ""), workload, gpu).backend
            except NothingMeasured as nothing:
                print(f"{workload}: {nothing}")
                continue
            states = clocks.common(list(timed.values()))
            us = {backend: stream_us(record, states) for backend, record in timed.items()}
            if chosen in us:
                about = f"{workload}: {chosen}, the best is {min(us, key=lambda backend: us[backend])}"
                found[op].append((us[chosen] / min(us.values()), us[chosen] / us[BASELINE], about))
    print("op: workloads, regret in geometric mean and at worst, over 1.2, over 1.05 of torch eager's time")
    for op, rows in found.items():
        regrets, over = [row[0] for row in rows], sum(row[1] > 1.05 for row in rows)
        mean, many = math.exp(fmean(map(math.log, regrets))), sum(regret > 1.2 for regret in regrets)
        print(f"{op}: {len(rows)}, {mean:.3f}, {max(regrets):.2f}, {many}, {over}")
        for regret, of_eager, about in sorted(rows, reverse=True)[: options.worst]:
            if regret > 1.05:
                print(f"    {regret:.2f} (over eager {of_eager:.2f}) {about}")


if __name__ == "__main__":
    main()
