"""The store keeps what it was given, loses at most a torn line, and refuses what it does not know."""

from __future__ import annotations

import gzip
import json
import math
import random
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from opwise.early import nursery
from opwise.fields import WrongField
from opwise.library import NoSuchRun, find
from opwise.record import SCHEMA, STATES, STATUSES, Interval, Record, UnknownSchema, read, read_extra, read_newest
from opwise.run_files import append, new_run, runs

FULL = Record(
    op="softmax", backend="triton_jit", variant="textbook", dtype="float16", shape=(583, 931), status="ok", error_ratio=0.41,
    kernel_cold_us=Interval(10.0, 9.9, 10.2, 40, "events"), versus_best=(1.0, 1.0, 1.0), throttle=("power",), extra_bytes=0,
    versions={"torch": "2.13.0"}, commit="abc1234", dirty=False,
)  # fmt: skip


def random_record(rng: random.Random) -> Record:
    def maybe(value: object) -> object:
        return value if rng.random() < 0.7 else None

    return replace(
        FULL,
        shape=tuple(rng.randrange(1, 10**6) for _ in range(rng.randrange(4))),
        status=rng.choice(STATUSES),
        reason=rng.choice(["", 'a "quoted" reason', "two\nlines", "µ≤∞", "\x00\x1b[31m"]),
        error_ratio=rng.choice([None, 0.0, 0.5, math.inf]),
        kernel_cold_us=maybe(Interval(rng.random(), 0.1, 2.0, 30, "graph", False, "starved")),
        kernel_capped_us=maybe(Interval(rng.random(), 0.1, 2.0, 30, "graph")),
        capped_versus_best=maybe((1.1, 1.0, 1.2)),
        capped_throttle=("power cap",),
        extra_bytes=maybe(rng.randrange(2**40)),
        dirty=maybe(True),
    )


def test_every_record_comes_back_as_it_was() -> None:
    rng = random.Random(20)
    for record in [FULL, *(random_record(rng) for _ in range(300))]:
        line = record.to_json()
        assert "\n" not in line
        assert Record.from_json(line) == record


def test_nan_is_kept_readable_as_json() -> None:
    line = replace(FULL, error_ratio=math.nan).to_json()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert math.isnan(Record.from_json(line).error_ratio or 0.0)


