"""Kernels with more than 4096 bytes of parameters: a GEMM behind ballast that it looks at before it computes."""

from __future__ import annotations

from typing import Any

from pycutlass.operation import GemmOperationUniversal

__all__ = ["BALLAST", "WideParameters"]

BALLAST = 6000  # bytes

_TEXT = """
struct WithBallast : Operation {{
  struct Params {{
    unsigned ballast[{words}];
    Operation::Params inner;
  }};

#if PYCUTLASS_DEVICE_SIDE
  CUTLASS_DEVICE static void run(Params const& params, char* shared) {{
    bool whole = true;
    for (unsigned i = threadIdx.x; i < {words}; i += blockDim.x) whole = whole && params.ballast[i] == 3 * i + 1;
    if (__syncthreads_and(whole)) Operation::run(params.inner, shared);
  }}
#else
  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {{
    auto* params = static_cast<Params*>(storage);
    for (unsigned i = 0; i < {words}; ++i) params->ballast[i] = 3 * i + 1;
    return Operation::plan(call, &params->inner, result);
  }}
#endif
}};
#define Operation WithBallast
"""


class WideParameters(GemmOperationUniversal):
    """A GEMM that writes nothing where any of the bytes before its own parameters did not arrive."""

    def body(self) -> str:
        """Return the text of the GEMM, and of the kernel around it."""
        return super().body() + _TEXT.format(words=BALLAST // 4)

    def parts(self, operations: Any) -> list[Any]:
        """Return this operation alone."""
        return [self]
