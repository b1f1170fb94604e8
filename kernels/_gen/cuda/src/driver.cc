// A stand-in for libcuda.so.1: devices with memory of the host, streams as queues that run as late as the driver may, and kernels
// from the host build. It checks what a real driver would fault on: contexts, addresses, pinned memory, the sizes of arguments and
// blocks. The environment variable FAKE_CUDA injects faults, as a comma-separated list:
//
//	devices=N memory=BYTES major=M minor=M driver=V   what there is (1 device, 1 GiB, 9.0, 13000)
//	nopool                                            no stream-ordered allocation
//	fail:NAME=CODE@K                                  the K-th call (from 1) of a function fails
//	lost@K                                            the K-th launch loses the device: everything after it fails
#include <dlfcn.h>
#include <pthread.h>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#include "host.h"

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, BAD_DEVICE = 101, BAD_IMAGE = 200, BAD_CONTEXT = 201, BAD_PTX = 218, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL = 700, BAD_ADDRESS = 716 };

namespace {
typedef std::function<int()> Work;

struct Event {
  u64 recorded = 0, done = 0;  // numbers of the last record and of the last that ran
};
struct Item {
  Work work;
  Event* waitFor = nullptr;
  u64 number = 0;
};
struct Stream {
  std::deque<Item> items;
  bool draining = false;
};
struct Function {
  host::Body body;
  u32 size, threads;
};
struct Module {
  std::vector<Function*> functions;
};
struct Device {
  u64 used = 0, total = 0;
  int retained = 0;
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
__thread Device* current;
std::vector<Device> devices;
std::map<u64, u64> blocks;    // device memory: address, size
std::map<u64, u64> pinned;
std::set<Stream*> streams;
std::set<Event*> events;
std::set<Module*> modules;
std::map<std::string, std::pair<int, int>> faults;  // name: code, call
std::map<std::string, int> calls;
int sticky, launches, lostAt, major_ = 9, minor_ = 0, driver_ = 13000, pool = 1;

struct Guard {
  Guard() { pthread_mutex_lock(&lock); }
  ~Guard() { pthread_mutex_unlock(&lock); }
};

void configure() {
  int n = 1;
  u64 memory = 1u << 30;
  std::string all = getenv("FAKE_CUDA") ? getenv("FAKE_CUDA") : "";
  for (size_t i = 0; i < all.size();) {
    size_t e = all.find(',', i);
    std::string s = all.substr(i, e == std::string::npos ? e : e - i);
    i = e == std::string::npos ? all.size() : e + 1;
    char name[64];
    int code, call;
    sscanf(s.c_str(), "devices=%d", &n);
    sscanf(s.c_str(), "memory=%llu", &memory);
    sscanf(s.c_str(), "major=%d", &major_);
    sscanf(s.c_str(), "minor=%d", &minor_);
    sscanf(s.c_str(), "driver=%d", &driver_);
    sscanf(s.c_str(), "lost@%d", &lostAt);
    if (s == "nopool") pool = 0;
    if (sscanf(s.c_str(), "fail:%63[^=]=%d@%d", name, &code, &call) == 3) faults[name] = {code, call};
  }
  devices.resize(n);
  for (auto& d : devices) d.total = memory;
}

int fault(const char* name) {
  int n = ++calls[name];
  auto f = faults.find(name);
  if (f != faults.end() && f->second.second == n) return f->second.first;
  return sticky;
}

// ENTER begins a function: the lock, an injected fault, and a context where one is needed.
#define ENTER(name)                 \
  Guard guard;                      \
  if (int r = fault(name)) return r
#define CONTEXT(name) \
  ENTER(name);        \
  if (current == nullptr) return BAD_CONTEXT

// inside reports whether [p, p+n) is allocated.
bool inside(const std::map<u64, u64>& m, u64 p, u64 n) {
  auto i = m.upper_bound(p);
  if (i == m.begin()) return false;
  --i;
  return p + n <= i->first + i->second;
}

// drain completes a stream, and what it waits for in others. One that is being completed already is left alone, and a nested call stops
// where it would have to wait for that one, so that streams that wait for each other in turns do not call each other without end.
int drain(Stream* s, bool nested = false) {
  static u64 progress;
  s->draining = true;
  struct Left {
    Stream* s;
    ~Left() { s->draining = false; }
  } left{s};
  if (sticky) s->items.clear();  // a device that is lost does nothing any more
  while (!s->items.empty()) {
    Event* e = s->items.front().waitFor;
    if (e != nullptr && e->done < s->items.front().number) {
      u64 number = s->items.front().number, before = progress;
      for (Stream* o : streams)
        if (!o->draining && e->done < number)
          if (int r = drain(o, true)) return r;
      if (e->done < number && progress == before) {
        if (nested) return sticky;
        fprintf(stderr, "fake driver: a stream waits for an event that is never recorded\n");
        abort();
      }
      continue;
    }
    Work work = s->items.front().work;
    s->items.pop_front();
    progress++;
    if (work)
      if (int r = work()) {
        s->items.clear();
        return sticky = r;
      }
  }
  return sticky;
}

int drainAll() {
  for (Stream* s : streams)
    if (int r = drain(s)) return r;
  return sticky;
}

Stream* of(void* s) { return (Stream*)s; }

bool bad(void* s) { return streams.count(of(s)) == 0; }

int release(u64 p, Device* d) {
  auto b = blocks.find(p);
  if (b == blocks.end()) return INVALID;
  memset((void*)p, 0xEE, b->second);
  d->used -= b->second;
  blocks.erase(b);
  free((void*)p);
  return OK;
}

int allocate(u64* p, size_t n) {
  if (n == 0) return INVALID;
  if (current->used + n > current->total) return OUT_OF_MEMORY;
  void* m = aligned_alloc(512, (n + 511) / 512 * 512);
  if (m == nullptr) return OUT_OF_MEMORY;
  memset(m, 0xCC, n);
  *p = (u64)m;
  blocks[*p] = n;
  current->used += n;
  return OK;
}
}  // namespace

extern "C" {
int cuInit(unsigned) {
  {
    Guard g;
    if (devices.empty()) configure();
  }
  ENTER("cuInit");
  return devices.empty() ? NO_DEVICE : OK;
}
int cuDriverGetVersion(int* v) {
  ENTER("cuDriverGetVersion");
  *v = driver_;
  return OK;
}
int cuDeviceGetCount(int* n) {
  ENTER("cuDeviceGetCount");
  *n = devices.size();
  return OK;
}
int cuDeviceGet(int* d, int i) {
  ENTER("cuDeviceGet");
  if (i < 0 || i >= (int)devices.size()) return BAD_DEVICE;
  *d = i;
  return OK;
}
int cuDeviceGetName(char* s, int n, int) {
  ENTER("cuDeviceGetName");
  snprintf(s, n, "Stand-in");
  return OK;
}
int cuDeviceTotalMem_v2(size_t* n, int d) {
  ENTER("cuDeviceTotalMem_v2");
  *n = devices[d].total;
  return OK;
}
int cuDeviceGetAttribute(int* v, int attribute, int) {
  ENTER("cuDeviceGetAttribute");
  switch (attribute) {
    case 16: *v = 2; break;  // multiprocessors
    case 75: *v = major_; break;
    case 76: *v = minor_; break;
    case 115: *v = pool; break;
    default: *v = 0;
  }
  return OK;
}
int cuGetErrorName(int r, const char** s) {
  static char name[32];
  snprintf(name, sizeof name, "CUDA_ERROR_%d", r);
  *s = name;
  return OK;
}
int cuDevicePrimaryCtxRetain(void** c, int d) {
  ENTER("cuDevicePrimaryCtxRetain");
  devices[d].retained++;
  *c = &devices[d];
  return OK;
}
int cuDevicePrimaryCtxRelease_v2(int d) {
  Guard g;
  devices[d].retained--;
  return OK;
}
int cuCtxSetCurrent(void* c) {
  ENTER("cuCtxSetCurrent");
  current = (Device*)c;
  return OK;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  CONTEXT("cuMemGetInfo_v2");
  *total = current->total;
  *free = current->total - current->used;
  return OK;
}
int cuStreamCreate(void** s, unsigned) {
  CONTEXT("cuStreamCreate");
  *s = new Stream;
  streams.insert(of(*s));
  return OK;
}
int cuStreamDestroy_v2(void* s) {
  Guard g;
  if (bad(s)) return INVALID;
  drain(of(s));
  streams.erase(of(s));
  delete of(s);
  return OK;
}
int cuStreamSynchronize(void* s) {
  CONTEXT("cuStreamSynchronize");
  if (bad(s)) return INVALID;
  return drain(of(s));
}
int cuEventCreate(void** e, unsigned) {
  CONTEXT("cuEventCreate");
  *e = new Event;
  events.insert((Event*)*e);
  return OK;
}
int cuEventDestroy_v2(void* e) {
  Guard g;
  if (events.count((Event*)e) == 0) return INVALID;
  drainAll();
  events.erase((Event*)e);
  delete (Event*)e;
  return OK;
}
int cuEventRecord(void* ep, void* s) {
  CONTEXT("cuEventRecord");
  Event* e = (Event*)ep;
  if (bad(s) || events.count(e) == 0) return INVALID;
  u64 n = ++e->recorded;
  of(s)->items.push_back({[e, n] {
    if (n > e->done) e->done = n;
    return 0;
  }});
  return OK;
}
int cuStreamWaitEvent(void* s, void* ep, unsigned) {
  CONTEXT("cuStreamWaitEvent");
  Event* e = (Event*)ep;
  if (bad(s) || events.count(e) == 0) return INVALID;
  if (e->recorded > e->done) {
    Item i;
    i.waitFor = e, i.number = e->recorded;
    of(s)->items.push_back(i);
  }
  return OK;
}
int cuEventSynchronize(void* ep) {
  CONTEXT("cuEventSynchronize");
  Event* e = (Event*)ep;
  if (events.count(e) == 0) return INVALID;
  u64 n = e->recorded;
  for (Stream* s : streams)
    if (e->done < n)
      if (int r = drain(s)) return r;
  return sticky;
}
int cuEventElapsedTime(float* ms, void*, void*) {
  CONTEXT("cuEventElapsedTime");
  *ms = 0.001f;
  return OK;
}
int cuMemAlloc_v2(u64* p, size_t n) {
  CONTEXT("cuMemAlloc_v2");
  return allocate(p, n);
}
int cuMemFree_v2(u64 p) {
  CONTEXT("cuMemFree_v2");
  if (int r = drainAll()) return r;
  return release(p, current);
}
int cuMemAllocAsync(u64* p, size_t n, void* s) {
  CONTEXT("cuMemAllocAsync");
  if (bad(s)) return INVALID;
  return allocate(p, n);
}
int cuMemFreeAsync(u64 p, void* s) {
  CONTEXT("cuMemFreeAsync");
  if (bad(s) || blocks.count(p) == 0) return INVALID;
  Device* d = current;
  of(s)->items.push_back({[p, d] { return release(p, d); }});
  return OK;
}
int cuDeviceGetDefaultMemPool(void** p, int) {
  ENTER("cuDeviceGetDefaultMemPool");
  *p = &devices;
  return OK;
}
int cuMemPoolSetAttribute(void*, int, void*) {
  ENTER("cuMemPoolSetAttribute");
  return OK;
}
int cuMemPoolTrimTo(void*, size_t) {
  ENTER("cuMemPoolTrimTo");
  return OK;
}
int cuMemHostAlloc(void** p, size_t n, unsigned) {
  CONTEXT("cuMemHostAlloc");
  *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
  pinned[(u64)*p] = n;
  return OK;
}
int cuMemFreeHost(void* p) {
  Guard g;
  if (pinned.erase((u64)p) == 0) return INVALID;
  drainAll();
  free(p);
  return OK;
}
int cuMemcpyHtoDAsync_v2(u64 d, const void* h, size_t n, void* s) {
  CONTEXT("cuMemcpyHtoDAsync_v2");
  if (bad(s)) return INVALID;
  if (!inside(pinned, (u64)h, n)) return INVALID;  // the host side promises pinned memory
  of(s)->items.push_back({[=] {
    if (!inside(blocks, d, n)) return (int)ILLEGAL;
    memcpy((void*)d, h, n);
    return 0;
  }});
  return OK;
}
int cuMemcpyDtoHAsync_v2(void* h, u64 d, size_t n, void* s) {
  CONTEXT("cuMemcpyDtoHAsync_v2");
  if (bad(s) || !inside(pinned, (u64)h, n)) return INVALID;
  of(s)->items.push_back({[=] {
    if (!inside(blocks, d, n)) return (int)ILLEGAL;
    memcpy(h, (void*)d, n);
    return 0;
  }});
  return OK;
}
int cuMemcpyDtoDAsync_v2(u64 d, u64 x, size_t n, void* s) {
  CONTEXT("cuMemcpyDtoDAsync_v2");
  if (bad(s)) return INVALID;
  of(s)->items.push_back({[=] {
    if (!inside(blocks, d, n) || !inside(blocks, x, n)) return (int)ILLEGAL;
    memmove((void*)d, (void*)x, n);
    return 0;
  }});
  return OK;
}
int cuMemsetD8Async(u64 d, unsigned char v, size_t n, void* s) {
  CONTEXT("cuMemsetD8Async");
  if (bad(s)) return INVALID;
  of(s)->items.push_back({[=] {
    if (!inside(blocks, d, n)) return (int)ILLEGAL;
    memset((void*)d, v, n);
    return 0;
  }});
  return OK;
}
int cuModuleLoadDataEx(void** m, const void* image, unsigned, int*, void**) {
  CONTEXT("cuModuleLoadDataEx");
  if (strstr((const char*)image, ".visible .entry") == nullptr) return BAD_PTX;
  *m = new Module;
  modules.insert((Module*)*m);
  return OK;
}
int cuModuleUnload(void* m) {
  Guard g;
  if (modules.erase((Module*)m) == 0) return INVALID;
  drainAll();
  for (Function* f : ((Module*)m)->functions) delete f;
  delete (Module*)m;
  return OK;
}
int cuModuleGetFunction(void** f, void* m, const char* name) {
  CONTEXT("cuModuleGetFunction");
  std::string n = name;
  host::Body* body = (host::Body*)dlsym(RTLD_DEFAULT, (n + "Entry").c_str());
  u32 *size = (u32*)dlsym(RTLD_DEFAULT, (n + "Size").c_str()), *threads = (u32*)dlsym(RTLD_DEFAULT, (n + "Threads").c_str());
  if (body == nullptr || size == nullptr || threads == nullptr) return NOT_FOUND;
  Function* made = new Function{*body, *size, *threads};
  ((Module*)m)->functions.push_back(made);
  *f = made;
  return OK;
}
int cuLaunchKernel(void* fp, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned, void* s, void** params, void**) {
  CONTEXT("cuLaunchKernel");
  Function* f = (Function*)fp;
  if (bad(s) || gx == 0 || gy == 0 || gz == 0 || gx > 0x7fffffff || gy > 65535 || gz > 65535 || bx == 0 || bx > f->threads || by != 1 || bz != 1) return INVALID;
  std::string args((const char*)params[0], f->size);
  int n = ++launches;
  of(s)->items.push_back({[=] {
    if (lostAt > 0 && n >= lostAt) return 719;
    const unsigned grid[3] = {gx, gy, gz};
    host::run(f->body, args.data(), grid, bx);
    return 0;
  }});
  return OK;
}
// fakeQueue lets a library on top of the driver put work into a stream.
void fakeQueue(void* s, void (*work)(void*), void* data) {
  Guard g;
  of(s)->items.push_back({[=] {
    work(data);
    return 0;
  }});
}
// fakeHeld counts what is not given back: memory, pinned memory, streams, events, modules, contexts.
void fakeHeld(int* n) {
  Guard g;
  n[0] = blocks.size(), n[1] = pinned.size(), n[2] = streams.size(), n[3] = events.size(), n[4] = modules.size(), n[5] = 0;
  for (auto& d : devices) n[5] += d.retained;
}
// fakeReset forgets faults and reads the environment anew.
void fakeReset() {
  Guard g;
  sticky = launches = lostAt = 0, major_ = 9, minor_ = 0, driver_ = 13000, pool = 1;
  faults.clear(), calls.clear(), devices.clear();
}
}
