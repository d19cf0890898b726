// The host code of the variant `plain`, appended to the kernels of cuda_src/plain: written as in torch's manual on C++ and CUDA extensions.
#include <c10/cuda/CUDAStream.h>

#define FOR_DTYPE(x, ...) AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "plain", [&] { __VA_ARGS__; })
using torch::Tensor;

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream(); }

void launch_square(Tensor x, Tensor out) {
    const int64_t n = x.numel();
    FOR_DTYPE(x, square<<<(n + 255) / 256, 256, 0, stream()>>>(x.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>(), n));
}
Tensor call_square(Tensor x) {
    Tensor out = torch::empty_like(x);
    launch_square(x, out);
    return out;
}

void launch_gelu(Tensor x, Tensor out) {
    const int64_t n = x.numel();
    FOR_DTYPE(x, gelu<<<(n + 255) / 256, 256, 0, stream()>>>(x.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>(), n));
}
Tensor call_gelu(Tensor x) {
    Tensor out = torch::empty_like(x);
    launch_gelu(x, out);
    return out;
}

// sums: float32, one per block of the first launch.
void launch_mean(Tensor x, Tensor out, Tensor sums) {
    const int64_t n = x.numel(), blocks = sums.numel();
    FOR_DTYPE(x, mean<<<blocks, 256, 0, stream()>>>(x.const_data_ptr<scalar_t>(), sums.mutable_data_ptr<float>(), n, 1));
    FOR_DTYPE(x, mean<<<1, 256, 0, stream()>>>(sums.const_data_ptr<float>(), out.mutable_data_ptr<scalar_t>(), blocks, n));
}
Tensor call_mean(Tensor x) {
    Tensor out = torch::empty({}, x.options());
    launch_mean(x, out, torch::empty({std::min<int64_t>((x.numel() + 255) / 256, 4096)}, x.options().dtype(torch::kFloat32)));
    return out;
}

void launch_softmax(Tensor x, Tensor out) {
    FOR_DTYPE(x, softmax<<<x.size(0), 256, 0, stream()>>>(x.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>(), x.size(1)));
}
Tensor call_softmax(Tensor x) {
    Tensor out = torch::empty_like(x);
    launch_softmax(x, out);
    return out;
}

void launch_matmul(Tensor a, Tensor b, Tensor out) {
    const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
    const dim3 blocks((n + 15) / 16, (m + 15) / 16), threads(16, 16);
    FOR_DTYPE(a, matmul<<<blocks, threads, 0, stream()>>>(a.const_data_ptr<scalar_t>(), b.const_data_ptr<scalar_t>(),
                                                          out.mutable_data_ptr<scalar_t>(), m, k, n));
}
Tensor call_matmul(Tensor a, Tensor b) {
    Tensor out = torch::empty({a.size(0), b.size(1)}, a.options());
    launch_matmul(a, b, out);
    return out;
}
