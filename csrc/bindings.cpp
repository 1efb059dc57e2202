// The extension module encoder_fast._C. It knows addresses and sizes; kernels/_native*.py know tensors.
#include "bindings.h"

PYBIND11_MODULE(_C, m) {
  ef::bind_tiers(m);
  ef::bind_attention(m);
  ef::bind_engine(m);
  ef::bind_rows(m);
  ef::bind_matmul(m);
}
