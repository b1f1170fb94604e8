// Scores by a formula that is known at run time only. In the PTX of these kernels the comment SCORE stands where package cuda puts the
// code of the formula before the driver compiles it; the host build reads the formula instead.
#include "formula.h"

#ifdef __CUDACC_RTC__
DEV float score(const FormulaArgs&, int i, int j) {
  float v;
  asm volatile("// SCORE %0 %1 %2" : "=f"(v) : "r"(i), "r"(j));
  return v;
}
#else
// score reads the formula: an instruction has its operation in the lowest 8 bits, then the operands, then a number.
DEV float score(const FormulaArgs& a, int i, int j) {
  float v[256];
  for (int n = 0; n < a.length; n++) {
    u32 c = a.code[n], arg = c >> 24;
    float x = v[c >> 8 & 255], y = v[c >> 16 & 255];
    switch (c & 255) {
      case LOAD_MATRIX: v[n] = fabsf(load(a.m[arg].p, arg ? a.type1 : a.type0, i * a.m[arg].stride + j)); break;
      case LOAD_COL: v[n] = a.vectors[arg][j]; break;
      case LOAD_ROW: v[n] = a.vectors[arg][i]; break;
      case AFFINE: v[n] = (x - a.scalars[2 * arg]) / a.scalars[2 * arg + 1]; break;
      case SQUARE: v[n] = x * x; break;
      case NEGATE: v[n] = -x; break;
      case ABSOLUTE: v[n] = fabsf(x); break;
      case LOGARITHM: v[n] = logOf(x); break;
      case EXPONENTIAL: v[n] = expOf(x); break;
      case ROOT: v[n] = rootOf(x); break;
      case TANH: v[n] = tanhOf(x); break;
      case PLUS: v[n] = x + y; break;
      case MINUS: v[n] = x - y; break;
      case TIMES: v[n] = x * y; break;
      case QUOTIENT: v[n] = quotient(x, y); break;
      case LEAST: v[n] = least(x, y); break;
      case MOST: v[n] = most(x, y); break;
    }
  }
  return v[a.length - 1];
}
#endif

struct Compiled {
  static const int width = 1;
  DEV void values(const FormulaArgs& a, int i, int j, int, int, int, float (&v)[1]) { v[0] = score(a, i, j); }
};

KERNEL(formula_score, FormulaArgs, 256, 4) { scoreAll<Compiled>(a); }
KERNEL(formula_stat, FormulaArgs, 256, 4) { statAll<Compiled>(a); }
KERNEL(formula_vector, FormulaArgs, 256, 4) { vectorAll<Compiled>(a); }
KERNEL(formula_select, FormulaArgs, 512, 1) { selectAll<Compiled>(a); }

// formula_fold, one block, makes of what statAll wrote the two numbers that the formula subtracts and divides by.
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
