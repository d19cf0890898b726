"""Faults of the host code that torch_inline and cupy_raw have of their own: how a kernel is found, given its arguments and launched."""

from mutation.faults import Fault

STREAMS = "there are streams on a GPU alone"
INLINE = (
    Fault("launched on the default stream", "square", "host", "backends/torch_inline/launch.py", "run(stream_of(index))", "run(0)",
          gpu_only=STREAMS),
    Fault("the first tensors are launched on for ever", "square", "host", "backends/torch_inline/launch.py",
          "arguments_of, bound = recipe.arguments, module.Launch",
          "arguments_of, bound = (lambda *_, first=recipe.arguments(*tensors): first), module.Launch"),
    Fault("x, y and z of the grid are mixed up", "square", "host", "backends/torch_inline/binding.cpp",
          "grid_(grid[0], grid[1], grid[2])", "grid_(grid[1], grid[0], grid[2])"),
    Fault("every argument is the first one", "square", "host", "backends/torch_inline/binding.cpp", ": &arguments_[i]);",
          ": &arguments_[0]);"),
    Fault("no shared memory is asked for", "matmul", "host", "backends/torch_inline/binding.cpp", "addresses_.data(), shared_bytes_,",
          "addresses_.data(), 0,", dtypes=("float32",)),
    Fault("a matrix map of columns and rows", "matmul", "host", "backends/torch_inline/binding.cpp", "shape[] = {columns, rows}",
          "shape[] = {rows, columns}", dtypes=("float16",), gpu_only="tensor maps are Hopper's"),
)  # fmt: skip
CUPY = (
    Fault("launched on the default stream", "square", "host", "backends/cupy_raw/launch.py",
          "tensors) -> None:\n                run(grid, block, arguments, shared, streams[stream_of(index)])",
          "tensors) -> None:\n                run(grid, block, arguments, shared, streams[0])",
          gpu_only=STREAMS),
    Fault("scratch is passed first", "mean", "host", "backends/cupy_raw/launch.py",
          "argument(value) for value in (*arguments_of(*tensors), *more))",
          "argument(value) for value in (*more, *arguments_of(*tensors)))"),
    Fault("grid and block are exchanged", "square", "host", "backends/cupy_raw/launch.py",
          "grid, block, shared, arguments_of = plan.grid, plan.block, plan.shared_bytes,",
          "block, grid, shared, arguments_of = plan.grid, plan.block, plan.shared_bytes,"),
    Fault("no shared memory is asked for", "matmul", "host", "backends/cupy_raw/launch.py",
          "grid, block, shared, arguments_of = plan.grid, plan.block, plan.shared_bytes,",
          "grid, block, shared, arguments_of = plan.grid, plan.block, 0,", dtypes=("float32",)),
    Fault("a matrix map of columns and rows", "matmul", "host", "backends/cupy_raw/tensor_map.py", "(ctypes.c_uint64 * 2)(columns, rows)",
          "(ctypes.c_uint64 * 2)(rows, columns)", dtypes=("float16",), gpu_only="tensor maps are Hopper's"),
)  # fmt: skip
