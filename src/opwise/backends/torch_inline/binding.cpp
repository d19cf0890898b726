// Launches the kernels of this library. Python passes the address of a kernel's host-side stub, which identifies it to the CUDA runtime,
// and the values of its parameters, 8 bytes each. The first may be addresses of matrices, which tensor maps then replace. A call also
// allocates its output here: torch.empty_like in Python takes a third of a call's time.
#include <ATen/EmptyTensor.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int PORTABLE_CLUSTER = 8;  // blocks

using Size = std::array<unsigned, 3>;

void check(cudaError_t status, const std::string &kernel) {
    if (status == cudaSuccess) return;
    cudaGetLastError();  // clears the error, which the runtime would report again
    throw std::runtime_error("CUDA kernel " + kernel + ": " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status));
}

// Loads the kernel on the current device; the runtime would otherwise do it at the first launch, which deadlocks behind a blocked stream.
// Allows `shared_bytes` of dynamic shared memory, and clusters above the portable size.
void prepare(std::uintptr_t kernel, const std::string &name, int shared_bytes) {
    const void *stub = reinterpret_cast<const void *>(kernel);
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, stub), name);
    if (shared_bytes > attributes.maxDynamicSharedSizeBytes)
        check(cudaFuncSetAttribute(stub, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), name);
    if (attributes.requiredClusterWidth > PORTABLE_CLUSTER)
        check(cudaFuncSetAttribute(stub, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), name);
}

// The driver's function, looked up by the runtime: libcuda.so is not linked, so that the library loads without a driver.
PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
    const char *name = "cuTensorMapEncodeTiled";
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    check(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found), name);
#else
    check(cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found), name);
#endif
    if (found != cudaDriverEntryPointSuccess) throw std::runtime_error("the driver has no cuTensorMapEncodeTiled: install one of CUDA 12");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
}

// plan.py's Matrix: rows, columns, rows and columns of a box, element type (cuda.h's number), classes of rows.
using Matrix = std::array<std::uint32_t, 6>;
struct Matrices {  // converted from Python once per build, not per bind
    std::vector<Matrix> all;
};

// A kernel's parameter: one tensor map, or a ResidueMaps (residue_maps.cuh): a map for each class of rows, then the classes' shifts.
constexpr std::uint32_t MOST_CLASSES = 8;
struct alignas(64) Maps {
    unsigned char bytes[MOST_CLASSES * sizeof(CUtensorMap) + 128];
};

CUtensorMap tensor_map(cuuint64_t address, const Matrix &matrix, cuuint64_t rows, cuuint64_t columns, cuuint64_t pitch) {
    static const auto encode = tensor_map_encoder();
    const auto [all_rows, all_columns, box_rows, box_columns, element, classes] = matrix;
    const cuuint32_t size = element == CU_TENSOR_MAP_DATA_TYPE_UINT16 ? 2 : 4;
    const cuuint64_t shape[] = {columns, rows}, pitches[] = {pitch};
    const cuuint32_t box[] = {box_columns, box_rows}, every[] = {1, 1}, wide = size * box_columns;
    const CUtensorMapSwizzle swizzle = wide == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : wide == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                    : CU_TENSOR_MAP_SWIZZLE_NONE;
    CUtensorMap map;
    const CUresult status = encode(&map, static_cast<CUtensorMapDataType>(element), 2, reinterpret_cast<void *>(address), shape, pitches, box,
                                   every, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS)
        throw std::runtime_error("cuTensorMapEncodeTiled refuses a " + std::to_string(all_rows) + " x " + std::to_string(all_columns) +
                                 " matrix: error " + std::to_string(status));
    return map;
}

