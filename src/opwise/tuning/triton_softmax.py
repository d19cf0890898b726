"""softmax's kernels in Triton and their forms, and the plan's own choice, computed without its GPU."""

from __future__ import annotations

from opwise.tuning.softmax import Softmax


class TritonSoftmax(Softmax):
    def compiled(self, rows: int, columns: int, dtype: str) -> dict[str, str]:
        """One kernel per length, since it is compiled for the division of a row."""
        from opwise.backends.triton_jit.softmax.configurations import offered

        return {
            name: f"{name} {dtype} {columns}" for name in offered(rows, columns, dtype, True, self.machine.sms, self.machine.capability)
        }

    def own(self, rows: int, columns: int, dtype: str) -> str:
        from opwise.backends.triton_jit.softmax.configurations import in_turn, offered

        known = offered(rows, columns, dtype, True, self.machine.sms, self.machine.capability)
        asked = in_turn(rows, columns, dtype, self.machine.sms, self.machine.capability)
        return next(way.name for way in asked if way.kind not in ("cluster", "stream") or way.name in known)
