// Element-wise operations: activations and their derivatives, sums, conversions, masks, counts, rows by number, rotations.
#include "device.h"

// MapArgs: up to two results and three operands of one shape. vec: every row starts at 16 bytes and has a multiple of 4 columns.
struct MapArgs {
  Mat d, e, a, b, c;
  float scale;
  int vec;
};

// map writes f(a, b, c) to d, or its two results to d and e.
template <int IN, int OUT, class F> DEV void map(const MapArgs& m, F f) {
  int step = gx() * nthreads(), first = bx() * nthreads() + tid();
  for (int i = by(); i < m.d.rows; i += gy()) {
    const float *a = row<F32>(m.a, i), *b = IN > 1 ? row<F32>(m.b, i) : a, *c = IN > 2 ? row<F32>(m.c, i) : a;
    float *d = row<F32>(m.d, i), *e = OUT > 1 ? row<F32>(m.e, i) : d;
    if (m.vec) {
      for (i64 j = first; j < m.d.cols / 4; j += step) {
        F4 x = ((const F4*)a)[j], y = x, z = x, p, q;
        if (IN > 1) y = ((const F4*)b)[j];
        if (IN > 2) z = ((const F4*)c)[j];
        UNROLL for (int k = 0; k < 4; k++) f(x.v[k], y.v[k], z.v[k], p.v[k], q.v[k]);
        ((F4*)d)[j] = p;
        if (OUT > 1) ((F4*)e)[j] = q;
      }
      continue;
    }
    for (i64 j = first; j < m.d.cols; j += step) {
      float p, q;
      f(a[j], b[j], c[j], p, q);
      d[j] = p;
      if (OUT > 1) e[j] = q;
    }
  }
}

struct SiLU {
  DEV float f(float x) { return x / (1 + expf(-x)); }
  DEV float slope(float x) {
    float p = 1 / (1 + expf(-x)), v = p * (1 / (1 + expf(x)));
    return p + (v == 0 ? 0 : x * v);
  }
};
struct GELU {
  DEV float f(float x) { return 0.5f * x * erfcf(-x * 0.70710678f); }
  DEV float slope(float x) {
    float v = expf(-0.5f * x * x) * 0.39894228f;
    return 0.5f * erfcf(-x * 0.70710678f) + (v == 0 ? 0 : x * v);
  }
};
struct GELUTanh {
  DEV float twice(float x) { return 1.5957691f * (x + 0.044715f * x * x * x); }
  DEV float f(float x) { return x / (1 + expf(-twice(x))); }
  DEV float slope(float x) {
    float u = twice(x), p = 1 / (1 + expf(-u)), v = p * (1 / (1 + expf(u)));
    return p + (v == 0 ? 0 : x * 1.5957691f * (1 + 3 * 0.044715f * x * x) * v);
  }
};
struct ReLU {
  DEV float f(float x) { return x <= 0 ? 0 : x; }
  DEV float slope(float x) { return x <= 0 ? 0 : 1; }
};

#define ACTIVATION(name, A)                                                                                             \
  KERNEL(activate_##name, MapArgs, 256, 4) {                                                                            \
    map<1, 1>(a, [](float x, float, float, float& d, float&) { d = A::f(x); });                                         \
  }                                                                                                                     \
  KERNEL(gate_##name, MapArgs, 256, 4) {                                                                                \
    map<2, 1>(a, [](float g, float u, float, float& d, float&) { d = A::f(g) * u; });                                   \
  }                                                                                                                     \
  KERNEL(activate_back_##name, MapArgs, 256, 4) {                                                                       \
    map<2, 1>(a, [](float g, float x, float, float& d, float&) { d = g * A::slope(x); });                               \
  }                                                                                                                     \
  KERNEL(gate_back_##name, MapArgs, 256, 4) {                                                                           \
    map<3, 2>(a, [](float g, float x, float u, float& d, float& e) { d = g * u * A::slope(x), e = g * A::f(x); });      \
  }
ACTIVATION(silu, SiLU)
ACTIVATION(gelu, GELU)
ACTIVATION(gelutanh, GELUTanh)
ACTIVATION(relu, ReLU)

