"""An epilogue that is no linear combination: a tensor, a row vector and a second output of another type, five scalars.

D = alpha * A x B + beta * C + gamma * extra + delta * bias, and second = epsilon * D.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import KernelSchedule, TileDescription, cutlass
from pycutlass.epilogue import Activation, Epilogue, Family, Port, Scalar
from pycutlass.types import Element, element

__all__ = ["SCALARS", "ExtraEpilogue", "exact"]

SCALARS = {"alpha": 0.5, "beta": 2.0, "gamma": -1.0, "delta": 0.25, "epsilon": 4.0}


@dataclass(frozen=True)
class ExtraEpilogue(Epilogue):
    """The epilogue, in f32, with a D of type `element_output` and a second output of type `element_second`."""

    element_output: Any
    element_second: Any
    epilogue_vector_length: int = 1

    @property
    def output(self) -> Element:
        return element(self.element_output)

    @property
    def accumulator(self) -> Element:
        return element(cutlass.float32)

    @property
    def compute(self) -> Element:
        return element(cutlass.float32)

    @property
    def activation(self) -> Activation | None:
        return None

    @property
    def inputs(self) -> tuple[Port, ...]:
        length = self.epilogue_vector_length
        return Port("extra", self.output.tag, "matrix", length), Port("bias", self.output.tag, "row", length)

    @property
    def outputs(self) -> tuple[Port, ...]:
        second = element(self.element_second)
        length = 1 if self.epilogue_vector_length == 1 else 128 // second.bits
        return (Port("second", second.tag, "matrix", length),)

    @property
    def scalar_table(self) -> tuple[Scalar, ...]:
        return Scalar("alpha", 1.0, on_device=True), *(Scalar(name, 0.0) for name in [*SCALARS][1:])

    def shared_bytes(self, family: Family, tile: TileDescription) -> int:
        """Return room for 4 subtiles of what is read, 2 of what is written, a line of the bias, and swizzles."""
        rows = 64 if tile.kernel_schedule is KernelSchedule.Pingpong else 128
        bits = 4 * self.output.bits + 2 * element(self.element_second).bits
        bias = tile.threadblock_shape[1] * self.output.bits
        return (rows * 32 * bits + bias) // 8 + 3 * 1024 if family is Family.SM90_GEMM else 0

    def cpp(self, family: Family, source: Element | None = None) -> str:
        return "ExtraEpilogue"

    def definitions(self, family: Family) -> str:
        return (
            _DEFINITIONS[family].replace("ELEMENT", self.output.cpp).replace("SECOND", element(self.element_second).cpp)
        )

    def evaluate(
        self,
        accumulator: NDArray[Any],
        source: NDArray[Any] | None,
        scalars: Mapping[str, float],
        inputs: Mapping[str, NDArray[Any]],
        compute: np.dtype[Any] | None = None,
    ) -> dict[str, NDArray[Any]]:
        dtype = compute or np.dtype(np.float32)
        alpha, beta, gamma, delta, epsilon = (np.asarray(scalars[name], dtype) for name in SCALARS)
        extra, bias = (inputs[name].astype(dtype) for name in ("extra", "bias"))
        result = alpha * accumulator.astype(dtype) + gamma * extra + delta * bias
        if source is not None:
            result = result + beta * source.astype(dtype)
        return {"D": result, "second": epsilon * result}


def exact(given: Mapping[str, NDArray[Any]], **changed: float) -> dict[str, NDArray[Any]]:
    """Return D and the second output in f64, from A, B, C, extra and bias."""
    alpha, beta, gamma, delta, epsilon = (SCALARS | changed).values()
    A, B, C, extra, bias = (given[name].astype(np.float64) for name in ("A", "B", "C", "extra", "bias"))
    D = alpha * (A @ B) + beta * C + gamma * extra + delta * bias
    return {"D": D, "second": epsilon * D}


_ARGUMENTS = """
#if !PYCUTLASS_DEVICE_SIDE
struct ExtraArguments {
  float alpha, beta, gamma, delta, epsilon;
  float const* alpha_ptr;
  ELEMENT const *extra, *bias;
  SECOND* second;
  int64_t extra_ld, extra_batch, bias_batch, second_ld, second_batch;

