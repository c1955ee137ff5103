// Extents and offsets: GemmCoord, MatrixCoord, Tensor4DCoord, Tensor3DCoord, dim3, and gemm's enumeration.
#include "coords.h"

#include <cuda_runtime.h>
#include <pybind11/typing.h>

#include "cutlass/gemm/gemm_enumerated_types.h"

namespace {

using cutlass::MatrixCoord;
using cutlass::Tensor4DCoord;
using cutlass::gemm::GemmCoord;

py::tuple dim3_tuple(dim3 const& d) { return py::make_tuple(d.x, d.y, d.z); }

// Names of the class and of its components, for messages and repr.
template <std::size_t Rank>
struct Names {
  char const* cls;
  std::array<char const*, Rank> fields;

  std::string repr(py::tuple const& values) const {
    std::string text = std::string(cls) + "(";
    for (std::size_t i = 0; i < Rank; ++i) {
      text += (i ? ", " : "") + std::string(fields[i]) + "=" + std::string(py::str(values[i]));
    }
    return text + ")";
  }
};

// What every immutable tuple of integers can do. `tuple_of` turns an object into a Python tuple.
template <typename C, std::size_t Rank, typename TupleOf>
void bind_as_tuple(py::class_<C>& cls, Names<Rank> names, TupleOf tuple_of) {
  cls.def(
         "__eq__", [tuple_of](C const& a, C const& b) { return tuple_of(a).equal(tuple_of(b)); }, py::is_operator())
      .def("__hash__", [tuple_of](C const& c) { return py::hash(tuple_of(c)); })
      .def("__repr__", [tuple_of, names](C const& c) { return names.repr(tuple_of(c)); })
      .def("__reduce__", [tuple_of](C const& c) { return py::make_tuple(py::type::of<C>(), tuple_of(c)); })
      .def("__iter__", [tuple_of](C const& c) -> py::typing::Iterator<py::int_> { return py::iter(tuple_of(c)); })
      .def("__len__", [](C const&) { return Rank; })
      .def("__getitem__", [tuple_of, names](C const& c, py::ssize_t i) {
        constexpr auto rank = static_cast<py::ssize_t>(Rank);
        if (i < -rank || i >= rank) {
          throw py::index_error(std::string(names.cls) + " has " + std::to_string(rank) + " components; got index " +
                                std::to_string(i));
        }
        return py::int_(tuple_of(c)[static_cast<std::size_t>(i < 0 ? i + rank : i)]);
      });
}

template <typename C, std::size_t Rank>
void bind_as_coord(py::class_<C>& cls, Names<Rank> names) {
  static_assert(Rank == C::kRank);
  bind_as_tuple(cls, names, [](C const& c) { return coord_tuple(c); });
  cls.def(
      "at",
      [names](C const& c, AnyInt const& dim) {
        return c[checked<int>(dim, names.cls, "at(dim)", 0, static_cast<int>(Rank) - 1)];
      },
      py::arg("dim"), "The component with this index.");
}

// The product in Python's unbounded integers: four 32-bit extents may need 124 bits.
py::int_ product(py::tuple const& values) {
  py::int_ result(1);
  for (auto value : values) result = py::int_(result * value);
  return result;
}

void bind_gemm_coord(py::module_& m) {
  Names<3> names{"GemmCoord", {"m", "n", "k"}};
  auto cls = public_class<GemmCoord>(m, kGemm, names.cls, "Extent of a matrix product: D[m, n] = A[m, k] B[k, n].");
  cls.def(py::init([names](AnyInt const& m, AnyInt const& n, AnyInt const& k) {
            return GemmCoord(checked<int>(m, names.cls, names.fields[0]), checked<int>(n, names.cls, names.fields[1]),
                             checked<int>(k, names.cls, names.fields[2]));
          }),
          py::arg("m"), py::arg("n"), py::arg("k"))
      .def(
          "m", [](GemmCoord const& c) { return c.m(); }, "Rows of D and of A.")
      .def(
          "n", [](GemmCoord const& c) { return c.n(); }, "Columns of D and of B.")
      .def(
          "k", [](GemmCoord const& c) { return c.k(); }, "Columns of A and rows of B.")
      .def(
          "mk", [](GemmCoord const& c) { return MatrixCoord(c.m(), c.k()); }, "Extent of A.")
      .def(
          "kn", [](GemmCoord const& c) { return MatrixCoord(c.k(), c.n()); }, "Extent of B.")
      .def("mn", [](GemmCoord const& c) { return MatrixCoord(c.m(), c.n()); }, "Extent of D.");
  bind_as_coord(cls, names);
}

void bind_matrix_coord(py::module_& m) {
  Names<2> names{"MatrixCoord", {"row", "column"}};
  auto cls =
      public_class<MatrixCoord>(m, kCutlass, names.cls, "Extent of a matrix, or two values for height and width.");
  cls.def(py::init([names](AnyInt const& row, AnyInt const& column) {
            return MatrixCoord(checked<int>(row, names.cls, names.fields[0]),
                               checked<int>(column, names.cls, names.fields[1]));
          }),
          py::arg("row"), py::arg("column"))
      .def(
          "row", [](MatrixCoord const& c) { return c.row(); }, "Number of rows.")
      .def("column", [](MatrixCoord const& c) { return c.column(); }, "Number of columns.");
  bind_as_coord(cls, names);
}

void bind_tensor_coords(py::module_& m) {
  Names<4> names{"Tensor4DCoord", {"n", "h", "w", "c"}};
  auto cls = public_class<Tensor4DCoord>(m, kCutlass, names.cls, "Extent of a 4-D tensor: NHWC, KRSC or NPQK.");
  cls.def(py::init([names](AnyInt const& n, AnyInt const& h, AnyInt const& w, AnyInt const& c) {
            return Tensor4DCoord(
                checked<int>(n, names.cls, names.fields[0]), checked<int>(h, names.cls, names.fields[1]),
                checked<int>(w, names.cls, names.fields[2]), checked<int>(c, names.cls, names.fields[3]));
          }),
          py::arg("n"), py::arg("h"), py::arg("w"), py::arg("c"))
      .def(
          "n", [](Tensor4DCoord const& c) { return c.n(); }, "First extent: batch, or filters.")
      .def(
          "h", [](Tensor4DCoord const& c) { return c.h(); }, "Second extent: height.")
      .def(
          "w", [](Tensor4DCoord const& c) { return c.w(); }, "Third extent: width.")
      .def(
          "c", [](Tensor4DCoord const& c) { return c.c(); }, "Fourth extent: channels.")
      .def("size", [](Tensor4DCoord const& c) { return product(coord_tuple(c)); }, "Number of elements.");
  bind_as_coord(cls, names);

  Names<3> names3{"Tensor3DCoord", {"w", "h", "n"}};
  auto cls3 = public_class<Tensor3DCoord>(m, kCutlass, names3.cls,
                                          "Strides of a 4-D tensor, in elements, from the innermost outwards.");
  cls3.def(py::init([names3](AnyInt const& w, AnyInt const& h, AnyInt const& n) {
             return Tensor3DCoord(cutlass::make_Coord(checked<int>(w, names3.cls, names3.fields[0]),
                                                      checked<int>(h, names3.cls, names3.fields[1]),
                                                      checked<int>(n, names3.cls, names3.fields[2])));
           }),
           py::arg("w"), py::arg("h"), py::arg("n"));
  bind_as_coord(cls3, names3);
}

void bind_dim3(py::module_& m) {
  Names<3> names{"dim3", {"x", "y", "z"}};
  auto cls =
      public_class<dim3>(m, kCutlass, names.cls, "Extent of a grid, in thread blocks, or of a block, in threads.");
  cls.def(py::init([names](AnyInt const& x, AnyInt const& y, AnyInt const& z) {
            return dim3(checked<unsigned>(x, names.cls, names.fields[0]),
                        checked<unsigned>(y, names.cls, names.fields[1]),
                        checked<unsigned>(z, names.cls, names.fields[2]));
          }),
          py::arg("x"), py::arg("y") = 1, py::arg("z") = 1)
      .def_readonly("x", &dim3::x)
      .def_readonly("y", &dim3::y)
      .def_readonly("z", &dim3::z);
  bind_as_tuple(cls, names, dim3_tuple);
}

void bind_gemm_mode(py::module_& m) {
  using cutlass::gemm::GemmUniversalMode;
  py::native_enum<GemmUniversalMode>(m, "GemmMode", kChoice, "What a GEMM kernel does with its k extent and batch.")
      .value("Gemm", GemmUniversalMode::kGemm, "one product; k may be split serially")
      .value("GemmSplitKParallel", GemmUniversalMode::kGemmSplitKParallel, "one product; slices of k are reduced later")
      .value("Batched", GemmUniversalMode::kBatched, "products at a constant stride")
      .value("Array", GemmUniversalMode::kArray, "products behind an array of pointers")
      .value("Invalid", GemmUniversalMode::kInvalid, "no mode")
      .finalize();
  publish_enum(m, kGemm, "GemmMode", "Mode");
}

}  // namespace

void bind_coords(py::module_& m) {
  bind_matrix_coord(m);
  bind_gemm_coord(m);
  bind_tensor_coords(m);
  bind_dim3(m);
  bind_gemm_mode(m);
}
