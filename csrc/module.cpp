// pycutlass._core: CUTLASS's own types, and the launch path.
#include "bindings.h"
#include "calls.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "CUTLASS's own types and the launch path; import them from pycutlass.cutlass.";
  bind_types(m);
  bind_coords(m);
  bind_layouts(m);
  bind_conv(m);
  bind_swizzle(m);
  bind_launch(m);
  bind_files(m);
  m.def(
      "seal_classes", [m] { seal_classes(m); },
      "From now on, no class of the extension changes, and no object its class.");
  guard_calls(m);
}
