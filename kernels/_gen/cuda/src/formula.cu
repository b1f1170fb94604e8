// Scores by a formula that is known at run time only. In the PTX of these kernels the comment SCORE stands where package cuda puts the
// code of the formula before the driver compiles it; the host build interprets the formula instead.
#include "rank.h"

// FormulaArgs: code is for the host build; m, vectors and scalars are what the formula reads. kind is the statistic.
struct FormulaArgs {
  Mat d, mask;
  Mat m[2];
  const float* vectors[12];
  float* scalars;
  const u32* code;
  double* part;
  i64 drop;
  int length, kind, slot, type0, type1, parts;
};

#ifdef __CUDACC_RTC__
DEV float score(const FormulaArgs&, int i, int j) {
  float v;
  asm volatile("// SCORE %0 %1 %2" : "=f"(v) : "r"(i), "r"(j));
  return v;
}
#else
// score interprets the formula: an instruction has its operation in the lowest 8 bits, then the operands, then a number.
DEV float score(const FormulaArgs& a, int i, int j) {
  float v[256];
  for (int n = 0; n < a.length; n++) {
    u32 c = a.code[n], arg = c >> 24;
    float x = v[c >> 8 & 255], y = v[c >> 16 & 255];
    switch (c & 255) {
      case 1: v[n] = fabsf(load(a.m[arg].p, arg ? a.type1 : a.type0, i * a.m[arg].stride + j)); break;
      case 2: v[n] = a.vectors[arg][j]; break;
      case 3: v[n] = a.vectors[arg][i]; break;
      case 4: v[n] = (x - a.scalars[2 * arg]) / a.scalars[2 * arg + 1]; break;
      case 5: v[n] = x * x; break;
      case 6: v[n] = -x; break;
      case 7: v[n] = fabsf(x); break;
      case 8: v[n] = logf(fabsf(x) + 0.001f); break;
      case 9: v[n] = expf(x > 100 ? 100 : x); break;
      case 10: v[n] = sqrtf(fabsf(x)); break;
      case 11: v[n] = tanhf(x); break;
      case 12: v[n] = x + y; break;
      case 13: v[n] = x - y; break;
      case 14: v[n] = x * y; break;
      case 15: v[n] = x / (fabsf(y) + 1e-8f); break;
      case 16: v[n] = x != x || y != y ? x + y : x < y ? x : y; break;
      case 17: v[n] = x != x || y != y ? x + y : x > y ? x : y; break;
    }
  }
  return v[a.length - 1];
}
#endif

// formula_score writes the scores to d.
KERNEL(formula_score, FormulaArgs, 256, 4) {
  for (int i = by(); i < a.d.rows; i += gy())
    for (int j = bx() * nthreads() + tid(); j < a.d.cols; j += gx() * nthreads()) row<F32>(a.d, i)[j] = score(a, i, j);
}

// What formula_stat gathers: min and max (and whether there is a NaN), moments around the first value, Σx², Σ|x|.
enum { RANGE = 1, MOMENTS = 2, NORM = 3, TOTAL = 4 };

// formula_stat writes four numbers for every block; d gives the shape.
KERNEL(formula_stat, FormulaArgs, 256, 4) {
  double p = 0, q = 0;
  float lo = floatOf(0x7f800000), hi = -lo, first = a.kind == MOMENTS ? score(a, 0, 0) : 0;
  u32 nan = 0;
  for (int i = by(); i < a.d.rows; i += gy())
    for (int j = bx() * nthreads() + tid(); j < a.d.cols; j += gx() * nthreads()) {
      float v = score(a, i, j);
      nan |= v != v;
      lo = v < lo ? v : lo, hi = v > hi ? v : hi;
      double w = (double)v - first;
      p += a.kind == TOTAL ? fabs(w) : w;
      q += w * w;
    }
  hi = blockReduce<Max>(hi, hi);
  lo = -blockReduce<Max>(-lo, -lo);
  nan = blockReduce<Max>(nan, 0u);
  p = blockReduce<Sum>(p, 0.0), q = blockReduce<Sum>(q, 0.0);
  if (tid() == 0) {
    double* out = a.part + 4 * ((i64)by() * gx() + bx());
    bool range = a.kind == RANGE;
    out[0] = range ? lo : p, out[1] = range ? hi : q, out[2] = nan, out[3] = first;
  }
}

// formula_fold, one block, makes of them the two numbers that the formula subtracts and divides by.
KERNEL(formula_fold, FormulaArgs, 256, 1) {
  double p = 0, q = 0, count = (double)a.d.rows * a.d.cols;
  float lo = floatOf(0x7f800000), hi = -lo;
  u32 nan = 0;
  for (int k = tid(); k < a.parts; k += nthreads()) {
    const double* in = a.part + 4 * k;
    p += in[0], q += in[1], nan |= in[2] != 0;
    lo = in[0] < lo ? (float)in[0] : lo, hi = in[1] > hi ? (float)in[1] : hi;
  }
  hi = blockReduce<Max>(hi, hi);
  lo = -blockReduce<Max>(-lo, -lo);
  nan = blockReduce<Max>(nan, 0u);
  p = blockReduce<Sum>(p, 0.0), q = blockReduce<Sum>(q, 0.0);
  if (tid() > 0) return;
  float* out = a.scalars + 2 * a.slot;
  out[0] = 0;
  if (a.kind == RANGE) out[0] = nan ? floatOf(0x7fc00000) : lo, out[1] = hi - lo;
  if (a.kind == MOMENTS) out[0] = (float)(a.part[3] + p / count), out[1] = (float)sqrt((q - p * p / count) / (count - 1));
  if (a.kind == NORM) out[1] = (float)sqrt(q);
  if (a.kind == TOTAL) out[1] = (float)p + 1e-8f;
}

// formula_vector gathers Σ|x| (kind TOTAL) or √Σx² (NORM) of every row (slot 0) or column (slot 1) to d.p.
KERNEL(formula_vector, FormulaArgs, 256, 4) {
  int outer = a.slot ? a.d.cols : a.d.rows, inner = a.slot ? a.d.rows : a.d.cols;
  for (int n = bx(); n < outer; n += gx()) {
    double s = 0;
    for (int k = tid(); k < inner; k += nthreads()) {
      float v = a.slot ? score(a, k, n) : score(a, n, k);
      s += a.kind == TOTAL ? fabs((double)v) : (double)v * v;
    }
    s = blockReduce<Sum>(s, 0.0);
    if (tid() == 0) ((float*)a.d.p)[n] = (float)(a.kind == TOTAL ? s : sqrt(s));
  }
}

// formula_select computes the scores of a row and drops the lowest, without writing a score: up to 24 keys a thread.
KERNEL(formula_select, FormulaArgs, 512, 1) {
  for (int i = bx(); i < a.mask.rows; i += gx())
    dropLowest<24, true>(row<U8>(a.mask, i), a.mask.cols, a.drop, [&](int j) { return key(score(a, i, j)); });
}
