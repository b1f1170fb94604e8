// What the kernels are written in. The same sources compile for NVIDIA devices (through NVRTC, to PTX) and for the host, where
// host.h runs every thread of a block as a fibre, so that barriers and exchanges between lanes behave as on a device.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifdef __CUDACC_RTC__

#define DEV static __device__ __forceinline__
#define MEMBER __device__ __forceinline__
#define SHARED(type, name, n) __shared__ __align__(16) type name[n]
#define UNROLL _Pragma("unroll")
#define UNROLL4 _Pragma("unroll 4")
#define ROLLED _Pragma("unroll 1")
#define PRAGMA(text) _Pragma(#text)
#define UNROLL_BY(n) PRAGMA(unroll(n))
// KERNEL defines an entry point whose one parameter is a struct; threads bounds the size of a block, blocks is how many of
// them shall fit a multiprocessor.
#define KERNEL(name, Args, threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Args a)

DEV int tid() { return threadIdx.x; }
DEV int nthreads() { return blockDim.x; }
DEV int bx() { return blockIdx.x; }
DEV int by() { return blockIdx.y; }
DEV int bz() { return blockIdx.z; }
DEV int gx() { return gridDim.x; }
DEV int gy() { return gridDim.y; }
DEV void sync() { __syncthreads(); }
// syncOr is sync, and reports whether any thread brought true.
DEV bool syncOr(bool p) { return __syncthreads_or(p); }
DEV void syncwarp() { __syncwarp(); }
template <class T> DEV T shflXor(T v, int m) { return __shfl_xor_sync(0xffffffffu, v, m); }
template <class T> DEV T shflUp(T v, int d) { return __shfl_up_sync(0xffffffffu, v, d); }
template <class T> DEV T shfl(T v, int l) { return __shfl_sync(0xffffffffu, v, l); }
DEV u32 ballot(bool p) { return __ballot_sync(0xffffffffu, p); }
DEV int popc(u32 v) { return __popc(v); }
DEV u32 bitsOf(float f) { return __float_as_uint(f); }
DEV float floatOf(u32 u) { return __uint_as_float(u); }
DEV void addAtomic(u32* p, u32 v) { atomicAdd(p, v); }
DEV void addAtomic(u64* p, u64 v) { atomicAdd(p, v); }
DEV void minAtomic(u64* p, u64 v) { atomicMin(p, v); }
DEV float mulRound(float a, float b) { return __fmul_rn(a, b); }
DEV float addRound(float a, float b) { return __fadd_rn(a, b); }
DEV float fromF16(u16 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
DEV u16 toF16(float f) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}

// copy16 starts the copy of 16 bytes to shared memory, or writes zeros unless take.
DEV void copy16(void* shared, const void* global, bool take) {
  u32 s = (u32)__cvta_generic_to_shared(shared);
  int n = take ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(s), "l"(global), "r"(n) : "memory");
}
DEV void copyCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEV void copyWait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// loadMatrices loads four 8×8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8.
DEV void loadMatrices(u32 (&r)[4], const void* row) {
  u32 s = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(s) : "memory");
}
// loadTransposed loads them with rows and columns exchanged.
DEV void loadTransposed(u32 (&r)[4], const void* row) {
  u32 s = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(s) : "memory");
}
// multiply adds a 16×16 times 16×8 product of bfloat16 to c.
DEV void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else
#include "host.h"
#endif

// Mat is a view of a matrix: element (i, j) lies at p + (i·stride + j) elements.
struct Mat {
  char* p;
  i64 stride;
  int rows, cols;
};

// Chunk is 16 bytes of elements, read and written at once where they lie at a multiple of 16.
struct alignas(16) Chunk {
  u32 w[4];
};

struct alignas(16) F4 {
  float v[4];
};

// Element types, as the host numbers them.
enum { F32 = 1, BF16 = 2, F16 = 3, F64 = 4, I64 = 5, I32 = 6, U8 = 7 };