void put_maps(Maps &maps, std::int64_t address, const Matrix &matrix) {
    const auto [rows, columns, box_rows, box_columns, element, classes] = matrix;
    const cuuint64_t size = element == CU_TENSOR_MAP_DATA_TYPE_UINT16 ? 2 : 4, row_bytes = size * columns, first = address;
    const auto put = [&](std::uint32_t i, const CUtensorMap &map) { std::memcpy(maps.bytes + i * sizeof map, &map, sizeof map); };
    if (!classes) return put(0, tensor_map(first, matrix, rows, columns, row_bytes));
    if (classes > MOST_CLASSES) throw std::invalid_argument(std::to_string(MOST_CLASSES) + " classes of rows at most");
    for (std::uint32_t c = 0; c < classes; c++) {
        const cuuint64_t begin = first + c * row_bytes, base = begin & ~cuuint64_t{15};
        std::int32_t shift = static_cast<std::int32_t>((begin - base) / size);
        if (c < rows) {
            put(c, tensor_map(base, matrix, (rows - c + classes - 1) / classes, columns + shift, classes * row_bytes));
        } else {  // no row is of this class: a map must have an element, and shift 1 hides it, so that zeros are read
            shift = 1;
            put(c, tensor_map(first & ~cuuint64_t{15}, matrix, 1, 1, classes * row_bytes));
        }
        std::memcpy(maps.bytes + classes * sizeof(CUtensorMap) + c * sizeof shift, &shift, sizeof shift);
    }
}

// A kernel with its grid and arguments. keep: an object that must live as long.
class Launch {
  public:
    Launch(std::uintptr_t kernel, std::string name, Size grid, Size block, std::size_t shared_bytes, bool cooperative,
           const Matrices &matrices, std::vector<std::int64_t> arguments, pybind11::object keep)
        : kernel_(reinterpret_cast<const void *>(kernel)), name_(std::move(name)), grid_(grid[0], grid[1], grid[2]),
          block_(block[0], block[1], block[2]), shared_bytes_(shared_bytes), cooperative_(cooperative),
          matrices_(matrices.all), arguments_(std::move(arguments)), keep_(std::move(keep)) {
        if (arguments_.size() > MOST_ARGUMENTS) throw std::invalid_argument(name_ + ": " + std::to_string(MOST_ARGUMENTS) + " arguments at most");
        for (const Matrix &matrix : matrices_) {
            maps_.emplace_back();
            put_maps(maps_.back(), arguments_.at(maps_.size() - 1), matrix);
        }
        for (std::size_t i = 0; i < arguments_.size(); i++)
            addresses_.push_back(i < maps_.size() ? static_cast<void *>(&maps_[i]) : &arguments_[i]);
    }
    Launch(const Launch &) = delete;
    Launch &operator=(const Launch &) = delete;

    void on(std::uintptr_t stream) { launch(stream, addresses_.data()); }

    // Launches on other tensors: their addresses replace the first arguments, and `scratch`, unless it is 0, the last one.
    void at(std::uintptr_t stream, std::int64_t scratch, std::int64_t *places, std::size_t tensors) const {
        Maps maps[TENSORS];
        void *addresses[MOST_ARGUMENTS];
        std::copy(addresses_.begin(), addresses_.end(), addresses);
        for (std::size_t i = 0; i < tensors; i++) {
            addresses[i] = &places[i];
            if (i >= maps_.size()) continue;
            put_maps(maps[i], places[i], matrices_[i]);
            addresses[i] = &maps[i];
        }
        if (scratch) addresses[addresses_.size() - 1] = &scratch;
        const pybind11::gil_scoped_release others_may_run;
        launch(stream, addresses);
    }

    void check_count(std::size_t tensors) const {
        if (tensors > TENSORS) throw std::invalid_argument(name_ + ": " + std::to_string(TENSORS) + " tensors at most");
    }

    static constexpr std::size_t TENSORS = 4;

  private:
    static constexpr std::size_t MOST_ARGUMENTS = 16;

    void launch(std::uintptr_t stream, void **addresses) const {
        const auto on = reinterpret_cast<cudaStream_t>(stream);
        check(cooperative_ ? cudaLaunchCooperativeKernel(kernel_, grid_, block_, addresses, shared_bytes_, on)
                           : cudaLaunchKernel(kernel_, grid_, block_, addresses, shared_bytes_, on), name_);
    }

    const void *kernel_;
    std::string name_;
    dim3 grid_, block_;
    std::size_t shared_bytes_;
    bool cooperative_;
    std::vector<Matrix> matrices_;
    std::vector<std::int64_t> arguments_;
    std::vector<Maps> maps_;
    std::vector<void *> addresses_;
    pybind11::object keep_;
};

