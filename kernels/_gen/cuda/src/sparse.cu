// Weights stored as a bitmask and the elements that are there.
#include "device.h"

// ExpandArgs: values are elements of size bytes; offsets[i] of them lie before row i.
struct ExpandArgs {
  Mat d, mask;
  const char* values;
  const i64* offsets;
  int size;
};

template <class T> DEV void expandRow(const ExpandArgs& a, int i) {
  const u8* mask = (const u8*)a.mask.p + i * a.mask.stride;
  T* d = (T*)a.d.p + i * a.d.stride;
  const T* v = (const T*)a.values + a.offsets[i];
  // A thread has one byte of the mask, a block 2,048 columns a step.
  for (i64 base = 0; base * 8 < a.d.cols; base += nthreads()) {
    i64 byte = base + tid();
    u32 bits = byte * 8 < a.d.cols ? mask[byte] : 0, total;
    u32 p = blockBefore(popc(bits), total);
    for (int k = 0; k < 8 && byte * 8 + k < a.d.cols; k++) d[byte * 8 + k] = bits >> k & 1 ? v[p++] : (T)0;
    v += total;
  }
}

KERNEL(expand, ExpandArgs, 256, 4) {
  for (int i = bx(); i < a.d.rows; i += gx()) {
    if (a.size == 4) expandRow<u32>(a, i);
    else expandRow<u16>(a, i);
  }
}