  static ExtraArguments const& of(pycutlass_call const& call) {
    return *static_cast<ExtraArguments const*>(call.epilogue);
  }
  static void describe(pycutlass::EpilogueFields<ExtraArguments>& fields) {
    fields.value("alpha", &ExtraArguments::alpha);
    fields.value("beta", &ExtraArguments::beta);
    fields.value("gamma", &ExtraArguments::gamma);
    fields.value("delta", &ExtraArguments::delta);
    fields.value("epsilon", &ExtraArguments::epsilon);
    fields.address("alpha", &ExtraArguments::alpha_ptr);
    fields.address("extra", &ExtraArguments::extra);
    fields.stride("extra", &ExtraArguments::extra_ld, 0);
    fields.stride("extra", &ExtraArguments::extra_batch, 1);
    fields.address("bias", &ExtraArguments::bias);
    fields.stride("bias", &ExtraArguments::bias_batch, 1);
    fields.address("second", &ExtraArguments::second);
    fields.stride("second", &ExtraArguments::second_ld, 0);
    fields.stride("second", &ExtraArguments::second_batch, 1);
  }
};
#endif
"""

_SM90 = """
struct ExtraEpilogue {
  using ElementCompute = float;

  template <typename TileShape, typename C, typename D, typename Schedule>
  struct Tree {
    template <template <class> class Op>
    using Compute =
        cutlass::epilogue::fusion::Sm90Compute<Op, float, float, cutlass::FloatRoundStyle::round_to_nearest>;
    template <typename Node, typename... Children>
    using Visit = cutlass::epilogue::fusion::Sm90EVT<Node, Children...>;
    using Scalar = cutlass::epilogue::fusion::Sm90ScalarBroadcast<float>;
    using Accumulator = cutlass::epilogue::fusion::Sm90AccFetch;
    using Add = Compute<cutlass::homogeneous_multiply_add>;
    using Multiply = Compute<cutlass::multiplies>;

    using Epilogue = cutlass::epilogue::collective::detail::EpilogueDescriptor<
        TileShape, cutlass::epilogue::collective::EpilogueTileAuto, typename C::Element, typename D::Element, Schedule>;
    using RowMajor = cutlass::layout::RowMajor;
    using Load = cutlass::epilogue::collective::detail::AuxLoadDescriptor<Epilogue, RowMajor, ELEMENT>;
    using Store = cutlass::epilogue::collective::detail::AuxStoreDescriptor<Epilogue, RowMajor, SECOND>;
    using Extra = cutlass::epilogue::fusion::Sm90AuxLoad<Load::Stages, typename Epilogue::EpilogueTile, ELEMENT,
                                                         typename Load::Stride, typename Load::SmemLayoutAtom,
                                                         typename Load::CopyOpS2R>;
    using Second = cutlass::epilogue::fusion::Sm90AuxStore<
        Store::Stages, typename Epilogue::EpilogueTile, SECOND, cutlass::FloatRoundStyle::round_to_nearest,
        typename Store::Stride, typename Store::SmemLayoutAtom, typename Store::CopyOpR2S>;
    using Bias = cutlass::epilogue::fusion::Sm90RowBroadcast<0, TileShape, ELEMENT, float,
                                                             cute::Stride<cute::_0, cute::_1, int64_t>>;

    using Product = Visit<Multiply, Scalar, Accumulator>;
    using WithSource = Visit<Add, Scalar, cutlass::epilogue::fusion::Sm90SrcFetch<typename C::Element>, Product>;
    using Sum = Visit<Add, Scalar, Bias, Visit<Add, Scalar, Extra, WithSource>>;
    using Output = Visit<Compute<cutlass::epilogue::thread::Identity>, Accumulator>;
    using Type = cutlass::epilogue::fusion::Sm90SplitTreeVisitor<
        Sum, Output, Visit<Second, Visit<Multiply, Scalar, Accumulator>>>;
  };

#if !PYCUTLASS_DEVICE_SIDE
  template <typename TreeArguments>
  struct Launch {
    using Arguments = ExtraArguments;
    static void describe(pycutlass::EpilogueFields<Arguments>& fields) { Arguments::describe(fields); }
    static bool reads_ahead(pycutlass_call const& call) { return Arguments::of(call).alpha_ptr; }

    static void fill(TreeArguments& tree, pycutlass_call const& call) {
      auto const& given = Arguments::of(call);
      auto& biased = tree.op_0;
      biased.op_0.scalars[0] = given.delta;
      biased.op_1.ptr_row = given.bias;
      cute::get<2>(biased.op_1.dRow) = given.bias_batch;
      auto& added = biased.op_2;
      added.op_0.scalars[0] = given.gamma;
      added.op_1.ptr_aux = given.extra;
      cute::get<0>(added.op_1.dAux) = given.extra_ld;
      cute::get<2>(added.op_1.dAux) = given.extra_batch;
      auto& sourced = added.op_2;
      sourced.op_0.scalars[0] = given.beta;
      sourced.op_2.op_0.scalars[0] = given.alpha;
      sourced.op_2.op_0.scalar_ptrs[0] = given.alpha_ptr;
      auto& stored = tree.op_1;
      stored.op_0.op_0.scalars[0] = given.epsilon;
      stored.op_1.ptr_aux = given.second;
      cute::get<0>(stored.op_1.dAux) = given.second_ld;
      cute::get<2>(stored.op_1.dAux) = given.second_batch;
    }
  };
#endif
};
"""

_AMPERE = """
struct ExtraEpilogue {
  using ElementCompute = float;

