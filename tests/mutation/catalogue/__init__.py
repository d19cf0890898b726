"""Every fault, by backend. A backend that is added to opwise adds a file here; test_mutation.py asks for 15 faults of each."""

from collections.abc import Mapping

from mutation.catalogue import cuda, eager, hosts, numba, triton
from mutation.faults import Fault, Mutant

FAULTS: Mapping[str, tuple[Fault, ...]] = {
    "torch_eager": eager.FAULTS,
    "torch_inline": (*cuda.FAULTS, *hosts.INLINE),
    "cupy_raw": (*cuda.FAULTS, *hosts.CUPY),
    "numba_cuda": numba.FAULTS,
    "triton_jit": triton.FAULTS,
}
BACKENDS = tuple(FAULTS)
MUTANTS = tuple(Mutant(backend, fault) for backend, faults in FAULTS.items() for fault in faults)
