#include "torch_tensor.h"

#include <dlfcn.h>

#include <type_traits>

namespace py = pybind11;

namespace pycutlass {

TorchReader::TorchReader() {
  void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);  // the one that is there, where there is one
  if (!library) return;
  auto find = [library](auto& function, char const* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  complete_ = find(data_, "aoti_torch_get_data_ptr") && find(rank_, "aoti_torch_get_dim") &&
              find(sizes_, "aoti_torch_get_sizes") && find(strides_, "aoti_torch_get_strides") &&
              find(dtype_, "aoti_torch_get_dtype") && find(device_type_, "aoti_torch_get_device_type") &&
              find(device_index_, "aoti_torch_get_device_index");
  find(requires_grad_, "_ZNK3c1010TensorImpl13requires_gradEv");
  find(is_inference_, "_ZN2at6native12is_inferenceERKNS_6TensorE");
  find(bump_version_, "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE");
  try {
    offset_ = find_offset();
    if (offset_ && !finds_the_rest()) offset_ = 0;
  } catch (py::error_already_set const&) {  // a mode that changes what torch's functions do
    offset_ = 0;
  }
}

uintptr_t TorchReader::find_offset() {
  constexpr uintptr_t kEnd = 184;  // an implementation has never been smaller
  uintptr_t constexpr kMarks[] = {0x1d2c3b4a5968, 0x2e3d4c5b6a79};
  uintptr_t found = 0;
  for (uintptr_t mark : kMarks) {
    // Without elements, nothing is asked of the memory at the offset.
    py::object const probe = py::module_::import("torch").attr("empty")(0).attr("as_strided")(
        py::make_tuple(0), py::make_tuple(1), static_cast<int64_t>(mark));
    uintptr_t const impl = probe.attr("_cdata").cast<uintptr_t>();
    uintptr_t at = kStorage + sizeof(uintptr_t);
    while (at < kEnd && word_at(impl + at) != mark) at += sizeof(uintptr_t);
    if (at == kEnd || (found && at != found)) return 0;
    found = at;
  }
  return found >= kRank + kAutograd && found + kKeys < kEnd ? found : 0;
}

/// Tensors that differ in one thing must differ in the one word where that is looked for.
bool TorchReader::finds_the_rest() {
  py::module_ const torch = py::module_::import("torch");
  auto make = [&](char const* dtype, char const* device) {
    return torch.attr("zeros")(py::make_tuple(2, 3), py::arg("dtype") = torch.attr(dtype), py::arg("device") = device);
  };
  py::object const plain = make("float32", "cpu"), other_type = make("float64", "cpu"),
                   other_device = make("float32", "meta"), other_shape = plain.attr("t")(),
                   negated = torch.attr("_neg_view")(plain), followed = make("float32", "cpu").attr("requires_grad_")();
  py::object const mode = torch.attr("inference_mode")();
  mode.attr("__enter__")();
  py::object const inference = make("float32", "cpu");
  mode.attr("__exit__")(py::none(), py::none(), py::none());
  Form const form = read_form(plain);
  auto differs = [&](py::object const& tensor, bool in_type_and_device, bool in_keys) {
    Form const seen = read_form(tensor);
    return (seen.type_and_device != form.type_and_device) == in_type_and_device && (seen.keys != form.keys) == in_keys;
  };
  return form.rank == 2 && form.sizes[0] == 2 && form.sizes[1] == 3 && form.strides[0] == 3 && form.strides[1] == 1 &&
         differs(other_type, true, false) && differs(other_device, true, true) && differs(other_shape, false, false) &&
         differs(negated, false, true) && differs(inference, false, true) && !has_extents(other_shape, form) &&
         !has_autograd(plain) && has_autograd(followed);
}

TorchReader const* TorchReader::for_type_of(py::handle tensor) {
  if (!py::hasattr(tensor, "_cdata")) return nullptr;
  static TorchReader const reader;  // with a tensor of torch in hand, so that torch has been loaded
  if (!reader.complete_) return nullptr;
  size_t const needed = sizeof(PyObject) + sizeof(uintptr_t);
  if (static_cast<size_t>(Py_TYPE(tensor.ptr())->tp_basicsize) < needed) return nullptr;
  // A tensor tells the address of its implementation.
  return word_at(handle_of(tensor)) == tensor.attr("_cdata").cast<uintptr_t>() ? &reader : nullptr;
}

TorchReader::Place TorchReader::ask_place(py::handle tensor) {
  py::object const storage = tensor.attr("untyped_storage")();
  return {tensor.attr("_cdata").cast<uintptr_t>(), storage.attr("_cdata").cast<uintptr_t>(),
          storage.attr("data_ptr")().cast<uintptr_t>(), storage.attr("nbytes")().cast<int64_t>(),
          tensor.attr("storage_offset")().cast<int64_t>()};
}

bool TorchReader::requires_grad(py::handle tensor) const {
  if (reads_places() && !has_autograd(tensor)) return false;
  if (!requires_grad_) return tensor.attr("requires_grad").cast<bool>();
  return requires_grad_(reinterpret_cast<void const*>(word_at(handle_of(tensor))));
}

bool TorchReader::is_inference(py::handle tensor) const {
  return is_inference_ ? is_inference_(handle_of(tensor)) : tensor.attr("is_inference")().cast<bool>();
}

void TorchReader::increment_version(py::handle tensor) const {
  if (bump_version_) return bump_version_(handle_of(tensor));
  py::module_::import("torch.autograd.graph").attr("increment_version")(tensor);
}

bool TorchReader::read(py::handle tensor, View& view) const {
  Handle const handle = handle_of(tensor);
  return !(rank_(handle, &view.rank) || dtype_(handle, &view.dtype) || device_type_(handle, &view.device_type) ||
           device_index_(handle, &view.device_index) || sizes_(handle, &view.sizes) ||
           strides_(handle, &view.strides) || data_(handle, &view.data));
}

}  // namespace pycutlass
