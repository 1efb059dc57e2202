// Which instructions run: what kernels/_native.py asks.
#include <pybind11/stl.h>

#include "bindings.h"
#include "cpu/dispatch.h"

namespace ef {

void bind_tiers(pybind11::module_& m) {
  m.attr("__version__") = EF_VERSION;
  m.def("tiers", &usable_tiers, "Names of the tiers that this machine can run, best first.");
  m.def("tier", [] { return current_tier().name; }, "Name of the tier in use.");
  m.def("use_tier", &use_tier, pybind11::arg("name"), "Kernels that start from now on are of this tier.");
}

}  // namespace ef
