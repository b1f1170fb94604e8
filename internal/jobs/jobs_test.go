package jobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// open starts a server and connects to it from inside.
func open(t *testing.T, so ServerOptions, e Events) (*Server, *Conn) {
	t.Helper()
	s, err := Serve(so)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = s.Close() })
	c, err := Connect(t.Context(), Options{Server: s, Name: "coordinator", Events: e})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(c.Close)
	return s, c
}

func offer(t *testing.T, c *Conn, o Offer, spec string) *Queue {
	t.Helper()
	q, err := c.Offer(t.Context(), o, []byte(spec))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// within lets workers run beside a test.
func within(t *testing.T, work func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { work(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func checkSquares(t *testing.T, results []Result, n int) {
	t.Helper()
	if len(results) != n {
		t.Fatalf("%d results of %d", len(results), n)
	}
	for i, r := range results {
		if r.ID != fmt.Sprintf("n%d", i) || string(r.Data) != fmt.Sprint(i*i) || r.Failure != "" {
			t.Errorf("%d: %+v", i, r)
		}
	}
}

// TestOneProcess: items are done once, in any order, and come back in theirs; what is done already isn't done again.
func TestOneProcess(t *testing.T) {
	_, c := open(t, ServerOptions{}, Events{})
	q := offer(t, c, Offer{Name: "squares", Kind: "square", Contract: "1"}, "")
	var calls atomic.Int64
	within(t, func(ctx context.Context) {
		_ = q.Work(ctx, 3, func(_ context.Context, it Item) ([]byte, error) { calls.Add(1); return square(it) })
	})
	seen := 0
	results, err := q.Do(t.Context(), squares(40), func(Result) { seen++ })
	if err != nil {
		t.Fatal(err)
	}

	checkSquares(t, results, 40)
	results, err = q.Do(t.Context(), squares(50), nil)
	if err != nil {
		t.Fatal(err)
	}

	checkSquares(t, results, 50)
	if seen != 40 || calls.Load() != 50 {
		t.Errorf("%d results seen, %d calls", seen, calls.Load())
	}
	if list, err := c.Offers(t.Context()); err != nil || len(list) != 1 || list[0].Name != "squares" {
		t.Error(list, err)
	}
	if err := q.Withdraw(t.Context()); err != nil {
		t.Error(err)
	}
	if list, err := c.Offers(t.Context()); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
}

// TestFailures: a handler's error is the item's result.
func TestFailures(t *testing.T) {
	_, c := open(t, ServerOptions{}, Events{})
	q := offer(t, c, Offer{Name: "q", Contract: "1"}, "")
	within(t, func(ctx context.Context) {
		_ = q.Work(ctx, 1, func(_ context.Context, it Item) ([]byte, error) {
			if it.ID == "large" {
				return make([]byte, 2<<20), nil
			}
			return square(it)
		})
	})

	r, err := q.Do(t.Context(), []Item{{"good", []byte("3")}, {"bad", []byte("x")}, {"large", nil}}, nil)
	if err != nil {
		t.Fatal(err)
	}

	if string(r[0].Data) != "9" || !strings.Contains(r[1].Failure, "invalid syntax") ||
		!strings.Contains(r[2].Failure, "bytes") {
		t.Errorf("%+v", r)
	}

	for _, bad := range [][]Item{{{"a b", nil}}, {{"a", nil}, {"a", nil}}, {{"a", make([]byte, 2<<20)}}} {
		if _, err := q.Do(t.Context(), bad, nil); !errors.Is(err, ErrItem) {
			t.Error(err)
		}
	}
}

// TestOtherWork: a name stands for one contract and specification.
func TestOtherWork(t *testing.T) {
	_, c := open(t, ServerOptions{}, Events{})
	offer(t, c, Offer{Name: "q", Contract: "1"}, "spec")
	offer(t, c, Offer{Name: "q", Contract: "1"}, "spec")

	for _, o := range []struct {
		o    Offer
		spec string
	}{
		{Offer{Name: "q", Contract: "2"}, "spec"},
		{Offer{Name: "q", Contract: "1"}, "other"},
		{Offer{Name: "q", Kind: "k", Contract: "1"}, "spec"},
		{Offer{Name: "q.r", Contract: "1"}, ""},
		{Offer{Name: "p", Contract: "1", Attempts: -1}, ""},
	} {
		if _, err := c.Offer(t.Context(), o.o, []byte(o.spec)); !errors.Is(err, ErrOffer) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestRestartedCoordinator: results outlive the coordinator and its server, and come without a worker.
func TestRestartedCoordinator(t *testing.T) {
	dir := t.TempDir()
	first := func() {
		s, err := Serve(ServerOptions{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()

		c, err := Connect(t.Context(), Options{Server: s})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()

		q := offer(t, c, Offer{Name: "q", Contract: "1"}, "")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = q.Work(ctx, 1, func(_ context.Context, it Item) ([]byte, error) { return square(it) }) })

		_, err = q.Do(t.Context(), squares(5), nil)
		cancel()
		wg.Wait()
		if err != nil {
			t.Fatal(err)
		}
	}

	first()
	_, c := open(t, ServerOptions{Dir: dir}, Events{})
	results, err := offer(t, c, Offer{Name: "q", Contract: "1"}, "").Do(t.Context(), squares(5), nil)
	if err != nil {
		t.Fatal(err)
	}

	checkSquares(t, results, 5)
}

// TestAbandonedItem: what a coordinator had in hand when it died is taken up at once by the next one that is alone, not
// when patience ends.
func TestAbandonedItem(t *testing.T) {
	dir := t.TempDir()
	long := Offer{Name: "q", Contract: "1", Patience: time.Hour}

	die := func() {
		s, err := Serve(ServerOptions{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()

		c, err := Connect(t.Context(), Options{Server: s})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()

		q := offer(t, c, long, "")
		if _, err := c.js.Publish(t.Context(), q.offer.work()+".n0", []byte("0")); err != nil {
			t.Fatal(err)
		}
		if msg, err := q.next(t.Context()); err != nil || msg == nil { // neither done nor given back
			t.Fatal(msg, err)
		}
	}
	die()

	_, c := open(t, ServerOptions{Dir: dir}, Events{})
	q := offer(t, c, long, "")
	within(t, func(ctx context.Context) {
		_ = q.Work(ctx, 1, func(_ context.Context, it Item) ([]byte, error) { return square(it) })
	})

	results, err := q.Do(t.Context(), squares(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	checkSquares(t, results, 1)
}

// herd is worker processes that are killed and replaced.
type herd struct {
	t    *testing.T
	url  string
	mu   sync.Mutex
	list []*exec.Cmd
	stop bool
	wg   sync.WaitGroup
}

// start starts a process, and another one whenever it dies.
func (h *herd) start(contract string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.stop {
		return
	}

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "JOBS_TEST_WORKER="+h.url, "JOBS_TEST_CONTRACT="+contract)

	if err := cmd.Start(); err != nil {
		h.t.Error(err)
		return
	}

	h.list = append(h.list, cmd)
	h.wg.Go(func() {
		_ = cmd.Wait() // killed
		h.start(contract)
	})
}

// kill kills the i-th of the living ones.
func (h *herd) kill(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.list[len(h.list)-1-i%min(3, len(h.list))].Process.Kill()
}

func (h *herd) end() {
	h.mu.Lock()
	h.stop = true
	for _, cmd := range h.list {
		_ = cmd.Process.Kill()
	}
	h.mu.Unlock()
	h.wg.Wait()
}

// TestKilledWorkers: worker processes die in the middle of items and at random; every item is done, and one that kills
// whoever begins it is given up.
func TestKilledWorkers(t *testing.T) {
	t.Parallel() // it waits more than it computes
	marks := t.TempDir()
	s, c := open(t, ServerOptions{Listen: "127.0.0.1:0"}, Events{})
	q := offer(t, c, Offer{Name: "q", Kind: "square", Contract: "1", Patience: 200 * time.Millisecond, Attempts: 12},
		marks)
	h := &herd{t: t, url: s.URL()}
	for range 3 {
		h.start("1")
	}
	defer h.end()

	draw := rand.New(rand.NewPCG(1, 2))
	n := 0
	again := 0
	results, err := q.Do(t.Context(), append(squares(40), Item{ID: "deadly"}), func(r Result) {
		n++
		if n%5 == 0 {
			h.kill(draw.IntN(3))
		}
		if r.Attempt > 1 {
			again++
		}
	})
	if err != nil {
		t.Fatal(err)
	}

	checkSquares(t, results[:40], 40)
	if last := results[40]; !strings.Contains(last.Failure, "given up: begun 12 times") {
		t.Errorf("%+v", last)
	}

	left, err := os.ReadDir(marks)
	if err != nil || len(left) != 6 {
		t.Errorf("%d items killed a worker, want 6: %v", len(left), err)
	}

	if again < 6 {
		t.Errorf("%d items were begun again, want 6 or more", again)
	}
}

// TestRefusal: a worker that refuses the only offer ends with the reason, and the coordinator hears of it.
func TestRefusal(t *testing.T) {
	reasons := make(chan string, 10)
	s, c := open(t, ServerOptions{Listen: "127.0.0.1:0"}, Events{Refused: func(_, reason string) { reasons <- reason }})
	q := offer(t, c, Offer{Name: "q", Contract: "2"}, "")
	stop, err := q.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	w, err := Connect(t.Context(), Options{URL: s.URL(), Name: "worker"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()

	err = w.Join(t.Context(), 1, func(_ context.Context, o Offer, _ []byte) (Handler, func(), error) {
		return nil, nil, fmt.Errorf("%w: contract %s", ErrRefused, o.Contract)
	})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "contract 2") {
		t.Error(err)
	}

	if reason := <-reasons; !strings.Contains(reason, "contract 2") {
		t.Error(reason)
	}
}

// TestVanishingServer: the server goes away in the middle, once with what it stored; coordinator and worker
// wait, say so, and go on.
func TestVanishingServer(t *testing.T) {
	t.Parallel() // it waits more than it computes
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprintf("kept=%v", kept), func(t *testing.T) {
			dirs := []string{t.TempDir(), t.TempDir()}
			if kept {
				dirs[1] = dirs[0]
			}

			s := cluster(t, dirs[0], -1)
			lost, back := make(chan struct{}, 100), make(chan struct{}, 100)
			c, err := Connect(t.Context(),
				Options{
					URL:    s.ClientURL(),
					Events: Events{Lost: func(error) { lost <- struct{}{} }, Back: func() { back <- struct{}{} }},
				})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()

			q := offer(t, c, Offer{Name: "q", Contract: "1", Patience: time.Second}, "")
			gate := make(chan struct{})
			within(t, func(ctx context.Context) {
				w, err := Connect(ctx, Options{URL: s.ClientURL(), Name: "w"})
				if err != nil {
					t.Error(err)
					return
				}
				defer w.Close()

				_ = w.Join(ctx, 1, func(context.Context, Offer, []byte) (Handler, func(), error) {
					return func(_ context.Context, it Item) ([]byte, error) {
						if it.ID == "n3" {
							<-gate
						}
						return square(it)
					}, nil, nil
				})
			})

			third := make(chan struct{}, 1)
			go func() {
				<-third
				port := s.Addr().(*net.TCPAddr).Port
				s.Shutdown()
				s.WaitForShutdown()
				<-lost
				close(gate) // the worker is done while there is no server
				s = cluster(t, dirs[1], port)
			}()

			results, err := q.Do(t.Context(), squares(8), func(r Result) {
				if r.ID == "n2" {
					third <- struct{}{}
				}
			})
			if err != nil {
				t.Fatal(err)
			}

			checkSquares(t, results, 8)
			<-back
			s.Shutdown()
			s.WaitForShutdown()
		})
	}
}

// TestNoServer: the first connection fails with a clear error, an address that is taken too.
func TestNoServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	addr := l.Addr().String()
	for _, bad := range []string{addr, "nonsense", "127.0.0.1:x"} {
		if _, err := Serve(ServerOptions{Listen: bad}); !errors.Is(err, ErrServer) {
			t.Errorf("%s: %v", bad, err)
		}
	}

	l.Close()
	if _, err := Connect(t.Context(), Options{URL: "nats://" + addr}); !errors.Is(err, ErrConnect) {
		t.Error(err)
	}
}

// BenchmarkItem measures what the queue adds to an item that takes no time: handing over, finding, storing and hearing.
func BenchmarkItem(b *testing.B) {
	s, err := Serve(ServerOptions{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()

	c, err := Connect(b.Context(), Options{Server: s})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()

	q, err := c.Offer(b.Context(), Offer{Name: "q", Contract: "1"}, nil)
	if err != nil {
		b.Fatal(err)
	}

	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = q.Work(ctx, 2, func(_ context.Context, it Item) ([]byte, error) { return square(it) }) })
	items := squares(b.N)
	b.ResetTimer()
	if _, err := q.Do(ctx, items, nil); err != nil {
		b.Fatal(err)
	}

	b.StopTimer()
	cancel()
	wg.Wait()
}

// TestFailuresAreTriedAgain: a failure that an earlier call left is no result of a later one, since what was in
// the way may be gone.
func TestFailuresAreTriedAgain(t *testing.T) {
	_, c := open(t, ServerOptions{}, Events{})
	q := offer(t, c, Offer{Name: "q", Contract: "1"}, "")
	var broken atomic.Bool
	var calls atomic.Int64
	within(t, func(ctx context.Context) {
		_ = q.Work(ctx, 2, func(_ context.Context, it Item) ([]byte, error) {
			calls.Add(1)
			if broken.Load() && it.ID == "n3" {
				return nil, errors.New("the disk is full")
			}
			return square(it)
		})
	})

	broken.Store(true)
	results, err := q.Do(t.Context(), squares(5), nil)
	if err != nil || results[3].Failure == "" {
		t.Fatalf("%+v %v", results, err)
	}

	broken.Store(false)
	if results, err = q.Do(t.Context(), squares(5), nil); err != nil {
		t.Fatal(err)
	}

	checkSquares(t, results, 5)
	if n := calls.Load(); n != 6 {
		t.Errorf("%d calls, want 6", n)
	}
}
