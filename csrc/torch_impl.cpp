#include "torch_impl.h"

namespace py = pybind11;

namespace pycutlass {

bool TorchImpl::found() {
  static bool const found = [] {  // with a tensor of torch in hand, so that torch has been loaded
    try {
      offset_ = find_offset();
      if (offset_ && !finds_the_rest()) offset_ = 0;
    } catch (py::error_already_set const&) {  // a mode changes what torch's functions do
      offset_ = 0;
    }
    return offset_ != 0;
  }();
  return found;
}

/// Most tensors have the offset 0, so no tensor of the user's could tell a wrong place from it.
uintptr_t TorchImpl::find_offset() {
  constexpr uintptr_t kEnd = 184;  // an implementation has never been smaller
  uintptr_t constexpr kMarks[] = {0x1d2c3b4a5968, 0x2e3d4c5b6a79};
  uintptr_t found = 0;
  for (uintptr_t mark : kMarks) {
    // Without elements, nothing is asked of the memory at the offset.
    py::object const probe = py::module_::import("torch").attr("empty")(0).attr("as_strided")(
        py::make_tuple(0), py::make_tuple(1), static_cast<int64_t>(mark));
    uintptr_t const impl = probe.attr("_cdata").cast<uintptr_t>();
    uintptr_t at = kAutograd + kRank;
    while (at + kKeys < kEnd && word_at(impl + at) != mark) at += sizeof(uintptr_t);
    if (at + kKeys >= kEnd || (found && at != found)) return 0;
    found = at;
  }
  return found;
}

/// Tensors that differ in one thing must differ in the one word where that is looked for.
bool TorchImpl::finds_the_rest() {
  py::module_ const torch = py::module_::import("torch");
  auto make = [&](char const* dtype, char const* device, bool inference = false) -> py::object {
    py::object const mode = torch.attr("inference_mode")(inference);  // the user may be in it
    return mode(torch.attr("zeros"))(py::make_tuple(2, 3), py::arg("dtype") = torch.attr(dtype),
                                     py::arg("device") = device);
  };
  py::object const plain = make("float32", "cpu"), followed = make("float32", "cpu").attr("requires_grad_")(),
                   inference = make("float32", "cpu", true);

  TorchForm const form = TorchForm::of(TorchImpl(plain));
  auto differs = [&](py::object const& tensor, bool in_type_and_device, bool in_keys) {
    TorchImpl const seen(tensor);
    return (seen.type_and_device() != form.type_and_device) == in_type_and_device &&
           (seen.keys() != form.keys) == in_keys;
  };
  py::object const transposed = plain.attr("t")();
  std::array<int64_t, 4> const extents = {2, 3, 3, 1};
  return form.rank == 2 && std::equal(extents.begin(), extents.end(), form.extents.begin()) &&
         !form.has_extents_of(TorchImpl(transposed)) && differs(transposed, false, false) &&
         differs(make("float64", "cpu"), true, false) && differs(make("float32", "meta"), true, true) &&
         differs(torch.attr("_neg_view")(plain), false, true) && differs(inference, false, true) &&
         !TorchImpl(plain).has_autograd() && TorchImpl(followed).has_autograd();
}

}  // namespace pycutlass
