#include "device_scalar.h"

#include <utility>

namespace py = pybind11;

namespace pycutlass {

DeviceScalar::DeviceScalar(std::string name, void** address, py::object tensor, py::object find)
    : name_(std::move(name)), address_(address), tensor_(std::move(tensor)), find_(std::move(find)) {
  follow();
}

bool DeviceScalar::follow() {
  if (guard_.direct() && guard_.plainly_unmoved()) return false;
  uintptr_t now = find();  // first: what it says of a tensor without memory is better than what the guard would say
  guard_.watch(tensor_, false);
  if (guard_.direct()) now = find();  // which may have moved before it was watched
  return reinterpret_cast<uintptr_t>(std::exchange(*address_, reinterpret_cast<void*>(now))) != now;
}

}  // namespace pycutlass
