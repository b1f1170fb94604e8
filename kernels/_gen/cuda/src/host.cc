// Fibres: every thread of a block has a stack of its own and runs until it waits at a barrier.
#include <sys/mman.h>
#include <cstdlib>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#include "host.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace host {
Place place;
u64 slots[1024];

namespace {
const size_t stackSize = (64 << 10) + 17 * 64;  // no power of two: the tops of all stacks would share a few sets of the cache

struct Fibre {
#if defined(__x86_64__)
  void* sp;
#else
  ucontext_t context;
#endif
  bool done;
};
Fibre fibres[1024], outside;
char* stacks;
Body body;
const void* arguments;
int count, blockWaiting, blockAlive, warpWaiting[32], warpAlive[32];
unsigned blockTurn, warpTurn[32];

#if defined(__x86_64__)
extern "C" void fibreSwitch(void** save, void* load);
asm(R"(
.text
.local fibreSwitch
.type fibreSwitch, @function
fibreSwitch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size fibreSwitch, .-fibreSwitch
)");
void go(Fibre& from, Fibre& to) { fibreSwitch(&from.sp, to.sp); }
#else
void go(Fibre& from, Fibre& to) { swapcontext(&from.context, &to.context); }
#endif

// to continues with thread n.
void to(int n) {
  int me = place.tid;
  place.tid = n;
  go(fibres[me], fibres[n]);
}

// next is the thread after n among those of [lo, hi) that are not done; n itself if it is alone.
int next(int n, int lo, int hi) {
  do n = n + 1 < hi ? n + 1 : lo;
  while (fibres[n].done);
  return n;
}

void release() {
  if (blockAlive > 0 && blockWaiting == blockAlive) blockWaiting = 0, blockTurn++;
}
void releaseWarp(int w) {
  if (warpAlive[w] > 0 && warpWaiting[w] == warpAlive[w]) warpWaiting[w] = 0, warpTurn[w]++;
}

void start() {
  body(arguments);
  int me = place.tid, w = me / 32;
  fibres[me].done = true;
  blockAlive--, warpAlive[w]--;
  release();
  releaseWarp(w);
  if (blockAlive == 0) {
    go(fibres[me], outside);
  }
  to(next(me, 0, count));
}

void prepare(int n) {
  fibres[n].done = false;
  char* top = stacks + (n + 1) * stackSize;
#if defined(__x86_64__)
  void** sp = (void**)top;
  *--sp = nullptr;         // keeps the stack aligned as after a call
  *--sp = (void*)start;
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  fibres[n].sp = sp;
#else
  getcontext(&fibres[n].context);
  fibres[n].context.uc_stack.ss_sp = top - stackSize;
  fibres[n].context.uc_stack.ss_size = stackSize;
  makecontext(&fibres[n].context, start, 0);
#endif
}
}  // namespace

void blockBarrier() {
  unsigned turn = blockTurn;
  blockWaiting++;
  release();
  while (turn == blockTurn) to(next(place.tid, 0, count));
}

void warpBarrier() {
  int w = place.tid / 32;
  unsigned turn = warpTurn[w];
  warpWaiting[w]++;
  releaseWarp(w);
  int hi = w * 32 + 32;
  while (turn == warpTurn[w]) to(next(place.tid, w * 32, hi < count ? hi : count));
}

bool lastOfWarp() { return warpWaiting[place.tid / 32] == warpAlive[place.tid / 32] - 1; }

void run(Body b, const void* args, const unsigned grid[3], unsigned threads) {
  if (stacks == nullptr) {
    stacks = (char*)mmap(nullptr, 1024 * stackSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) abort();
  }
  body = b, arguments = args, count = threads;
  place.nthreads = threads, place.gx = grid[0], place.gy = grid[1];
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) {
        place.bx = x, place.by = y, place.bz = z, place.tid = 0;
        blockAlive = count, blockWaiting = 0;
        for (int w = 0; w * 32 < count; w++) warpAlive[w] = count - w * 32 < 32 ? count - w * 32 : 32, warpWaiting[w] = 0;
        for (int n = 0; n < count; n++) prepare(n);
        go(outside, fibres[0]);
      }
}
}  // namespace host
