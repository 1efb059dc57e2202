// The parts of the extension module, one file each.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>

namespace ef {

// What Python says of memory: its address, 0 for none.
template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

void bind_tiers(pybind11::module_& m);
void bind_attention(pybind11::module_& m);
void bind_engine(pybind11::module_& m);
void bind_matmul(pybind11::module_& m);
void bind_rows(pybind11::module_& m);

}  // namespace ef
