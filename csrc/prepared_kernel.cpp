#include "prepared_kernel.h"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace pycutlass {
namespace {

constexpr unsigned kGridLimit = 65535;  // threadblocks along y and z

PreparedKernel::Described described_as(PreparedKernel::Given const& given) {
  auto const& [rule, code, dtype_name, dtype] = given;
  return {rule, {code, dtype_name, dtype}};
}

}  // namespace

PreparedKernel::PreparedKernel(py::object kernel, FourGiven const& operands, bool in_place, Helpers helpers,
                               Roles roles)
    : kernel_(kernel.cast<std::shared_ptr<DeviceKernel>>()),
      kernel_object_(std::move(kernel)),
      described_(std::apply([](auto const&... each) { return std::array{described_as(each)...}; }, operands)),
      in_place_(in_place),
      helpers_(std::move(helpers)),
      roles_(std::move(roles)) {
  for (int role : roles_) {
    kernel_->host().check_element(role, described(role).type.code);
  }
}

bool PreparedKernel::read(int role, py::handle given, GivenTensor const& leader, GivenTensor& tensor,
                          bool& followed) const {
  if (!tensor.read(given, described(role).type, kernel_->ordinal(), helpers_.wrap)) return false;
  if (!tensor.same_library(leader)) return false;
  bool const is_followed = tensor.is_followed();
  followed = followed || is_followed;
  return role != PYCUTLASS_D || !is_followed;
}

/// Whether D lies over nothing else, but for a C that is D itself.
bool PreparedKernel::writes_apart(TakenOperands const& taken) const {
  PlacedOperand const& target = taken[PYCUTLASS_D].placed;
  for (int role : roles_) {
    if (role == PYCUTLASS_D || (role == PYCUTLASS_C && !taken.reads_source)) continue;
    PlacedOperand const& other = taken[role].placed;
    bool const is_itself = role == PYCUTLASS_C && in_place_ && target.same_place(other);
    if (!is_itself && target.span.overlaps(other.span)) return false;
  }
  return true;
}

void PreparedKernel::enter(Call& call, TakenOperands const& taken, py::bytes const& epilogue) const {
  lead(call, taken[roles_.front()].tensor);
  for (int role : roles_) {
    if (role == PYCUTLASS_C && !taken.reads_source) continue;
    auto const& [rule, type] = described(role);
    taken[role].tensor.enter(call, role, rule, type.code, taken[role].placed);
  }
  call.set_epilogue(epilogue);
  call.set_in_place(in_place_);
}

void PreparedKernel::lead(Call& call, GivenTensor const& tensor) const {
  tensor.lead(call, kernel_->ordinal(), helpers_.stream_source);
}

bool PreparedKernel::fits_grid(Call const& call) {
  return call.config().gridDimY <= kGridLimit && call.config().gridDimZ <= kGridLimit;
}

}  // namespace pycutlass
