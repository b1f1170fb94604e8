// The host's side of device.h: threads are fibres of one operating-system thread, blocks run one after the other.
#pragma once
#include <cmath>
#include <cstring>

#define DEV static inline
#define MEMBER inline
#define SHARED(type, name, n) alignas(16) static type name[n]
#define UNROLL
#define UNROLL4
#define ROLLED
#define UNROLL_BY(n)
#define __restrict__ __restrict

namespace host {
// State of the thread that runs: its place in block and grid.
struct Place {
  int tid, nthreads, bx, by, bz, gx, gy;
};
extern Place place;
typedef void (*Body)(const void* args);
void blockBarrier();
void warpBarrier();
bool lastOfWarp();  // whether all other lanes wait at a barrier of the warp
extern u64 slots[1024];  // one for every thread of the block, for exchanges within a warp
void run(Body body, const void* args, const unsigned grid[3], unsigned threads);
}  // namespace host

// KERNEL defines the body, and for the driver's stand-in an entry with its name and the size of its argument.
#define KERNEL(name, Args, threads, blocks)                                     \
  static void name##Body(const Args& a);                                        \
  static void name##Run(const void* p) { name##Body(*(const Args*)p); }         \
  extern "C" {                                                                  \
  host::Body name##Entry = name##Run;                                           \
  unsigned name##Size = sizeof(Args), name##Threads = threads;                  \
  }                                                                             \
  static void name##Body(const Args& a)

DEV int tid() { return host::place.tid; }
DEV int nthreads() { return host::place.nthreads; }
DEV int bx() { return host::place.bx; }
DEV int by() { return host::place.by; }
DEV int bz() { return host::place.bz; }
DEV int gx() { return host::place.gx; }
DEV int gy() { return host::place.gy; }
DEV void sync() { host::blockBarrier(); }
DEV bool syncOr(bool p) {
  host::slots[tid()] = p;
  host::blockBarrier();
  u64 any = 0;
  for (int i = 0; i < nthreads(); i++) any |= host::slots[i];
  host::blockBarrier();
  return any;
}
DEV void syncwarp() { host::warpBarrier(); }