  template <typename Threads, typename C>
  struct Tree {
    template <template <class> class Op>
    using Compute = cutlass::epilogue::threadblock::VisitorCompute<Op, float, float,
                                                                   cutlass::FloatRoundStyle::round_to_nearest>;
    template <typename Node, typename... Children>
    using Visit = cutlass::epilogue::threadblock::Sm80EVT<Node, Children...>;
    template <typename Element>
    using Store = cutlass::epilogue::threadblock::VisitorAuxStore<
        Threads, Element, cutlass::FloatRoundStyle::round_to_nearest, pycutlass::MatrixStride>;
    using Scalar = cutlass::epilogue::threadblock::VisitorScalarBroadcast<float>;
    using Accumulator = cutlass::epilogue::threadblock::VisitorAccFetch;
    using Add = Compute<cutlass::homogeneous_multiply_add>;
    using Multiply = Compute<cutlass::multiplies>;
    using Extra = cutlass::epilogue::threadblock::VisitorAuxLoad<Threads, ELEMENT, pycutlass::MatrixStride>;
    using Bias = cutlass::epilogue::threadblock::VisitorRowBroadcast<Threads, ELEMENT,
                                                                     cute::Stride<cute::_0, cute::_1, int64_t>>;

    using Product = Visit<Multiply, Scalar, Accumulator>;
    using WithSource = Visit<Add, Scalar, pycutlass::LoadIfGiven<Threads, typename C::Element>, Product>;
    using Sum = Visit<Add, Scalar, Bias, Visit<Add, Scalar, Extra, WithSource>>;
    using Stored = Visit<Store<typename C::Element>, Sum>;
    using Type = Visit<Store<SECOND>, Visit<Multiply, Scalar, Stored>>;
  };

#if !PYCUTLASS_DEVICE_SIDE
  template <typename TreeArguments>
  struct Launch {
    using Arguments = ExtraArguments;
    static void describe(pycutlass::EpilogueFields<Arguments>& fields) { Arguments::describe(fields); }

    static void fill(TreeArguments& tree, pycutlass_call const& call) {
      auto const& given = Arguments::of(call);
      tree.op_1.ptr_aux = given.second;
      tree.op_1.dAux = {given.second_ld, {}, given.second_batch};
      tree.op_0.op_0.scalars[0] = given.epsilon;
      auto& stored = tree.op_0.op_1;
      pycutlass_operand const &source = call.operands[PYCUTLASS_C], &target = call.operands[PYCUTLASS_D];
      stored.op_1.ptr_aux = static_cast<ELEMENT*>(target.data);
      stored.op_1.dAux = {target.stride[0], {}, target.stride[1]};
      auto& biased = stored.op_0;
      biased.op_0.scalars[0] = given.delta;
      biased.op_1.ptr_row = given.bias;
      cute::get<2>(biased.op_1.dRow) = given.bias_batch;
      auto& added = biased.op_2;
      added.op_0.scalars[0] = given.gamma;
      added.op_1.ptr_aux = const_cast<ELEMENT*>(given.extra);
      added.op_1.dAux = {given.extra_ld, {}, given.extra_batch};
      auto& sourced = added.op_2;
      sourced.op_0.scalars[0] = given.beta;
      sourced.op_1.ptr_aux = static_cast<ELEMENT*>(source.data);
      sourced.op_1.dAux = {source.stride[0], {}, source.stride[1]};
      sourced.op_2.op_0.scalars[0] = given.alpha;
      sourced.op_2.op_0.scalar_ptrs[0] = given.alpha_ptr;
    }
  };
#endif
};
"""

_DEFINITIONS: dict[Family, str] = dict.fromkeys(Family, "") | {
    Family.SM90_GEMM: _ARGUMENTS + _SM90,
    Family.AMPERE_GEMM: _ARGUMENTS + _AMPERE,
    Family.AMPERE_CONV: _ARGUMENTS + _AMPERE,
}
