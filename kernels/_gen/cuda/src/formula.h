// What the kernels of formulas do with values, however those are computed: formula.cu has the formula's code in it, interpret.cu
// reads it. Both take the elements in the same order with the same grids, and compute with the operations below, so that their results have the
// same bits.
#pragma once
#include "rank.h"

// FormulaArgs: m, vectors and scalars are what the formula reads. kind is the statistic. code is the formula as the interpreter reads it,
// or for the host build of formula.cu one word for each instruction.
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

// The operations as package cuda's formulaCode has them.
enum { LOAD_MATRIX = 1, LOAD_COL, LOAD_ROW, AFFINE, SQUARE, NEGATE, ABSOLUTE, LOGARITHM, EXPONENTIAL, ROOT, TANH, PLUS, MINUS, TIMES, QUOTIENT, LEAST, MOST };

#ifdef __CUDACC_RTC__
DEV float subRound(float x, float y) { return __fsub_rn(x, y); }
DEV float divRound(float x, float y) { return __fdiv_rn(x, y); }
DEV float rootOf(float x) { return __fsqrt_rn(fabsf(x)); }
DEV float least(float x, float y) {
  float v;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(x), "f"(y));
  return v;
}
DEV float most(float x, float y) {
  float v;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(x), "f"(y));
  return v;
}
DEV float power2(float x) {
  float v;
  asm("ex2.approx.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}
DEV float logOf(float x) {
  float v;
  asm("lg2.approx.f32 %0, %1;" : "=f"(v) : "f"(addRound(fabsf(x), 0.001f)));
  return mulRound(v, 0.69314718055994531f);
}
DEV float expOf(float x) { return power2(mulRound(least(x, 100.0f), 1.4426950408889634f)); }
DEV float tanhOf(float x) {
  float size = fabsf(x), e = power2(mulRound(size, -2.8853900817779268f)), far = divRound(subRound(1.0f, e), addRound(e, 1.0f));
  asm("copysign.f32 %0, %1, %2;" : "=f"(far) : "f"(x), "f"(far));
  float near = __fmaf_rn(mulRound(mulRound(x, x), x), -0.33333333333333333f, x);
  return size < 0.03f ? near : far;
}
#else
DEV float subRound(float x, float y) { return x - y; }
DEV float divRound(float x, float y) { return x / y; }
DEV float rootOf(float x) { return sqrtf(fabsf(x)); }
DEV float least(float x, float y) { return x != x || y != y ? x + y : x < y ? x : y; }
DEV float most(float x, float y) { return x != x || y != y ? x + y : x > y ? x : y; }
DEV float logOf(float x) { return logf(fabsf(x) + 0.001f); }
DEV float expOf(float x) { return expf(x > 100 ? 100 : x); }
DEV float tanhOf(float x) { return tanhf(x); }
#endif
DEV float quotient(float x, float y) { return divRound(x, addRound(fabsf(y), 1e-8f)); }

// V computes the values of V::width elements: number e is at (i + e·di, j + e·dj), and those from n on are not used.

// scoreAll writes the scores to d.
template <class V> DEV void scoreAll(const FormulaArgs& a) {
  for (int i = by(); i < a.d.rows; i += gy())
    for (int step = gx() * nthreads(), j = bx() * nthreads() + tid(); j < a.d.cols; j += V::width * step) {
      float v[V::width];
      int n = (a.d.cols - j + step - 1) / step;
      V::values(a, i, j, 0, step, n, v);
      UNROLL for (int e = 0; e < V::width; e++)
        if (e == 0 || e < n) row<F32>(a.d, i)[j + e * step] = v[e];
    }
}

// What statAll gathers: min and max (and whether there is a NaN), moments around the first value, Σx², Σ|x|.
enum { RANGE = 1, MOMENTS = 2, NORM = 3, TOTAL = 4 };

// statAll writes four numbers for every block; d gives the shape.
template <class V> DEV void statAll(const FormulaArgs& a) {
  double p = 0, q = 0;
  float lo = floatOf(0x7f800000), hi = -lo, first = 0, v[V::width];
  u32 nan = 0;
  if (a.kind == MOMENTS) V::values(a, 0, 0, 0, 0, 1, v), first = v[0];
  for (int i = by(); i < a.d.rows; i += gy())
    for (int step = gx() * nthreads(), j = bx() * nthreads() + tid(); j < a.d.cols; j += V::width * step) {
      int n = (a.d.cols - j + step - 1) / step;
      V::values(a, i, j, 0, step, n, v);
      UNROLL for (int e = 0; e < V::width; e++) {
        if (e > 0 && e >= n) break;
        nan |= v[e] != v[e];
        lo = v[e] < lo ? v[e] : lo, hi = v[e] > hi ? v[e] : hi;
        double w = (double)v[e] - first;
        p += a.kind == TOTAL ? fabs(w) : w;
        q += w * w;
      }
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

// vectorAll gathers Σ|x| (kind TOTAL) or √Σx² (NORM) of every row (slot 0) or column (slot 1) to d.p.
template <class V> DEV void vectorAll(const FormulaArgs& a) {
  int outer = a.slot ? a.d.cols : a.d.rows, inner = a.slot ? a.d.rows : a.d.cols, step = nthreads();
  for (int o = bx(); o < outer; o += gx()) {
    double s = 0;
    for (int k = tid(); k < inner; k += V::width * step) {
      float v[V::width];
      int n = (inner - k + step - 1) / step;
      V::values(a, a.slot ? k : o, a.slot ? o : k, a.slot ? step : 0, a.slot ? 0 : step, n, v);
      UNROLL for (int e = 0; e < V::width; e++) {
        if (e > 0 && e >= n) break;
        s += a.kind == TOTAL ? fabs((double)v[e]) : (double)v[e] * v[e];
      }
    }
    s = blockReduce<Sum>(s, 0.0);
    if (tid() == 0) ((float*)a.d.p)[o] = (float)(a.kind == TOTAL ? s : sqrt(s));
  }
}

// Scores is a row for dropLowest; a thread's columns lie nthreads() apart.
template <class V> struct Scores {
  static const int width = V::width;
  const FormulaArgs& a;
  int i;
  MEMBER int column(int q, int e) const { return tid() + (q * width + e) * nthreads(); }
  MEMBER bool has(int q, int e) const { return column(q, e) < a.mask.cols; }
  MEMBER bool any(int q) const { return has(q, 0); }
  MEMBER int rounds() const { return 0; }
  MEMBER void keys(int q, u32 (&k)[width]) const {
    float v[width];
    int j = column(q, 0);
    V::values(a, i, j, 0, nthreads(), (a.mask.cols - j + nthreads() - 1) / nthreads(), v);
    UNROLL for (int e = 0; e < width; e++) k[e] = key(v[e]);
  }
  MEMBER u32 one(int) const { return 0; }
  MEMBER void keep(u8* mask, int q, const u32 (&k)[width], u32 threshold) const {
    UNROLL for (int e = 0; e < width; e++)
      if (has(q, e)) mask[column(q, e)] = k[e] > threshold;
  }
};

// selectAll computes the scores of a row and drops the lowest, without writing a score: up to 24 keys a thread.
template <class V> DEV void selectAll(const FormulaArgs& a) {
  SHARED(u32, histogram, 2048);
  for (int i = bx(); i < a.mask.rows; i += gx()) dropLowest<24, true>(histogram, row<U8>(a.mask, i), a.mask.cols, a.drop, Scores<V>{a, i});
}
