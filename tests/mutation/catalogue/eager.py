"""Faults of torch_eager: the wrong operator, dimension or destination. Its kernels are torch's own and not ours to break."""

from mutation.faults import Fault

HERE = "backends/torch_eager"
# Of `copied`, up to the end by which it is told from `compiled`.
COPIED = """            def launch() -> None:
                out.copy_(function(*inputs))

            return launch

        return bind

    return build


def expression"""
EARLY = COPIED.replace("            def", "            early = function(*inputs)\n\n            def").replace(
    "function(*inputs))", "early)"
)

FAULTS = (
    Fault("the result is never written to out", "square", "host", f"{HERE}/eager.py", "function(*inputs, out=out)",
          "function(*inputs, out=out.clone())"),
    Fault("multiplied by two, not by itself", "square", "constant", f"{HERE}/square.py", "torch.mul(x, x, out=out)",
          "torch.mul(x, 2, out=out)", variant="mul"),
    Fault("the wrong exponent", "square", "constant", f"{HERE}/square.py", "torch.pow(x, 2, out=out)", "torch.pow(x, 3, out=out)",
          variant="pow"),
    Fault("the call has another exponent than the launch", "square", "constant", f"{HERE}/square.py", "return x**2", "return x**3",
          variant="pow"),
    Fault("written beside the output's storage", "mean", "host", f"{HERE}/eager.py",
          COPIED,
          COPIED.replace("out.copy_", "out.clone().copy_"), variant="method"),
    Fault("computed when it is bound, not when it is launched", "mean", "state", f"{HERE}/eager.py",
          COPIED,
          EARLY,
          variant="method"),
    Fault("the exact form of gelu", "gelu", "constant", f"{HERE}/gelu.py", 'torch._C._nn.gelu(x, approximate="tanh", out=out)',
          'torch._C._nn.gelu(x, approximate="none", out=out)'),
    Fault("the call has the exact form of gelu", "gelu", "constant", f"{HERE}/gelu.py", 'functional.gelu(x, approximate="tanh")\n\n',
          'functional.gelu(x)\n\n'),
    Fault("sqrt(2/pi) to four digits", "gelu", "constant", f"{HERE}/gelu.py", "torch.tanh(0.79788456 *", "torch.tanh(0.7979 *",
          variant="compile", dtypes=("float32",)),
    Fault("the last dimension alone", "mean", "index", f"{HERE}/mean.py", "dim=tuple(range(x.ndim))", "dim=-1"),
    Fault("divided by the rows, not by the elements", "mean", "constant", f"{HERE}/mean.py", "return x.mean()",
          "return x.sum() / x.shape[0]", variant="method"),
    Fault("nan is left out", "mean", "reduction", f"{HERE}/mean.py", "return x.mean()", "return x.nanmean()", variant="method"),
    Fault("columns for rows", "softmax", "index", f"{HERE}/softmax.py", "torch.softmax(x, dim=-1, out=out)",
          "torch.softmax(x, dim=0, out=out)"),
    Fault("the call has columns for rows", "softmax", "index", f"{HERE}/softmax.py", "return torch.softmax(x, dim=-1)",
          "return torch.softmax(x, dim=0)"),
    Fault("no maximum is subtracted", "softmax", "range", f"{HERE}/softmax.py", "numerator = torch.exp(shifted)",
          "numerator = torch.exp(x)", variant="compile", dtypes=("float32",)),
    Fault("one factor transposed", "matmul", "index", f"{HERE}/matmul.py", "into(torch.mm)",
          "into(lambda a, b, out: torch.mm(a, b.t().reshape(b.shape), out=out))"),
    Fault("float32 factors rounded to 16 bits", "matmul", "type", f"{HERE}/matmul.py", "into(torch.mm)",
          "into(lambda a, b, out: out.copy_(torch.mm(a.bfloat16(), b.bfloat16())))", dtypes=("float32",)),
    Fault("the call adds to a zero of 16 bits", "matmul", "type", f"{HERE}/matmul.py", "call=torch.matmul",
          "call=lambda a, b: torch.matmul(a, b).bfloat16().to(a.dtype)", dtypes=("float32", "float16")),
)  # fmt: skip
