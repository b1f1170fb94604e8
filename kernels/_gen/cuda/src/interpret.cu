// Scores by a formula that the driver need not compile: every thread reads the instructions and does each for several elements, whose
// values wait in shared memory. An instruction has its operation in the lowest 8 bits, then 4 bits each for its operands and for where the result
// goes, and from bit 24 on a number. Place 15 is the value before, which stays in registers.
//
// An instruction for 4 elements is about 12 to 25 instructions of the processor and moves 4 to 12 bytes of shared memory for each: for a formula of
// 12 instructions over 4096×11008 weights that is less than a millisecond by these counts, where its compilation takes tens of milliseconds.
#include "formula.h"

const int places = 8, before = 15;

// loadAll loads |elements| of a matrix.
template <int D, int W> DEV void loadAll(const Mat& m, int i, int j, int di, int dj, int n, float (&v)[W]) {
  UNROLL for (int e = 0; e < W; e++) {
    int k = e < n ? e : 0;
    v[e] = fabsf(at<D>(row<D>(m, i + k * di), j + k * dj));
  }
}

// Interpreted computes W elements at a time in blocks of up to T threads.
template <int W, int T> struct Interpreted {
  static const int width = W;
  struct alignas(4 * W) Values {
    float v[W];
  };
  DEV void values(const FormulaArgs& a, int i, int j, int di, int dj, int n, float (&v)[W]) {
    SHARED(Values, held, places * T);
    Values now = {};
    u32 next = a.code[0];
    ROLLED for (int k = 0; k < a.length; k++) {
      u32 c = next, arg = c >> 24, from = c >> 8 & 15, with = c >> 12 & 15, to = c >> 16 & 15;
      next = a.code[k + 1];
      Values x = now, y = now;
      if (from != before) x = held[from * T + tid()];
      if (with != before) y = held[with * T + tid()];
#define EACH(expression) \
  UNROLL for (int e = 0; e < W; e++) now.v[e] = expression
      switch (c & 255) {
        case LOAD_MATRIX: {
          const Mat& m = a.m[arg];
          int type = arg ? a.type1 : a.type0;
          if (type == F32) loadAll<F32>(m, i, j, di, dj, n, now.v);
          else if (type == BF16) loadAll<BF16>(m, i, j, di, dj, n, now.v);
          else loadAll<F16>(m, i, j, di, dj, n, now.v);
          break;
        }
        case LOAD_COL: {
          const float* p = a.vectors[arg];
          EACH(p[j + (e < n ? e : 0) * dj]);
          break;
        }
        case LOAD_ROW: {
          const float* p = a.vectors[arg];
          EACH(p[i + (e < n ? e : 0) * di]);
          break;
        }
        case AFFINE: {
          float base = a.scalars[2 * arg], unit = a.scalars[2 * arg + 1];
          EACH(divRound(subRound(x.v[e], base), unit));
          break;
        }
        case SQUARE: EACH(mulRound(x.v[e], x.v[e])); break;
        case NEGATE: EACH(-x.v[e]); break;
        case ABSOLUTE: EACH(fabsf(x.v[e])); break;
        case LOGARITHM: EACH(logOf(x.v[e])); break;
        case EXPONENTIAL: EACH(expOf(x.v[e])); break;
        case ROOT: EACH(rootOf(x.v[e])); break;
        case TANH: EACH(tanhOf(x.v[e])); break;
        case PLUS: EACH(addRound(x.v[e], y.v[e])); break;
        case MINUS: EACH(subRound(x.v[e], y.v[e])); break;
        case TIMES: EACH(mulRound(x.v[e], y.v[e])); break;
        case QUOTIENT: EACH(quotient(x.v[e], y.v[e])); break;
        case LEAST: EACH(least(x.v[e], y.v[e])); break;
        case MOST: EACH(most(x.v[e], y.v[e])); break;
      }
      if (to != before) held[to * T + tid()] = now;
    }
    UNROLL for (int e = 0; e < W; e++) v[e] = now.v[e];
  }
};

KERNEL(interpret_score, FormulaArgs, 256, 4) { scoreAll<Interpreted<4, 256>>(a); }
KERNEL(interpret_stat, FormulaArgs, 256, 4) { statAll<Interpreted<4, 256>>(a); }
KERNEL(interpret_vector, FormulaArgs, 256, 4) { vectorAll<Interpreted<4, 256>>(a); }
KERNEL(interpret_select, FormulaArgs, 512, 2) { selectAll<Interpreted<2, 512>>(a); }
