"""Faults of the host code that torch_inline and cupy_raw have of their own: how a kernel is found, given its arguments and launched."""

from mutation.faults import Fault

STREAMS = "there are streams on a GPU alone"
INLINE = (
    Fault("launched on the default stream", "square", "host", "backends/torch_inline/launch.py", "run(stream_of(index))", "run(0)",
          gpu_only=STREAMS),
    Fault("the first tensors are launched on for ever", "square", "host", "backends/torch_inline/launch.py",
          "run = bound(*configuration, (*map(address, tensors),",
          "run = bound(*configuration, (*vars(launch_of).setdefault('first', [*map(address, tensors)]),"),
    Fault("a call writes into the output that it was built for", "square", "host", "backends/torch_inline/binding.cpp",
          "launch_.at(stream(), scratch, places, count + 1)", "launch_.at(stream(), scratch, places, count)"),
    Fault("a call launches on the default stream", "square", "host", "backends/torch_inline/binding.cpp", "launch_.at(stream(),",
          "launch_.at(0,", gpu_only=STREAMS),
    Fault("x, y and z of the grid are mixed up", "square", "host", "backends/torch_inline/binding.cpp",
          "grid_(grid[0], grid[1], grid[2])", "grid_(grid[1], grid[0], grid[2])"),
    Fault("every argument is the first one", "square", "host", "backends/torch_inline/binding.cpp", ": &arguments_[i]);",
          ": &arguments_[0]);"),
    Fault("no shared memory is asked for", "matmul", "host", "backends/torch_inline/binding.cpp",
          ": cudaLaunchKernel(kernel_, grid_, block_, addresses, shared_bytes_,",
          ": cudaLaunchKernel(kernel_, grid_, block_, addresses, 0,",
          dtypes=("float32",)),
    Fault("a matrix map of columns and rows", "matmul", "host", "backends/torch_inline/binding.cpp", "shape[] = {columns, rows}",
          "shape[] = {rows, columns}", dtypes=("float16",), gpu_only="tensor maps are Hopper's"),
)  # fmt: skip
CUPY = (
    Fault("launched on the default stream", "square", "host", "backends/cupy_raw/launch.py",
          "tensors) -> None:\n                run(grid, block, arguments, shared, streams[stream_of(index)],",
          "tensors) -> None:\n                run(grid, block, arguments, shared, streams[0],",
          gpu_only=STREAMS),
    Fault("a call launches on the default stream", "square", "host", "backends/cupy_raw/rooms.py",
          "stream = stream_of(index)", "stream = 0", gpu_only=STREAMS),
    Fault("a call passes scratch before the sizes", "mean", "host", "backends/cupy_raw/rooms.py",
          "room.values[-1] = scratch", "room.values[2:] = scratch, room.values[2]"),
    Fault("parameters lie a byte apart", "square", "host", "backends/cupy_raw/rooms.py", "start + 8 * count, 8)",
          "start + count)"),
    Fault("scratch is passed before the sizes", "mean", "host", "backends/cupy_raw/launch.py",
          "arguments = (*map(argument, map(address, tensors)), *sizes, *map(argument, more))",
          "arguments = (*map(argument, map(address, tensors)), *map(argument, more), *sizes)"),
    Fault("grid and block are exchanged", "square", "host", "backends/cupy_raw/launch.py",
          "grid, block, shared, together, streams = plan.grid, plan.block, plan.shared_bytes,",
          "block, grid, shared, together, streams = plan.grid, plan.block, plan.shared_bytes,"),
    Fault("no shared memory is asked for", "matmul", "host", "backends/cupy_raw/launch.py",
          "grid, block, shared, together, streams = plan.grid, plan.block, plan.shared_bytes,",
          "grid, block, shared, together, streams = plan.grid, plan.block, 0,", dtypes=("float32",)),
    Fault("a matrix map of columns and rows", "matmul", "host", "backends/cuda_src/common/tensor_maps.py", "(ctypes.c_uint64 * 2)(columns, rows)",
          "(ctypes.c_uint64 * 2)(rows, columns)", dtypes=("float16",), gpu_only="tensor maps are Hopper's"),
)  # fmt: skip