// exchange gives every lane the value of the lane that from names. The lane that comes last does it for all.
template <class T> DEV T exchange(T v, int from) {
  struct Post {
    T v, result;
    int from;
  } mine = {v, v, from};
  int me = tid(), base = me & ~31;
  host::slots[me] = (u64)&mine;
  if (host::lastOfWarp())
    for (int i = 0; i < 32 && base + i < nthreads(); i++) {
      Post* p = (Post*)host::slots[base + i];
      p->result = ((Post*)host::slots[base + p->from])->v;
    }
  host::warpBarrier();
  return mine.result;
}
template <class T> DEV T shflXor(T v, int m) { return exchange(v, (tid() & 31) ^ m); }
template <class T> DEV T shflUp(T v, int d) {
  int lane = tid() & 31;
  return exchange(v, lane >= d ? lane - d : lane);
}
template <class T> DEV T shfl(T v, int l) { return exchange(v, l); }
DEV u32 ballot(bool p) {
  int me = tid(), base = me & ~31;
  host::slots[me] = p;
  host::warpBarrier();
  u32 all = 0;
  for (int i = 0; i < 32 && base + i < nthreads(); i++) all |= (u32)host::slots[base + i] << i;
  host::warpBarrier();
  return all;
}
DEV int popc(u32 v) { return __builtin_popcount(v); }
DEV u32 bitsOf(float f) {
  u32 u;
  memcpy(&u, &f, 4);
  return u;
}
DEV float floatOf(u32 u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
DEV void addAtomic(u32* p, u32 v) { *p += v; }
DEV void addAtomic(u64* p, u64 v) { *p += v; }
DEV void minAtomic(u64* p, u64 v) {
  if (v < *p) *p = v;
}
DEV float mulRound(float a, float b) { return a * b; }
DEV float addRound(float a, float b) { return a + b; }
DEV float fromF16(u16 h) {
  u32 sign = (u32)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
  if (e == 0) return floatOf(sign | bitsOf(m * (1.0f / (1 << 24))));
  return floatOf(sign | (e == 31 ? 0x7f800000 | m << 13 : (e + 112) << 23 | m << 13));
}
DEV u16 toF16(float f) {
  u32 u = bitsOf(f);
  u16 sign = u >> 16 & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) return sign | 0x7e00;
  if (u >= 0x477ff000) return sign | 0x7c00;
  if (u < 0x38800000) return sign | (u16)(bitsOf(floatOf(u) + 0.5f) - 0x3f000000);
  return sign | (u16)((u - 0x38000000 + 0xfff + (u >> 13 & 1)) >> 13);
}
DEV void copy16(void* shared, const void* global, bool take) {
  if (take) memcpy(shared, global, 16);
  else memset(shared, 0, 16);
}
DEV void copyCommit() {}
template <int N> DEV void copyWait() {}
DEV void loadMatrices(u32 (&r)[4], const void* row) {
  struct Post {
    u32* r;
    const char* row;
  } mine = {r, (const char*)row};
  int me = tid(), base = me & ~31;
  host::slots[me] = (u64)&mine;
  if (host::lastOfWarp())
    for (int l = 0; l < 32; l++)
      for (int j = 0; j < 4; j++)
        memcpy(&((Post*)host::slots[base + l])->r[j], ((Post*)host::slots[base + 8 * j + l / 4])->row + l % 4 * 4, 4);
  host::warpBarrier();
}
DEV void loadTransposed(u32 (&r)[4], const void* row) {
  struct Post {
    u32* r;
    const char* row;
  } mine = {r, (const char*)row};
  int me = tid(), base = me & ~31;
  host::slots[me] = (u64)&mine;
  if (host::lastOfWarp())
    for (int l = 0; l < 32; l++)
      for (int j = 0; j < 4; j++) {
        u16 v[2];
        for (int e = 0; e < 2; e++) memcpy(v + e, ((Post*)host::slots[base + 8 * j + l % 4 * 2 + e])->row + l / 4 * 2, 2);
        ((Post*)host::slots[base + l])->r[j] = v[0] | (u32)v[1] << 16;
      }
  host::warpBarrier();
}
DEV void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  struct Post {
    float* c;
    const u32* a;
    u32 b[2];
  } mine = {c, a, {b0, b1}};
  int me = tid(), base = me & ~31;
  host::slots[me] = (u64)&mine;
  if (host::lastOfWarp()) {
    float x[16][16], w[16][8], sum[8];
    for (int l = 0; l < 32; l++) {
      const Post* p = (const Post*)host::slots[base + l];
      int g = l / 4, t = l % 4 * 2;
      for (int h = 0; h < 2; h++) {
        w[t + 8 * h][g] = floatOf(p->b[h] << 16), w[t + 8 * h + 1][g] = floatOf(p->b[h] & 0xffff0000);
        for (int i = 0; i < 2; i++) {
          u32 v = p->a[2 * h + i];
          x[g + 8 * i][t + 8 * h] = floatOf(v << 16), x[g + 8 * i][t + 8 * h + 1] = floatOf(v & 0xffff0000);
        }
      }
    }
    for (int i = 0; i < 16; i++) {
      for (int n = 0; n < 8; n++) sum[n] = ((Post*)host::slots[base + i % 8 * 4 + n / 2])->c[i / 8 * 2 + n % 2];
      for (int k = 0; k < 16; k++)
        for (int n = 0; n < 8; n++) sum[n] += x[i][k] * w[k][n];
      for (int n = 0; n < 8; n++) ((Post*)host::slots[base + i % 8 * 4 + n / 2])->c[i / 8 * 2 + n % 2] = sum[n];
    }
  }
  host::warpBarrier();
}
