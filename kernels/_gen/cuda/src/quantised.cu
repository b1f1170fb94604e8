// Weights in few bits. Eight elements of a row, an octet, are decoded at a time: they lie within one block of every format, and within one
// group of its scales. Every product and difference of a value is rounded by itself, so that values are those of the other backends.
#include "device.h"

// Formats, as the host numbers them.
enum { Q8_0 = 1, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, INT4, INT8 };

// QuantArgs is a weight: rows of codes of U8, and for INT4 and INT8 scales, F32, and zeros, U8 or F32 (absent: null), one for group columns.
struct QuantArgs {
  Mat w, scales, zeros;
  int format, zerosType, group, cols;
};

DEV float half(const u8* p) { return fromF16((u16)(p[0] | p[1] << 8)); }

// eightBytes reads bytes that lie at a multiple of two, or anywhere.
template <bool Even> DEV u64 eightBytes(const u8* p) {
  u64 v = 0;
  if constexpr (Even) {
    UNROLL for (int k = 0; k < 4; k++) v |= (u64)((const u16*)p)[k] << 16 * k;
  } else {
    UNROLL for (int k = 0; k < 8; k++) v |= (u64)p[k] << 8 * k;
  }
  return v;
}

DEV int byteOf(u64 v, int k) { return (int)(v >> 8 * k & 255); }

// pair is the scale and the minimum of group g of a block of Q4_K or Q5_K, six bits each.
DEV void pair(const u8* s, int g, int& scale, int& low) {
  if (g < 4) scale = s[g] & 63, low = s[4 + g] & 63;
  else scale = (s[4 + g] & 15) | s[g - 4] >> 6 << 4, low = s[4 + g] >> 4 | s[g] >> 6 << 4;
}

// zeroOf is what is subtracted from the codes of a group.
template <int F> DEV float zeroOf(const QuantArgs& a, i64 i, int g) {
  if (!a.zeros.p) return F == INT4 ? 8 : 0;
  if (a.zerosType == F32) return row<F32>(a.zeros, i)[g];
  u8 z = row<U8>(a.zeros, i)[g];
  return F == INT4 ? (float)z : (float)(signed char)z;
}

// grouped decodes an octet whose scales lie beside the codes; n of its elements are there.
template <int F> DEV void grouped(const QuantArgs& a, i64 i, int o, int n, float (&v)[8]) {
  const u8* p = row<U8>(a.w, i) + (F == INT4 ? 4 : 8) * (i64)o;
  const float* scales = row<F32>(a.scales, i);
  int at = -1;
  float s = 0, z = 0;
  UNROLL for (int k = 0; k < 8; k++) {
    v[k] = 0;
    if (k < n) {
      int g = (8 * o + k) / a.group;
      if (g != at) at = g, s = scales[g], z = zeroOf<F>(a, i, g);
      float q = F == INT4 ? (float)(p[k / 2] >> k % 2 * 4 & 15) : (float)(signed char)p[k];
      v[k] = mulRound(s, addRound(q, -z));
    }
  }
}

// octet decodes elements 8·o to 8·o+7 of row i; those from column n on are 0.
template <int F, bool Even> DEV void octet(const QuantArgs& a, i64 i, int o, float (&v)[8]) {
  const u8* r = row<U8>(a.w, i);
  if constexpr (F == INT4 || F == INT8) {
    grouped<F>(a, i, o, a.cols - 8 * o, v);
  } else if constexpr (F == Q8_0) {
    const u8* b = r + (i64)(o / 4) * 34;
    float d = half(b);
    u64 q = eightBytes<Even>(b + 2 + o % 4 * 8);
    UNROLL for (int k = 0; k < 8; k++) v[k] = mulRound(d, (float)(signed char)byteOf(q, k));
  } else if constexpr (F <= Q5_1) {
    const int head = F == Q4_0 ? 2 : F == Q4_1 ? 4 : F == Q5_0 ? 6 : 8;  // bytes before the low bits
    const u8* b = r + (i64)(o / 4) * (head + 16);
    float d = half(b), m = F == Q4_1 || F == Q5_1 ? half(b + 2) : 0;
    u64 q = eightBytes<Even>(b + head + o % 2 * 8);
    int high = F == Q5_0 || F == Q5_1 ? b[head - 4 + o % 4] : 0;
    UNROLL for (int k = 0; k < 8; k++) {
      int c = (byteOf(q, k) >> o % 4 / 2 * 4 & 15) | (high >> k & 1) << 4;
      if constexpr (F == Q4_0) v[k] = mulRound(d, (float)(c - 8));
      else if constexpr (F == Q5_0) v[k] = mulRound(d, (float)(c - 16));
      else v[k] = addRound(mulRound(d, (float)c), m);
    }
  } else if constexpr (F == Q6_K) {
    int in = o % 32, part = in / 16;
    const u8* b = r + (i64)(o / 32) * 210;
    float s = mulRound(half(b + 208), (float)(signed char)b[192 + in / 2]);
    u64 low = eightBytes<Even>(b + 64 * part + in % 8 * 8), high = eightBytes<Even>(b + 128 + 32 * part + in % 4 * 8);
    UNROLL for (int k = 0; k < 8; k++) {
      int c = (byteOf(low, k) >> in % 16 / 8 * 4 & 15) | (byteOf(high, k) >> in % 16 / 4 * 2 & 3) << 4;
      v[k] = mulRound(s, (float)(c - 32));
    }
  } else {
    int in = o % 32, scale, low;
    const u8* b = r + (i64)(o / 32) * (F == Q4_K ? 144 : 176);
    pair(b + 4, in / 4, scale, low);
    float s = mulRound(half(b), (float)scale), m = mulRound(half(b + 2), (float)low);
    u64 q = eightBytes<Even>(b + (F == Q4_K ? 16 : 48) + in / 8 * 32 + in % 4 * 8), high = 0;
    if constexpr (F == Q5_K) high = eightBytes<Even>(b + 16 + in % 4 * 8);
    UNROLL for (int k = 0; k < 8; k++) {
      int c = (byteOf(q, k) >> in % 8 / 4 * 4 & 15) | (byteOf(high, k) >> in / 4 & 1) << 4;
      v[k] = addRound(mulRound(s, (float)c), -m);
    }
  }
}