@pytest.mark.parametrize("cut", [2, 40, 200])
def test_a_torn_last_line_is_skipped_with_a_warning(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "run.jsonl"
    append(path, [FULL.to_json(), FULL.to_json()])
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.warns(UserWarning, match="torn"):
        assert read(path) == [FULL]


WRONG = [
    ("op", None), ("shape", "4096x4096"), ("shape", [4096, -1]), ("dtype", "float8"), ("status", "fine"), ("reason", "\ud800"),
    ("sol", -0.1), ("kernel_cold_us", 5), ("kernel_cold_us", {"median": 5.0}), ("kernel_cold_us", vars(Interval(math.nan, 1.0, 1.0, 3))),
    ("error_ratio", "huge"), ("versus_best", [1.0]), ("throttle", "power"), ("versions", {"torch": 2}), ("dirty", 0), ("extra_bytes", 1.5),
    ("joules", 10**400), ("us_by_process", {"full": [1.0, "x"]}), ("repeatable", "yes"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG, ids=[str(number) for number in range(len(WRONG))])
def test_a_record_with_a_wrong_field_is_skipped_by_file_line_and_field(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "run.jsonl"
    append(path, [FULL.to_json(), json.dumps(json.loads(FULL.to_json()) | {field: value}), FULL.to_json()])
    with pytest.warns(UserWarning, match=rf"run\.jsonl:2: a record is skipped: its field {field}.* is taken"):
        assert read(path) == [FULL, FULL]
    with pytest.warns(UserWarning, match=rf"run\.jsonl:2: .* its field {field}"):
        assert [record for _, record in read_newest(path, lambda *_: False)] == [FULL, FULL]


def test_a_missing_field_is_named_and_what_ends_no_line_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    odd = replace(FULL, reason="a\u2028b")
    lacks = {name: value for name, value in json.loads(FULL.to_json()).items() if name != "op"}
    lines = [json.dumps(json.loads(odd.to_json()), ensure_ascii=False), json.dumps(lacks), '{"a": ' + "[" * 10**5, '{"a": ' + "1" * 5000]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert read(path) == [odd]
    torn = "a torn record is skipped"
    expected = ["2: a record is skipped: its field op is missing: what opwise wrote is taken", f"3: {torn}", f"4: {torn}"]
    assert [str(warning.message).partition("run.jsonl:")[2] for warning in told] == expected


@pytest.mark.parametrize("schema", [0, SCHEMA + 1, None, "1", True])
def test_an_unknown_schema_is_refused(tmp_path: Path, schema: object) -> None:
    path = tmp_path / "run.jsonl"
    append(path, [json.dumps(json.loads(FULL.to_json()) | {"schema": schema})])
    with pytest.raises(UnknownSchema, match="schema"):
        read(path)


def packed(path: Path) -> Path:
    """The run as `gzip` leaves it: compressed, in the place of the file."""
    smaller = path.with_name(f"{path.name}.gz")
    smaller.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return smaller


def test_a_compressed_run_reads_as_the_other_and_takes_no_more_lines(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-h200" / "20260101T000000Z-core-a.jsonl"
    append(path, [replace(FULL, reason="µ≤∞").to_json(), json.dumps({"schema": SCHEMA, "kind": "limits", "limits": {"empty_us": 2.0}})])

    def unskipped(_: str, __: str) -> bool:
        return False

    cells, extra, newest = read(path), read_extra(path, "limits"), list(read_newest(path, unskipped))
    smaller = packed(path)
    assert (read(smaller), read_extra(smaller, "limits"), list(read_newest(smaller, unskipped))) == (cells, extra, newest)
    assert runs(tmp_path) == [smaller] == [find("core-a", tmp_path)] == [find("20260101T000000Z-core-a.jsonl", tmp_path)]
    with pytest.raises(OSError, match=r"is compressed.*gunzip 20260101T000000Z-core-a\.jsonl\.gz"):
        append(smaller, [FULL.to_json()])
    append(path, [FULL.to_json()])
    assert runs(tmp_path) == [path], "a run that is there both ways counts once"


def test_a_damaged_compressed_run_says_so(tmp_path: Path) -> None:
    append(tmp_path / "run.jsonl", [FULL.to_json()])
    path = packed(tmp_path / "run.jsonl")
    whole = path.read_bytes()
    for damaged in (whole[:-9], whole[:40] + b"\xff" * 8 + whole[48:], b"no gzip"):
        path.write_bytes(damaged)
        with pytest.raises(OSError, match="damaged|Not a gzipped file"):
            read(path)


def test_other_kinds_of_lines_are_no_cells(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    append(path, [FULL.to_json(), json.dumps({"schema": SCHEMA, "kind": "limits", "limits": {"empty_us": 2.0}})])
    assert read(path) == [FULL]
    assert read_extra(path, "limits")[0]["limits"] == {"empty_us": 2.0}


def _write_many(path: str, worker: int) -> None:
    for i in range(100):
        append(Path(path), [replace(FULL, seed=worker * 1000 + i, reason="x" * (i * 37 % 2000)).to_json()])


def test_concurrent_writers_interleave_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    writers = [nursery().Process(target=_write_many, args=(str(path), n)) for n in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert sorted(r.seed or 0 for r in read(path)) == sorted(n * 1000 + i for n in range(2) for i in range(100))


def test_two_runs_in_one_second_get_two_files(tmp_path: Path) -> None:
    paths = {new_run(tmp_path, "cpu", "smoke", "abc") for _ in range(5)}
    assert len(paths) == 5
    assert all(p.exists() for p in paths)


def test_a_missing_run_says_where_was_looked(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun, match=str(tmp_path)):
        find("no-such-run", tmp_path)


def test_the_newest_run_of_a_set_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia-h200"
    for name in ("20260101T000000Z-core-a", "20260102T000000Z-core-b", "20260103T000000Z-seed-c"):
        append(folder / f"{name}.jsonl", [FULL.to_json()])
    assert find(None, tmp_path, "nvidia-h200", "core").name.endswith("core-b.jsonl")
    assert find("seed", tmp_path).name.endswith("seed-c.jsonl")


def of_schema_1(op: str, *throttle: str) -> Record:
    data = json.loads(replace(FULL, op=op, sol=0.8, limit_us=8.0, sm_clock_mhz=1500.0, throttle=throttle).to_json())
    kept = {name: value for name, value in data.items() if "capped" not in name and name != "rest_us"}
    return Record.from_data({**kept, "schema": 1})


@pytest.mark.parametrize("throttle", [True, "power cap", 3])
def test_a_wrong_field_of_schema_1_is_named_too(throttle: object) -> None:
    with pytest.raises(WrongField, match="its field throttle"):
        Record.from_data(json.loads(FULL.to_json()) | {"schema": 1, "op": "matmul", "throttle": throttle})


def test_a_product_of_schema_1_is_power_capped_where_the_cap_held() -> None:
    capped = of_schema_1("matmul", "power cap")
    assert (capped.kernel_cold_us, capped.kernel_capped_us, capped.sol) == (None, FULL.kernel_cold_us, None)
    assert (capped.capped_versus_best, capped.capped_sm_clock_mhz, capped.capped_throttle) == ((1.0, 1.0, 1.0), 1500.0, ("power cap",))
    assert (capped.kernel_us(STATES[0]), capped.kernel_us(STATES[1])) == (None, FULL.kernel_cold_us)
    for other in (of_schema_1("matmul"), of_schema_1("softmax", "power cap")):
        assert (other.kernel_cold_us, other.kernel_capped_us, other.sol) == (FULL.kernel_cold_us, None, 0.8)
        assert other.kernel_us(STATES[0]) == other.kernel_us(STATES[1])
