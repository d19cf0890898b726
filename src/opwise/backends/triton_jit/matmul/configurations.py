"""The configurations of a product: a kernel's tile, stages, split-K and flags are fields of a `Config`. Which of them a product can have,
and what each makes the GPU do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from opwise.backends.gemm.cost import Product, Work, fma_smem, mma_smem, tiled, wgmma_smem
from opwise.backends.gemm.gpu import Machine
from opwise.backends.triton_jit.common import clusters
from opwise.backends.triton_jit.matmul import extra

GROUP = 8  # tile rows that programs walk down together
HOPPER = (9, 0)  # wgmma, Gluon's kernels, and clusters, which were measured there alone
TMA_LIMIT = 2**31 - 256  # TMA's coordinates have 32 bits
GRID_Y = 65535
SPLITS = (1, 2, 4, 8, 16)  # programs of a tile through pointers
FREE = 48 * 1024  # bytes of dynamic shared memory that a kernel may use without opting in
PAD = 4  # floats of padding after each row of sums in shared memory: no bank conflicts, rows stay aligned to 16 bytes


@dataclass(frozen=True)
class Config:
    """A tile of the product (BM x BN), a step of K (BK), warps a program, pipeline stages.

    kernel: its module. persistent: programs loop over tiles, as many programs as are resident. swap_ab: computes C' = B' A'; C has at most
    BM rows. split_k: programs of a thread block cluster that share a tile's K. prefetch: the next step's elements are held in registers
    while a step is multiplied (extra/cluster_reduce.py). layout: of A and B, as in Product.
    """

    BM: int
    BN: int
    BK: int
    warps: int
    stages: int
    ctas_per_sm: int = 1
    kernel: str = "pointers"
    persistent: bool = False
    swap_ab: bool = False
    split_k: int = 1
    prefetch: bool = False
    layout: str = "NN"

    def __str__(self) -> str:
        return f"{self.BM}x{self.BN}x{self.BK}"

    @property
    def name(self) -> str:
        """The name in tuned tables: all fields that change the kernel."""
        flags = [flag for flag in ("persistent", "swap_ab", "prefetch") if getattr(self, flag)]
        if self.kernel == "pingpong":
            flags.insert(1, "pingpong")
        flags += [f"split_k{self.split_k}"] * (self.split_k > 1) + [self.layout] * (self.layout != "NN")
        return "pointers_" * (self.kernel == "pointers") + "/".join([f"{self}/{self.warps}/{self.stages}", *flags])

    @property
    def transposed(self) -> dict[str, bool]:
        """Constexprs A_T, B_T: is the factor the transpose of a row-major matrix?"""
        return {f"{factor}_T": way == "T" for factor, way in zip("AB", self.layout, strict=True)}

    def blocks(self, rows: int, depth: int, columns: int) -> dict[str, list[int]]:
        """Block shapes of a (rows x depth) and b (depth x columns), as stored."""
        a, b = self.transposed.values()
        return {"a": [depth, rows] if a else [rows, depth], "b": [columns, depth] if b else [depth, columns]}

    @property
    def options(self) -> dict[str, Any]:
        """Compile options. Fusion is pinned, since Triton's default differs between versions: a float32 dot is a chain of FMAs."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of shared memory for a program's partial sums, which the other programs of the cluster read (cluster_reduce)."""
        return self.BM * (self.BN + PAD) * 4 if self.split_k > 1 else 0

    def shared_bytes(self, element_size: int) -> int:
        """Bytes of the pipeline's stages."""
        return (self.BM + self.BN) * self.BK * element_size * self.stages

    def summation(self, product: Product) -> str:
        """As gemm.cost.Configuration has it. A cluster's partial sums are added up from their owner's on, which is the same in all rows
        where there are at least as many units of 8 columns as programs."""
        by_wgmma = self.kernel in ("tma", "pingpong", "split_k")
        if self.split_k > 1:
            return self.name if by_wgmma and not self.swap_ab and self.split_k <= self.BN // 8 else ""
        return "wgmma" if by_wgmma else self.name

    def tiles(self, m: int, n: int) -> int:
        return -(-m // self.BM) * -(-n // self.BN)

    def resident(self, size: int, by_element: bool) -> int:
        """Resident programs of an SM. For pointers it is limited by shared memory and by registers: a thread's sums, 64 more, the address
        of each element loaded by itself, and with `prefetch` the element."""
        if self.kernel != "pointers":
            return self.ctas_per_sm
        threads = 32 * self.warps
        elements = (self.BM + self.BN) * self.BK / threads * by_element
        registers = 64 + self.BM * self.BN // threads + (2 + self.prefetch) * elements
        return max(1, min(8, int(65536 / (threads * registers)), 227 * 1024 // (self.shared_bytes(size) + 1024)))

    def work(self, product: Product) -> Work:
        rows, columns, size = self.BM, self.BN, product.size
        by_element = self.kernel == "pointers" and not whole_vectors(product)
        unit, smem = self._unit(product, by_element)
        loads = (rows + columns) * size / (32 * (size if by_element else 16)) if self.kernel == "pointers" else 0.0
        stages = max(self.stages - 1, 1) if self.kernel in ("pointers", "tma") else self.stages  # Triton fetches so many ahead
        return tiled(
            product, rows, columns, self.BK, unit, smem, stages, split_k=self.split_k, ctas_per_sm=self.resident(size, by_element),
            loads=loads, warps=self.warps, persistent=self.persistent, pingpong=self.kernel == "pingpong",
        )  # fmt: skip

    def _unit(self, product: Product, by_element: bool) -> tuple[str, float]:
        """The multiplying instruction, and bytes through shared memory per 1 of K. From 64 rows on Triton uses wgmma."""
        rows, columns, size = self.BM, self.BN, product.size
        if product.kind == "float32":
            thread = {"ffma": (8, 16 if rows == 128 else 8)}.get(self.kernel, (4, 8 if columns >= 64 else 4))
            return "fma", fma_smem(rows, columns, *thread)
        tf32 = "_tf32" * (size == 4)
        if self.kernel == "pointers" and rows < 64:
            return "mma" + tf32, mma_smem(rows, columns, min(rows, 32 if rows > 16 else 16), min(columns, 32), size)
        if not tf32:
            return "wgmma", wgmma_smem(rows, columns, size, self.swap_ab)
        if self.kernel == "tf32":  # C' = B' A', B by registers
            return "wgmma_tf32", wgmma_smem(rows, columns, size, swap_ab=True, a_by_registers=True) + 2 * size * columns
        return "wgmma_tf32", wgmma_smem(rows, columns, size, a_by_registers=True) + size * (rows + self._transposing(by_element) * columns)

    def _transposing(self, by_element: bool) -> int:
        """Times that a TF32 B goes through shared memory before wgmma has it along K: a warp's stores meet in a bank 4 times, 8 by vectors.
        Without prefetch it is read back for that, and where it came by elements Triton has laid it with 32 in a bank, both ways. A
        transposed B lies along K, and is read and written back as it is rounded."""
        if self.layout[1] == "T":
            return 2
        stored = 4 if by_element else 8
        return stored if self.prefetch else stored + (64 if by_element else 1)


# -- through tensor descriptors (TMA) ----------------------------------------------------------------------------------------------------

# BM, BN, BK, warps, stages, programs an SM
HALF_CONFIGS = (
    Config(128, 256, 64, 8, 3, 1, "tma", persistent=True),
    Config(128, 128, 64, 4, 2, 3, "tma"),  # 3 CTAs per SM: one stores while others multiply. For a short K
    Config(128, 128, 64, 8, 4, 1, "tma"),
    Config(64, 128, 128, 4, 4, 1, "tma"),
    Config(64, 64, 128, 4, 6, 1, "tma"),
    Config(256, 128, 64, 8, 3, 1, "tma"),
    Config(128, 256, 64, 8, 4, 1, "tma"),
    Config(192, 128, 64, 4, 5, 1, "pingpong", persistent=True),
    Config(128, 128, 64, 4, 6, 1, "pingpong", persistent=True),
    Config(128, 128, 64, 8, 5, 1, "split_k", split_k=4),
    Config(128, 128, 64, 8, 5, 1, "split_k", split_k=6),
    Config(64, 32, 128, 4, 8, 1, "split_k", split_k=8),
    Config(64, 64, 128, 4, 6, 1, "split_k", split_k=4),
    Config(64, 32, 128, 4, 4, 2, "split_k", split_k=4),
    # For few rows of C, which become wgmma's columns.
    Config(16, 64, 128, 4, 10, 1, "split_k", swap_ab=True),
    Config(16, 128, 128, 8, 6, 1, "split_k", swap_ab=True),
    Config(16, 64, 128, 4, 10, 1, "split_k", swap_ab=True, split_k=2),
    Config(32, 128, 128, 8, 5, 1, "split_k", swap_ab=True),
    Config(32, 64, 128, 4, 4, 1, "split_k", swap_ab=True),
    Config(32, 64, 128, 4, 4, 2, "split_k", swap_ab=True, split_k=4),
    Config(32, 64, 128, 4, 9, 1, "split_k", swap_ab=True, split_k=8),
)
TF32_CONFIGS = (
    Config(256, 128, 32, 4, 4, 1, "tf32", persistent=True),
    Config(192, 128, 32, 4, 5, 1, "tf32", persistent=True),
    Config(128, 64, 32, 4, 4, 2, "tf32"),
)
FFMA_CONFIGS = (Config(128, 128, 32, 4, 3, 2, "ffma"), Config(64, 64, 32, 2, 3, 2, "ffma"))

# -- through pointers --------------------------------------------------------------------------------------------------------------------

# By kind: on every GPU. Without 16-byte accesses 16-bit tiles come through registers, element by element, and must be small to stay there.
POINTER_CONFIGS = {
    "16-bit": (
        Config(128, 256, 64, 8, 3), Config(128, 128, 64, 8, 3), Config(128, 64, 64, 4, 4), Config(64, 64, 64, 4, 4),
        Config(32, 32, 128, 4, 4), Config(16, 64, 128, 4, 4), Config(16, 32, 128, 4, 4),
    ),
    "unaligned": (Config(128, 128, 32, 8, 2), Config(64, 64, 32, 4, 2), Config(16, 64, 64, 4, 2), Config(16, 32, 64, 4, 2)),
    "tf32": (
        Config(128, 128, 32, 8, 3), Config(128, 64, 32, 8, 3), Config(64, 64, 32, 4, 3), Config(32, 32, 32, 4, 4), Config(16, 64, 64, 4, 4),
        Config(16, 32, 64, 4, 4),
    ),
    "ieee": (
        Config(128, 128, 16, 8, 3), Config(128, 64, 16, 8, 3), Config(64, 64, 16, 4, 3), Config(32, 32, 32, 4, 3), Config(16, 64, 32, 4, 3),
        Config(16, 32, 32, 4, 3),
    ),
}  # fmt: skip


def offered(product: Product, machine: Machine) -> dict[str, Config]:
    """Name -> configuration, for all that support the product. OPWISE_EXTRA=off excludes those of extra/."""
    found = (*through_descriptors(product, machine), *through_pointers(product, machine))
    fitting = (replace(c, layout=product.layout) for c in found if c.shared_bytes(product.size) <= machine.shared_bytes)
    return {c.name: c for c in fitting}


def through_descriptors(product: Product, machine: Machine) -> tuple[Config, ...]:
    """Kernels in Gluon and PTX run on sm_90 alone; split_k and swap_ab rely on Triton's symbol names and shared memory layout."""
    if machine.capability < HOPPER or product.vector_bytes < 16 or max(product[:3]) >= TMA_LIMIT:
        return ()
    own = machine.capability == HOPPER
    if product.size == 4:  # ffma and tf32 take row-major factors alone
        own = own and product.layout == "NN"
        return (FFMA_CONFIGS if product.kind == "float32" else TF32_CONFIGS) if own else ()
    return tuple(c for c in HALF_CONFIGS if c.kernel == "tma" or (own and clusters.KNOWN and _fits_grid(c, product)))


def _fits_grid(config: Config, product: Product) -> bool:
    if config.swap_ab:
        return product.m <= config.BM
    return config.kernel != "split_k" or -(-product.n // config.BN) <= GRID_Y


def through_pointers(product: Product, machine: Machine) -> tuple[Config, ...]:
    kind = kind_of(product)
    found = POINTER_CONFIGS[kind.removeprefix("odd ")]
    if machine.capability != HOPPER or not extra.enabled() or product.layout != "NN":
        return found
    from opwise.backends.triton_jit.matmul.extra.tiles import TILES

    splits = SPLITS if clusters.KNOWN else (1,)
    shared = (replace(c, split_k=s) for c in TILES.get(kind, found) for s in splits if s == 1 or s * c.BK <= product.k)
    return tuple(c for c in shared if c.exchanged_bytes <= FREE)


def whole_vectors(product: Product) -> bool:
    """Can rows of A and B be loaded by 16 bytes through pointers? Triton specializes on multiples of 16 elements, not bytes."""
    return product.alignment == 16 and all(length % 16 == 0 for length in product.pitches[:2])


def kind_of(product: Product) -> str:
    """A key of POINTER_CONFIGS and of extra's tiles."""
    if product.size == 2:
        return "16-bit" if whole_vectors(product) else "unaligned"
    return "ieee" if product.kind == "float32" else "tf32" if whole_vectors(product) else "odd tf32"