// ValuesArgs: rows of the weight, those that ids names or all, times scale, as elements of a type.
struct ValuesArgs {
  QuantArgs q;
  Mat d;
  const int* ids;
  int type;
  float scale;
};

template <int F, bool Even> DEV void valuesOf(const ValuesArgs& a) {
  int octets = (a.q.cols + 7) / 8;
  for (int i = bx(); i < a.d.rows; i += gx()) {
    i64 from = a.ids ? a.ids[i] : i;
    for (int o = tid(); o < octets; o += nthreads()) {
      float v[8];
      octet<F, Even>(a.q, from, o, v);
      UNROLL for (int k = 0; k < 8; k++) {
        i64 j = 8 * (i64)o + k;
        if (j >= a.q.cols) continue;
        float x = a.scale == 1 ? v[k] : mulRound(v[k], a.scale);
        if (a.type == F32) row<F32>(a.d, i)[j] = x;
        else if (a.type == BF16) row<BF16>(a.d, i)[j] = Type<BF16>::put(x);
        else row<F16>(a.d, i)[j] = Type<F16>::put(x);
      }
    }
  }
}

// FewQuantArgs: products with few rows in x, which read the weight once.
struct FewQuantArgs {
  QuantArgs q;
  Mat d, x;
  const char* bias;
  int biasType, add, vec, unused;
};

const int fewRows = 4;

// few: a warp does one row of the weight for up to four rows of x.
template <int F, bool Even> DEV void fewOf(const FewQuantArgs& a) {
  int lane = tid() % 32, octets = (a.q.cols + 7) / 8;
  i64 n = (i64)bx() * (nthreads() / 32) + tid() / 32;
  if (n >= a.d.cols) return;
  float sum[fewRows] = {0, 0, 0, 0};
  for (int o = lane; o < octets; o += 32) {
    float w[8];
    octet<F, Even>(a.q, n, o, w);
    UNROLL for (int i = 0; i < fewRows; i++)
      if (i < a.x.rows) {
        const float* x = row<F32>(a.x, i) + 8 * (i64)o;
        if (a.vec) {
          F4 lo = *(const F4*)x, hi = *(const F4*)(x + 4);
          UNROLL for (int k = 0; k < 4; k++) sum[i] += w[k] * lo.v[k];
          UNROLL for (int k = 0; k < 4; k++) sum[i] += w[4 + k] * hi.v[k];
        } else {
          UNROLL for (int k = 0; k < 8; k++)
            if (8 * (i64)o + k < a.q.cols) sum[i] += w[k] * x[k];
        }
      }
  }
  UNROLL for (int i = 0; i < fewRows; i++) {
    float v = warpReduce<Sum>(sum[i]);
    if (i < a.x.rows && lane == 0) {
      if (a.bias) v += load(a.bias, a.biasType, n);
      float* d = row<F32>(a.d, i) + n;
      *d = a.add ? *d + v : v;
    }
  }
}

#define QUANT(name, F)                                                        \
  KERNEL(values_##name, ValuesArgs, 256, 2) { valuesOf<F, true>(a); }         \
  KERNEL(values_##name##_odd, ValuesArgs, 256, 2) { valuesOf<F, false>(a); }  \
  KERNEL(few_##name, FewQuantArgs, 256, 2) { fewOf<F, true>(a); }             \
  KERNEL(few_##name##_odd, FewQuantArgs, 256, 2) { fewOf<F, false>(a); }
QUANT(q8_0, Q8_0)
QUANT(q4_0, Q4_0)
QUANT(q4_1, Q4_1)
QUANT(q5_0, Q5_0)
QUANT(q5_1, Q5_1)
QUANT(q4_k, Q4_K)
QUANT(q5_k, Q5_K)
QUANT(q6_k, Q6_K)
QUANT(int4, INT4)
QUANT(int8, INT8)
