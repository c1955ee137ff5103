// What a call has of scalars in device memory.
#include <algorithm>
#include <string>
#include <utility>

#include "bindings.h"
#include "driver.h"
#include "launch.h"

namespace py = pybind11;

namespace pycutlass {

void Call::follow_scalar(std::string const& name, py::object tensor, py::object find) {
  for (pycutlass_epilogue_field const& field : kernel_->host().epilogue()) {
    if (field.kind != PYCUTLASS_ADDRESS || field.name != name) continue;
    auto** address = reinterpret_cast<void**>(epilogue_.data() + field.offset);
    scalars_.emplace_back(name, address, std::move(tensor), std::move(find));
    return;
  }
  raise_error("CacheError", "the epilogue has no address of " + name);
}

/// Makes the parameters anew where a scalar was moved. A launch that fails midway leaves that to the next.
void Call::follow_scalars() {
  for (DeviceScalar& each : scalars_) {
    if (!each.follow()) continue;
    scalars_moved_ = true;
    if (!storages_.is_none()) py::list(storages_).append(each.storage());
  }
  if (!scalars_moved_) return;
  if (int const status = status_of(plan())) {
    raise_error("ArgumentError",
                "CUTLASS cannot implement the launch with a scalar elsewhere in device memory: "
                "cutlass::Status " +
                    std::to_string(status));
  }
  scalars_moved_ = false;
}

bool Call::has_followed_scalar() const {
  return std::any_of(scalars_.begin(), scalars_.end(), [](DeviceScalar const& each) { return each.is_followed(); });
}

}  // namespace pycutlass
