"""TTIR, TTGIR and LLIR: each line stands beside its source, by way of names, call sites and scopes."""

from __future__ import annotations

import inspect as source_of

import pytest
from invoking import invoke, skip_if_missing

from opwise.inspecting.compilers import Compiled
from opwise.inspecting.intermediate import NoForm, listing

MLIR = """#loc = loc("/a/soft.py":19:0)
#loc1 = loc(unknown)
#loc2 = loc("/a/math.py":7:3)
module {
  tt.func public @k(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("x"(#loc))) attributes {noinline = false} {
    %0 = tt.load %x : !tt.ptr<f32> loc(#loc3)
    %1 = arith.addf %0, %0 : f32 loc(#loc4)
    ^bb0(%2: f32 loc(callsite(#loc1 at #loc3))):
    tt.return loc(#loc1)
  } loc(#loc)
} loc(#loc)
#loc3 = loc("value"(#loc))
#loc4 = loc(callsite(#loc2 at #loc3))
"""
LLVM = """; ModuleID = 'x'
define void @k(ptr %0) #0 !dbg !4 {
  %1 = load float, ptr %0, !dbg !7
  %2 = fadd float %1, %1, !dbg !8
  ret void
}
!3 = !DIFile(filename: "soft.py", directory: "/a")
!4 = distinct !DISubprogram(name: "k", scope: !3, file: !3, line: 19)
!5 = !DIFile(filename: "math.py", directory: "/b")
!6 = !DILexicalBlockFile(scope: !4, file: !5, discriminator: 0)
!7 = !DILocation(line: 21, column: 3, scope: !4)
!8 = !DILocation(line: 7, column: 3, scope: !6, inlinedAt: !7)
"""


def test_mlir_goes_by_names_and_the_innermost_call() -> None:
    found = listing(Compiled("k", forms={"ttir": MLIR}), "ttir")
    assert [(line.path, line.number) for line in found] == [
        ("", 0), ("", 0), ("/a/soft.py", 19), ("/a/math.py", 7), ("", 0), ("", 0), ("/a/soft.py", 19), ("/a/soft.py", 19)
    ]  # fmt: skip
    assert not [line.text for line in found if "loc(" in line.text]
    assert found[1].text == "  tt.func public @k(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}) attributes {noinline = false} {"


def test_llvm_goes_by_the_scope_s_file() -> None:
    found = listing(Compiled("k", forms={"llir": LLVM}), "llir")
    assert [(line.text.strip(), line.path, line.number) for line in found] == [
        ("define void @k(ptr %0) #0 {", "", 0), ("%1 = load float, ptr %0", "/a/soft.py", 21), ("%2 = fadd float %1, %1", "/b/math.py", 7),
        ("ret void", "", 0), ("}", "", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(("forms", "said"), [({}, "Triton's alone"), ({"ttgir": ""}, "has no ttir: it has ttgir")])
def test_what_a_kernel_has_not_is_said(forms: dict[str, str], said: str) -> None:
    with pytest.raises(NoForm, match=said):
        listing(Compiled("k", forms=forms), "ttir")


@pytest.mark.slow
@pytest.mark.parametrize(("form", "operation"), [("--ttir", "tt.load"), ("--ttgir", "#blocked"), ("--llir", "getelementptr float")])
def test_triton_s_own_forms_stand_beside_the_kernel(form: str, operation: str) -> None:
    from opwise.backends.triton_jit import square

    result = invoke("inspect", "triton_jit/square:plain", "--dtype", "float32", form)
    skip_if_missing(result.output)
    assert result.exit_code == 0, result.output
    assert operation in result.stdout
    lines, first = source_of.getsourcelines(square.plain_kernel.fn)
    store = next(i for i, line in enumerate(lines, start=first) if "tl.store" in line)
    assert f"square.py:{store}" in result.stdout


@pytest.mark.slow
def test_a_backend_without_the_form_does_not_hide_those_with_it() -> None:
    result = invoke("inspect", "cupy_raw/square", "triton_jit/square:plain", "--dtype", "float32", "--ttir")
    skip_if_missing(result.output)
    assert result.exit_code == 0, result.output
    assert "has no ttir: it is Triton's alone" in result.stdout
    assert "tt.store" in result.stdout
    alone = invoke("inspect", "cupy_raw/square", "--dtype", "float32", "--ttir")
    assert alone.exit_code == 1
    assert "has no ttir" in alone.stderr