KERNEL(add, MapArgs, 256, 4) {
  float s = a.scale;
  map<2, 1>(a, [s](float x, float y, float, float& d, float&) { d = x + s * y; });
}
KERNEL(softcap, MapArgs, 256, 4) {
  float cap = a.scale;
  map<1, 1>(a, [cap](float x, float, float, float& d, float&) { d = cap * tanhf(x / cap); });
}
KERNEL(softcap_back, MapArgs, 256, 4) {
  float cap = a.scale;
  map<2, 1>(a, [cap](float g, float y, float, float& d, float&) {
    float t = y / cap;
    d = g * ((1 - t) * (1 + t));
  });
}
KERNEL(add_square, MapArgs, 256, 4) {
  float s = a.scale;
  map<2, 1>(a, [s](float acc, float x, float, float& d, float&) { d = acc + (s * x) * (s * x); });
}

// PairArgs: a result and an operand of one shape, of types that the kernel's name gives.
struct PairArgs {
  Mat d, x;
};

// odd rounds to float such that a later rounding to 16 bits is that of v itself: what is not exact gets an odd last bit.
DEV float odd(double v) {
  float f = (float)v;
  if ((double)f == v || v != v) return f;
  u32 u = bitsOf(f);
  if (fabs((double)f) > fabs(v)) u--;
  return floatOf(u | 1);
}

template <int S> struct Wide {
  DEV float get(typename Type<S>::T v) { return Type<S>::get(v); }
};
template <> struct Wide<F64> {
  DEV double get(double v) { return v; }
};
template <int D> struct Narrow {
  DEV typename Type<D>::T put(float v) { return Type<D>::put(v); }
  DEV typename Type<D>::T put(double v) { return Type<D>::put(odd(v)); }
};
template <> struct Narrow<F32> {
  DEV float put(float v) { return v; }
  DEV float put(double v) { return (float)v; }
};
template <> struct Narrow<F64> {
  DEV double put(double v) { return v; }
};

// convert keeps four independent elements in flight.
template <int D, int S> DEV void convert(const PairArgs& a) {
  i64 step = (i64)gx() * nthreads();
  for (int i = by(); i < a.d.rows; i += gy()) {
    typename Type<S>::T* x = row<S>(a.x, i);
    typename Type<D>::T* d = row<D>(a.d, i);
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.d.cols; j += 4 * step) {
      typename Type<S>::T v[4];
      UNROLL for (int k = 0; k < 4; k++)
        if (j + k * step < a.d.cols) v[k] = x[j + k * step];
      UNROLL for (int k = 0; k < 4; k++)
        if (j + k * step < a.d.cols) d[j + k * step] = Narrow<D>::put(Wide<S>::get(v[k]));
    }
  }
}
#define CONVERT(dn, D, sn, S) \
  KERNEL(convert_##dn##_##sn, PairArgs, 256, 4) { convert<D, S>(a); }
#define CONVERT_TO(dn, D) \
  CONVERT(dn, D, f32, F32) CONVERT(dn, D, bf16, BF16) CONVERT(dn, D, f16, F16) CONVERT(dn, D, f64, F64)
CONVERT_TO(f32, F32)
CONVERT_TO(bf16, BF16)
CONVERT_TO(f16, F16)
CONVERT_TO(f64, F64)

// apply_mask writes +0 where the mask is 0; only what is dropped is written.
template <int D> DEV void applyMask(const PairArgs& a) {
  for (int i = by(); i < a.d.rows; i += gy()) {
    typename Type<D>::T* w = row<D>(a.d, i);
    const u8* keep = row<U8>(a.x, i);
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.d.cols; j += (i64)gx() * nthreads())
      if (keep[j] == 0) w[j] = 0;
  }
}

// CountArgs: a number is added to, or lowered to, *out.
struct CountArgs {
  Mat x;
  u64* out;
};

template <int D> DEV void countZero(const CountArgs& a) {
  u64 n = 0;
  for (int i = by(); i < a.x.rows; i += gy()) {
    const typename Type<D>::T* x = row<D>(a.x, i);
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.x.cols; j += (i64)gx() * nthreads()) n += Type<D>::get(x[j]) == 0;
  }
  n = blockReduce<Sum>(n, (u64)0);
  if (tid() == 0 && n > 0) addAtomic(a.out, n);
}

template <int D> DEV void nonFinite(const CountArgs& a) {
  u64 first = ~(u64)0;
  for (int i = by(); i < a.x.rows; i += gy()) {
    const typename Type<D>::T* x = row<D>(a.x, i);
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.x.cols; j += (i64)gx() * nthreads()) {
      u64 at = (u64)i * a.x.cols + j;
      if ((bitsOf(Type<D>::get(x[j])) & 0x7f800000) == 0x7f800000 && at < first) first = at;
    }
  }
  if (first != ~(u64)0) minAtomic(a.out, first);
}

