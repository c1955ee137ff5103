// Element types: classes that are type tags and hold a value, and the enumeration of the rest.
#include <cmath>
#include <cstdint>

#include "bindings.h"
#include "cutlass/bfloat16.h"
#include "cutlass/complex.h"
#include "cutlass/float8.h"
#include "cutlass/half.h"
#include "cutlass/tfloat32.h"
#include "integers.h"

namespace {

// C++'s own number types, in the shape of CUTLASS's.
template <typename T>
struct Native {
  T storage;
};

// float(x) spelled so that it can be evaluated again.
std::string number_text(py::object const& number) {
  if (py::isinstance<py::float_>(number) && !std::isfinite(number.cast<double>())) {
    return "float('" + std::string(py::str(number)) + "')";
  }
  return py::repr(number);
}

// What a value of an element type can do. `value_of` gives the Python number, exactly.
template <typename T, typename ValueOf>
void bind_as_value(py::class_<T>& cls, std::string const& name, ValueOf value_of) {
  cls.def("value", value_of, "The value as a Python number, exactly.")
      .def("__float__", [value_of](T const& x) { return static_cast<double>(value_of(x)); })
      .def(
          "__eq__", [value_of](T const& a, T const& b) { return value_of(a) == value_of(b); }, py::is_operator())
      .def("__hash__", [value_of](T const& x) { return py::hash(py::cast(value_of(x))); })
      .def("__repr__", [name, value_of](T const& x) { return name + "(" + number_text(py::cast(value_of(x))) + ")"; })
      // py::pickle would make an object without a constructor, which ends the interpreter in protocols 0 and 1
      .def("__reduce__", [](T const& x) {
        py::object attributes = py::dict(py::arg("storage") = x.storage);
        return py::make_tuple(py::type::of<T>(), py::make_tuple(0), py::make_tuple(py::none(), attributes));
      });
}

// A floating-point type. A Python number becomes a double, then T by CUTLASS's own conversion.
template <typename T, typename FromDouble>
void bind_float(py::module_& m, std::string const& name, char const* doc, FromDouble from_double) {
  using Storage = decltype(T::storage);
  auto cls = public_class<T>(m, kCutlass, name.c_str(), doc);
  cls.def(py::init(from_double), py::arg("value"));
  bind_as_value(cls, name, [](T const& x) { return static_cast<double>(static_cast<float>(x)); });
  cls.def_property(
      "storage", [](T const& x) { return x.storage; },
      [name](T& x, py::object const& bits) {
        x.storage = checked<Storage>(integer(bits, name + ".storage"), name + ".storage");
      },
      "The bits, as an unsigned integer.");
}

template <typename T>
void bind_native_float(py::module_& m, std::string const& name, char const* doc) {
  auto cls = public_class<Native<T>>(m, kCutlass, name.c_str(), doc);
  cls.def(py::init([](AnyReal number) { return Native<T>{static_cast<T>(number.value)}; }), py::arg("value"));
  bind_as_value(cls, name, [](Native<T> const& x) { return static_cast<double>(x.storage); });
  cls.def_property(
      "storage", [](Native<T> const& x) { return x.storage; },
      py::cpp_function([](Native<T>& x, AnyReal number) { x.storage = static_cast<T>(number.value); },
                       py::name("storage"), py::is_method(cls), py::arg("value")),
      "The number itself.");
}

// Returns a whole number as a Python int, or raises ValueError: 0.5 as int8 would silently be 0.
AnyInt as_int(py::object const& number, std::string const& name) {
  if (PyIndex_Check(number.ptr())) return py::cast<AnyInt>(number);
  double value = number.cast<double>();
  if (value != std::floor(value) || std::isinf(value)) {
    throw py::value_error(name + " holds whole numbers only; got " + std::string(py::repr(number)) +
                          ". Round it first, or use a floating-point type");
  }
  return AnyInt{py::reinterpret_steal<py::object>(PyLong_FromDouble(value))};
}

template <typename T>
void bind_integer(py::module_& m, std::string const& name, char const* doc) {
  auto cls = public_class<Native<T>>(m, kCutlass, name.c_str(), doc);
  auto from_int = [name](AnyInt const& value) { return Native<T>{checked<T>(value, name)}; };
  cls.def(py::init(from_int), py::arg("value"))
      .def(py::init([name, from_int](AnyReal number) { return from_int(as_int(py::float_(number.value), name)); }),
           py::arg("value"));
  bind_as_value(cls, name, [](Native<T> const& x) { return static_cast<int>(x.storage); });
  cls.def("__int__", [](Native<T> const& x) { return static_cast<int>(x.storage); })
      .def_property(
          "storage", [](Native<T> const& x) { return static_cast<int>(x.storage); },
          [name](Native<T>& x, py::object const& value) {
            x.storage = checked<T>(integer(value, name + ".storage"), name + ".storage");
          },
          "The number itself.");
}

void bind_numbers(py::module_& m) {
  using namespace cutlass;
  bind_integer<std::int8_t>(m, "int8", "8-bit signed integer.");
  bind_integer<std::uint8_t>(m, "uint8", "8-bit unsigned integer.");
  bind_integer<std::int32_t>(m, "int32", "32-bit signed integer.");
  bind_float<half_t>(m, "float16", "IEEE half precision. Rounds by way of float, to nearest, ties to even.",
                     [](AnyReal x) { return half_t(x.value); });
  bind_float<bfloat16_t>(m, "bfloat16", "Brain float. Rounds by way of float, to nearest, ties to even.",
                         [](AnyReal x) { return bfloat16_t(x.value); });
  bind_float<tfloat32_t>(m, "tfloat32", "Tensor float. Rounds by way of float, to nearest, ties away from zero.",
                         [](AnyReal x) { return tfloat32_t(x.value); });
  bind_float<float_e4m3_t>(m, "float_e4m3", "8-bit float, 4 exponent bits. Rounds to even, saturates at 448.",
                           [](AnyReal x) { return float_e4m3_t(x.value); });
  bind_float<float_e5m2_t>(m, "float_e5m2", "8-bit float, 5 exponent bits. Rounds to even, saturates at 57344.",
                           [](AnyReal x) { return float_e5m2_t(x.value); });
  bind_native_float<float>(m, "float32", "IEEE single precision.");
  bind_native_float<double>(m, "float64", "IEEE double precision; nothing of a Python float is lost.");
}

// Element types without a class of their own: u unsigned, s signed, f floating point, c complex, and their bits.
enum class Dtype : int {};
constexpr char const* kDtypes[] = {"b1",   "u2",   "u4",    "u8",   "u16",   "u32",  "u64",  "s2",   "s4",     "s16",
                                   "s64",  "cf16", "cbf16", "cf32", "ctf32", "cf64", "cs2",  "cs4",  "cs8",    "cs16",
                                   "cs32", "cs64", "cu2",   "cu4",  "cu8",   "cu16", "cu32", "cu64", "invalid"};

void bind_dtype(py::module_& m) {
  py::native_enum<Dtype> cls(m, "dtype", kChoice, "Element types that have no class: u8, s4, b1, complex ones.");
  int value = 0;
  for (char const* name : kDtypes) cls.value(name, static_cast<Dtype>(value++));
  cls.finalize();
  publish_enum(m, kCutlass, "dtype", "dtype");
}

// CUTLASS has a tag type for each; Python needs one value for each.
enum class OpClass { kSimt, kTensorOp, kWmmaTensorOp, kSparseTensorOp };

void bind_math_enums(py::module_& m) {
  py::native_enum<OpClass>(m, "OpClass", kChoice, "Which units of the GPU do the arithmetic.")
      .value("Simt", OpClass::kSimt, "CUDA cores")
      .value("TensorOp", OpClass::kTensorOp, "tensor cores")
      .value("WmmaTensorOp", OpClass::kWmmaTensorOp, "tensor cores by way of WMMA")
      .value("SparseTensorOp", OpClass::kSparseTensorOp, "tensor cores, 2:4 sparse A")
      .finalize();
  publish_enum(m, kCutlass, "OpClass", "OpClass");

  py::native_enum<cutlass::ComplexTransform>(m, "complex_transform", kChoice, "What is done to a complex operand.")
      .value("none", cutlass::ComplexTransform::kNone, "nothing")
      .value("conj", cutlass::ComplexTransform::kConjugate, "it is conjugated")
      .finalize();
  publish_enum(m, kCutlass, "complex_transform", "complex_transform");
}

}  // namespace

void bind_types(py::module_& m) {
  bind_numbers(m);
  bind_dtype(m);
  bind_math_enums(m);
}