// A function of the inputs that allocates the output, launches on torch's current stream and returns the output. The inputs must have the
// shapes, dtypes and alignments of the launch; only their addresses are read.
class Call {
  public:
    // like: a sample of the output. stream_of(index): the current stream of a device, as an integer.
    Call(const Launch &launch, pybind11::object keep, const at::Tensor &like, pybind11::object stream_of, int index, bool scratch)
        : launch_(launch), keep_(std::move(keep)), shape_(like.sizes().vec()), type_(like.scalar_type()), keys_(like.device().is_cpu() ?
          c10::DispatchKey::CPU : c10::DispatchKey::CUDA), allocator_(like.storage().allocator()), stream_of_(std::move(stream_of)),
          index_(index), scratch_(scratch) {
        if (!allocator_) throw std::invalid_argument("the tensor given as a sample of the output has memory that torch did not allocate");
    }

    // given: the address of scratch, if the kernel has scratch, then the inputs.
    PyObject *operator()(PyObject *const *given, std::size_t count) const {
        std::int64_t scratch = 0;
        if (scratch_ && count) {
            scratch = PyLong_AsLongLong(*given++), count--;
            if (scratch == -1 && PyErr_Occurred()) throw python_error();
        }
        launch_.check_count(count + 1);
        std::int64_t places[Launch::TENSORS];
        for (std::size_t i = 0; i < count; i++) {
            if (!THPVariable_Check(given[i])) {
                PyErr_Format(PyExc_TypeError, "a tensor is taken, given %s", Py_TYPE(given[i])->tp_name);
                throw python_error();
            }
            places[i] = reinterpret_cast<std::int64_t>(THPVariable_Unpack(given[i]).const_data_ptr());
        }
        at::TensorBase out = at::detail::empty_generic(shape_, allocator_, keys_, type_, std::nullopt);
        places[count] = reinterpret_cast<std::int64_t>(out.mutable_data_ptr());
        launch_.at(stream(), scratch, places, count + 1);
        return THPVariable_Wrap(std::move(out));
    }

  private:
    std::uintptr_t stream() const {
        PyObject *const index[] = {index_.ptr()};
        const auto found = pybind11::reinterpret_steal<pybind11::object>(PyObject_Vectorcall(stream_of_.ptr(), index, 1, nullptr));
        const std::uintptr_t stream = found ? PyLong_AsSize_t(found.ptr()) : 0;
        if (PyErr_Occurred()) throw python_error();
        return stream;
    }

    const Launch &launch_;
    pybind11::object keep_;
    std::vector<std::int64_t> shape_;
    at::ScalarType type_;
    c10::DispatchKeySet keys_;
    c10::Allocator *allocator_;
    pybind11::object stream_of_;
    pybind11::int_ index_;
    bool scratch_;
};

PyObject *called(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    return (*static_cast<const Call *>(PyCapsule_GetPointer(self, nullptr)))(given, static_cast<std::size_t>(count));
    END_HANDLE_TH_ERRORS
}

// A plain C function: pybind11's overload resolution takes 0.3 us more.
pybind11::object call_of(pybind11::object launch, pybind11::handle like, pybind11::object stream_of, int index, bool scratch) {
    static PyMethodDef method = {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&called)), METH_FASTCALL, nullptr};
    if (!THPVariable_Check(like.ptr())) throw pybind11::type_error("the sample of the output must be a tensor");
    const auto &launched = launch.cast<const Launch &>();
    const pybind11::capsule call(new Call(launched, std::move(launch), THPVariable_Unpack(like.ptr()), std::move(stream_of), index, scratch),
                                 [](void *made) { delete static_cast<Call *>(made); });
    return pybind11::reinterpret_steal<pybind11::object>(PyCFunction_New(&method, call.ptr()));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    namespace py = pybind11;
    m.def("prepare", &prepare, py::arg("kernel"), py::arg("name"), py::arg("shared_bytes"));
    m.def("call_of", &call_of, py::arg("launch"), py::arg("like"), py::arg("stream_of"), py::arg("index"), py::arg("scratch"));
    py::class_<Matrices>(m, "Matrices", py::module_local()).def(py::init<std::vector<Matrix>>());
    // module_local: a process may load this library for two architectures. Without the GIL: a launch waits if the queue is full.
    py::class_<Launch>(m, "Launch", py::module_local())
        .def(py::init<std::uintptr_t, std::string, Size, Size, std::size_t, bool, const Matrices &, std::vector<std::int64_t>, py::object>())
        .def("__call__", &Launch::on, py::arg("stream"), py::call_guard<py::gil_scoped_release>());
}