#define WEIGHTS(name, D)                                                   \
  KERNEL(apply_mask_##name, PairArgs, 256, 4) { applyMask<D>(a); }         \
  KERNEL(count_zero_##name, CountArgs, 256, 4) { countZero<D>(a); }        \
  KERNEL(non_finite_##name, CountArgs, 256, 4) { nonFinite<D>(a); }
WEIGHTS(f32, F32)
WEIGHTS(bf16, BF16)
WEIGHTS(f16, F16)
KERNEL(count_zero_u8, CountArgs, 256, 4) { countZero<U8>(a); }

// RowsArgs: rows by number. In gather, d[i] = x[ids[i]]·scale; in scatter_add, d[ids[i]] += x[i]·scales[i].
struct RowsArgs {
  Mat d, x;
  const int* ids;
  const float* scales;
  float scale;
  int type;
};

KERNEL(gather, RowsArgs, 256, 4) {
  for (int i = by(); i < a.d.rows; i += gy()) {
    float* d = row<F32>(a.d, i);
    i64 start = a.ids[i] * a.x.stride;
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.d.cols; j += (i64)gx() * nthreads())
      d[j] = mulRound(load(a.x.p, a.type, start + j), a.scale);
  }
}

KERNEL(scatter_add, RowsArgs, 256, 4) {
  for (int i = by(); i < a.x.rows; i += gy()) {
    float *d = row<F32>(a.d, a.ids[i]), *x = row<F32>(a.x, i), s = a.scales[i];
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.x.cols; j += (i64)gx() * nthreads()) d[j] += x[j] * s;
  }
}

// GroupArgs: row targets[g] of d receives the sum of the rows order[starts[g] … starts[g+1]) of x, in that order, times scale.
struct GroupArgs {
  Mat d, x;
  const int *targets, *starts, *order;
  int groups;
  float scale;
};

KERNEL(gather_back, GroupArgs, 256, 4) {
  for (int g = by(); g < a.groups; g += gy()) {
    float* d = row<F32>(a.d, a.targets[g]);
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.d.cols; j += (i64)gx() * nthreads()) {
      float sum = 0;
      for (int k = a.starts[g]; k < a.starts[g + 1]; k++) sum += row<F32>(a.x, a.order[k])[j];
      d[j] += a.scale * sum;
    }
  }
}

// ShardArgs: a row of x is l rows of pool side by side; shard s, at row s/l from column s%l·pool.cols on, is row ids[s] of the pool.
// In scatter, row targets[g] of the pool receives the shards order[starts[g] … starts[g+1]).
struct ShardArgs {
  Mat pool, x;
  const int *ids, *targets, *starts, *order;
  int l, count;  // of shards, or of targets
};

DEV float* shardOf(const ShardArgs& a, int s) { return row<F32>(a.x, s / a.l) + (i64)(s % a.l) * a.pool.cols; }

KERNEL(assemble, ShardArgs, 256, 4) {
  for (int s = by(); s < a.count; s += gy()) {
    float *d = shardOf(a, s), *x = row<F32>(a.pool, a.ids[s]);
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.pool.cols; j += (i64)gx() * nthreads()) d[j] = x[j];
  }
}

// scatter adds one shard after the other, each element by one thread: the bits are those of the host.
KERNEL(scatter, ShardArgs, 256, 4) {
  for (int g = by(); g < a.count; g += gy()) {
    float* d = row<F32>(a.pool, a.targets[g]);
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.pool.cols; j += (i64)gx() * nthreads()) {
      float sum = d[j];
      for (int k = a.starts[g]; k < a.starts[g + 1]; k++) sum += shardOf(a, a.order[k])[j];
      d[j] = sum;
    }
  }
}

// RopeArgs: rotations of the first 2·half channels of every head.
struct RopeArgs {
  Mat x, cos, sin;
  const int* pos;
  i64 headStride;
  int heads, half, second, step;
  float sign;
};

KERNEL(rope, RopeArgs, 256, 4) {
  int pairs = a.heads * a.half;
  for (int t = by(); t < a.x.rows; t += gy()) {
    float *x = row<F32>(a.x, t), *cos = row<F32>(a.cos, a.pos[t]), *sin = row<F32>(a.sin, a.pos[t]);
    for (int n = bx() * nthreads() + tid(); n < pairs; n += gx() * nthreads()) {
      int h = n / a.half, i = n - h * a.half;
      float* p = x + h * a.headStride + (i64)i * a.step;
      float u = p[0], v = p[a.second], c = cos[i], s = a.sign * sin[i];
      p[0] = u * c - v * s;
      p[a.second] = v * c + u * s;
    }
  }
}
