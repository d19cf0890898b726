"""A trace file: JSON as Kineto writes it, which may be invalid, plain or gzip; numbers keep their exact digits."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from opwise.profiling.capture import NOT_A_NUMBER

GZIP = b"\x1f\x8b"
TAKEN = "a Chrome trace is taken, as torch.profiler's export_chrome_trace writes it: .json or .json.gz"
BACKSLASH = re.compile(r"""(\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})|\\""")  # one that JSON knows, or a bare one
# Half of a pair of UTF-16, as of a name that was cut off; the first group is what else begins with a backslash. It cannot be written.
HALF = re.compile(r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u])|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
MARK = "\0"  # before a number that JSON's writer would round
MARKED = re.compile(r'"\\u0000([^"]*)"')


class NotATrace(ValueError):
    """The file holds no readable trace; the message says why and what is accepted."""


def document(path: Path) -> tuple[Any, tuple[str, ...]]:
    """The JSON in the file, fractional numbers as Decimal, and the repairs that were needed to read it.

    Raises NotATrace for a file that is torn or no JSON; OSError if it cannot be read."""
    text, notes = _text(path), tuple[str, ...]()
    failed: list[ValueError] = []
    for mend, note in MENDED:
        mended = mend(text)
        if mended == text and failed:
            continue
        text, notes = mended, (*notes, *filter(None, [note]))
        try:
            return json.loads(text, strict=False, parse_float=Decimal), notes
        except RecursionError:
            raise NotATrace(f"{path} holds lists or objects nested too deeply to be read: {TAKEN}") from None
        except ValueError as error:  # a whole number of thousands of digits is one too
            failed.append(error)
    why = failed[0]
    where = f"{why.msg}, line {why.lineno}, column {why.colno}" if isinstance(why, json.JSONDecodeError) else str(why)
    quoted = 'where a name there holds an unescaped ", as some torch writes it, record without with_stack=True or with a newer torch; '
    remedy = quoted if where.startswith("Expecting ',' delimiter") else ""
    raise NotATrace(f"{path} is no JSON, or was cut off ({where}): {remedy}{TAKEN}") from why


def _text(path: Path) -> str:
    raw = path.read_bytes()
    if raw.startswith(GZIP):
        try:
            raw = gzip.decompress(raw)
        except EOFError as error:
            raise NotATrace(f"{path} is a torn gzip file: it ends too early, so copy or record it again") from error
        except (OSError, zlib.error) as error:
            raise NotATrace(f"{path} is a damaged gzip file ({error}): copy or record it again") from error
    if not raw.strip():
        raise NotATrace(f"{path} is empty: {TAKEN}")
    text = raw.decode(json.detect_encoding(raw), errors="replace")
    return HALF.sub(lambda found: found[1] or r"\ufffd", text) if r"\ud" in text or r"\uD" in text else text


def _escaped(text: str) -> str:
    return BACKSLASH.sub(lambda found: found[1] or r"\\", text)


def _closed(text: str) -> str:
    """A bare array may lack its closing bracket."""
    return text.rstrip().rstrip(",") + "]" if text.lstrip().startswith("[") else text


BARE = "its backslashes, which torch on Windows leaves unescaped, were mended: before b, f, n, r and t a name may lack one"
MENDED: tuple[tuple[Callable[[str], str], str], ...] = (
    (lambda text: text, ""), (lambda text: NOT_A_NUMBER.sub(": null", text), ""), (_escaped, BARE), (_closed, "")
)  # fmt: skip


def written(found: Any) -> str:
    """A document as JSON, with the numbers as they were read."""
    return MARKED.sub(r"\1", json.dumps(found, default=lambda number: f"{MARK}{number}"))


def write(found: Any, path: Path) -> None:
    """Compressed if the name ends in .gz. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = written(found).encode()
    path.write_bytes(gzip.compress(data, compresslevel=6) if path.suffix == ".gz" else data)