template <int D> struct Type;
template <> struct Type<F32> {
  typedef float T;
  DEV float get(float v) { return v; }
  DEV float put(float v) { return v; }
};
template <> struct Type<BF16> {
  typedef u16 T;
  DEV float get(u16 v) { return floatOf((u32)v << 16); }
  DEV u16 put(float v) {
    u32 u = bitsOf(v);
    return (u & 0x7fffffff) > 0x7f800000 ? (u16)(u >> 16 | 0x40) : (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
};
template <> struct Type<F16> {
  typedef u16 T;
  DEV float get(u16 v) { return fromF16(v); }
  DEV u16 put(float v) { return toF16(v); }
};
template <> struct Type<F64> {
  typedef double T;
};
template <> struct Type<U8> {
  typedef u8 T;
  DEV float get(u8 v) { return v; }
};

// row is the start of row i of a matrix of element type D.
template <int D> DEV typename Type<D>::T* row(const Mat& m, i64 i) { return (typename Type<D>::T*)m.p + i * m.stride; }

// at reads element j of a row as float.
template <int D> DEV float at(const typename Type<D>::T* p, i64 j) { return Type<D>::get(p[j]); }

// load reads an element of a weight whose type is known at run time only.
DEV float load(const char* p, int d, i64 j) {
  return d == F32 ? ((const float*)p)[j] : d == BF16 ? at<BF16>((const u16*)p, j) : at<F16>((const u16*)p, j);
}

// chunked is how many elements of type D a chunk has.
template <int D> struct Chunked {
  static const int size = D == F32 ? 4 : 8;
};

// part is element e of a chunk.
template <int D> DEV float part(const Chunk& c, int e) {
  if constexpr (D == F32) return floatOf(c.w[e]);
  else return Type<D>::get((u16)(c.w[e / 2] >> e % 2 * 16));
}

// chunkAt reads the elements from p on, of which some may be absent: those from number n on, and before number from. whole: none is, and
// p is a multiple of 16.
template <int D> DEV Chunk chunkAt(const typename Type<D>::T* p, bool whole, int from, int n) {
  if (whole) return *(const Chunk*)p;
  Chunk c = {};
  UNROLL for (int e = 0; e < Chunked<D>::size; e++)
    if (e >= from && e < n) {
      if constexpr (D == F32) c.w[e] = bitsOf(p[e]);
      else c.w[e / 2] |= (u32)p[e] << e % 2 * 16;
    }
  return c;
}

struct Sum {
  template <class T> DEV T of(T x, T y) { return x + y; }
};
struct Max {
  template <class T> DEV T of(T x, T y) { return y > x ? y : x; }
};

// warpReduce combines a value of every lane, in a fixed order.
template <class Op, class T> DEV T warpReduce(T v) {
  for (int m = 16; m > 0; m >>= 1) v = Op::of(v, shflXor(v, m));
  return v;
}

// blockReduce combines a value of every thread, in a fixed order, and gives the result to all. The block is a whole number of
// warps.
template <class Op, class T> DEV T blockReduce(T v, T none) {
  SHARED(T, part, 32);
  v = warpReduce<Op>(v);
  if (tid() % 32 == 0) part[tid() / 32] = v;
  sync();
  v = tid() % 32 < nthreads() / 32 ? part[tid() % 32] : none;
  v = warpReduce<Op>(v);
  sync();
  return v;
}

// blockBefore is the sum of v over the threads before this one, and total that over all.
DEV u32 blockBefore(u32 v, u32& total) {
  SHARED(u32, part, 32);
  int lane = tid() % 32, warp = tid() / 32;
  u32 sum = v;
  for (int d = 1; d < 32; d <<= 1) {
    u32 o = shflUp(sum, d);
    if (lane >= d) sum += o;
  }
  if (lane == 31) part[warp] = sum;
  sync();
  u32 before = 0;
  total = 0;
  for (int i = 0; i < nthreads() / 32; i++) {
    if (i < warp) before += part[i];
    total += part[i];
  }
  sync();
  return before + sum - v;
}
