// Layouts: classes that are type tags and hold strides, and the enumeration of the rest.
#include <algorithm>
#include <type_traits>

#include "coords.h"
#include "cutlass/layout/matrix.h"
#include "cutlass/layout/tensor.h"

namespace {

using cutlass::MatrixCoord;
using cutlass::Tensor4DCoord;

// Rows, columns or channels that are stored together; 1 where the layout is not interleaved.
template <typename Layout, typename = void>
inline constexpr int kInterleave = 1;
template <typename Layout>
inline constexpr int kInterleave<Layout, std::void_t<decltype(Layout::kInterleave)>> = Layout::kInterleave;

// The channels of an interleaved tensor come in whole blocks, or images would overlap.
template <typename Layout>
void require_whole_blocks(Tensor4DCoord const& extent, std::string const& name) {
  if (extent.c() % kInterleave<Layout>) {
    throw py::value_error(name + ".packed: extent.c must be a multiple of " + std::to_string(kInterleave<Layout>) +
                          "; got " + std::to_string(extent.c()) + ". Pad the channels with zeros");
  }
}

// Refuses extents whose strides CUTLASS would compute with 32-bit overflow.
template <typename Layout>
void require_strides_fit(Tensor4DCoord const& extent, std::string const& name) {
  constexpr bool filters_inside = std::is_same_v<Layout, cutlass::layout::TensorCxRSKx<32>>;
  std::int64_t image = fits_index(std::int64_t(extent.h()) * extent.w(), name + ".packed: h * w");
  std::int64_t inner =
      filters_inside ? std::int64_t(extent.n()) * kInterleave<Layout> : std::max(extent.c(), kInterleave<Layout>);
  fits_index(image * fits_index(inner, name + ".packed: the inner stride"), name + ".packed: the outermost stride");
}

template <typename Layout>
void bind_matrix_layout(py::module_& m, std::string const& name, char const* doc) {
  auto cls = public_class<Layout>(m, kCutlass, name.c_str(), doc);
  cls.def(py::init([name](AnyInt const& stride) {
            int overflow = 0;
            long long value = PyLong_AsLongLongAndOverflow(stride.object.ptr(), &overflow);
            if (overflow) throw py::value_error(name + ": stride must be an integer of 64 bits");
            return Layout(value);
          }),
          py::arg("stride"))
      .def_static(
          "packed",
          [name](MatrixCoord const& extent) {
            std::int64_t widest = std::int64_t(std::max(extent.row(), extent.column())) * kInterleave<Layout>;
            fits_index(widest, name + ".packed: the stride");
            return Layout::packed(extent);
          },
          py::arg("extent"), "The layout of a matrix without gaps.")
      .def(
          "stride", [](Layout const& layout) { return layout.stride(0); },
          "Elements between neighbouring rows, columns or blocks of them.")
      .def(
          "__eq__", [](Layout const& a, Layout const& b) { return a.stride(0) == b.stride(0); }, py::is_operator())
      .def("__hash__", [](Layout const& layout) { return py::hash(py::int_(layout.stride(0))); })
      .def("__repr__",
           [name](Layout const& layout) { return name + "(stride=" + std::to_string(layout.stride(0)) + ")"; })
      .def("__reduce__", [](Layout const& layout) {
        return py::make_tuple(py::type::of<Layout>(), py::make_tuple(layout.stride(0)));
      });
}

template <typename Layout>
void bind_tensor_layout(py::module_& m, std::string const& name, char const* doc) {
  auto cls = public_class<Layout>(m, kCutlass, name.c_str(), doc);
  auto stride = [](Layout const& layout) { return Tensor3DCoord(layout.stride()); };
  cls.def(py::init([](Tensor3DCoord const& stride) { return Layout(stride); }), py::arg("stride"))
      .def_static(
          "packed",
          [name](Tensor4DCoord const& extent) {
            require_whole_blocks<Layout>(extent, name);
            require_strides_fit<Layout>(extent, name);
            return Layout::packed(extent);
          },
          py::arg("extent"), "The layout of a tensor without gaps.")
      .def("stride", stride, "Elements between neighbours, from the innermost stride outwards.")
      .def(
          "__eq__", [stride](Layout const& a, Layout const& b) { return stride(a) == stride(b); }, py::is_operator())
      .def("__hash__", [stride](Layout const& layout) { return py::hash(coord_tuple(stride(layout))); })
      .def("__repr__",
           [name, stride](Layout const& layout) {
             return name + "(stride=" + std::string(py::repr(py::cast(stride(layout)))) + ")";
           })
      .def("__reduce__", [stride](Layout const& layout) {
        return py::make_tuple(py::type::of<Layout>(), py::make_tuple(stride(layout)));
      });
}

// Layouts without a class.
enum class OtherLayout : int {};
constexpr char const* kOtherLayouts[] = {"ColumnMajorInterleaved2",
                                         "RowMajorInterleaved2",
                                         "ColumnMajorInterleaved64",
                                         "RowMajorInterleaved64",
                                         "TensorNDHWC",
                                         "TensorNCHW",
                                         "TensorNGHWC",
                                         "TensorNC64HW64",
                                         "TensorC64RSK64"};

void bind_layout_enum(py::module_& m) {
  py::native_enum<OtherLayout> cls(m, "layout", kChoice, "Layouts that have no class.");
  int value = 0;
  for (char const* name : kOtherLayouts) cls.value(name, static_cast<OtherLayout>(value++));
  cls.finalize();
  publish_enum(m, kCutlass, "layout", "layout");
}

}  // namespace

void bind_layouts(py::module_& m) {
  using namespace cutlass::layout;
  bind_matrix_layout<RowMajor>(m, "RowMajor", "Rows are contiguous.");
  bind_matrix_layout<ColumnMajor>(m, "ColumnMajor", "Columns are contiguous.");
  bind_matrix_layout<RowMajorInterleaved<32>>(m, "RowMajorInterleaved32",
                                              "Row-major blocks of 32 rows; within one, columns are contiguous.");
  bind_matrix_layout<ColumnMajorInterleaved<32>>(m, "ColumnMajorInterleaved32",
                                                 "Column-major blocks of 32 columns; within one, rows are contiguous.");
  bind_tensor_layout<TensorNHWC>(m, "TensorNHWC", "Channels are contiguous.");
  bind_tensor_layout<TensorNCxHWx<32>>(m, "TensorNC32HW32", "Activations in blocks of 32 channels.");
  bind_tensor_layout<TensorCxRSKx<32>>(m, "TensorC32RSK32", "Filters in blocks of 32 channels, filters inside.");
  bind_layout_enum(m);
}
