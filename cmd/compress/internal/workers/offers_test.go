package workers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/kernels/ref"
)

// TestPlacesOfWork: each contradiction among the flags that say where work is done is refused by name.
func TestPlacesOfWork(t *testing.T) {
	for _, c := range []struct {
		w    Where
		want string
	}{
		{Where{}, ""},
		{Where{Workers: -1, Cluster: "nats://host"}, ""},
		{Where{Workers: -1, Listen: ":0"}, ""},
		{Where{Listen: ":0", Cert: "c", Key: "k", Token: "t"}, ""},
		{Where{Cluster: "nats://a", Listen: ":0"}, "--cluster and --listen exclude each other"},
		{Where{Listen: "4222"}, `--listen "4222": want host:port`},
		{Where{Token: "t"}, "go with --listen"},
		{Where{Anyone: true}, "go with --listen"},
		{Where{Listen: ":0", Anyone: true, Token: "t"}, "--let-anyone-join and --listen-token exclude each other"},
		{Where{Listen: ":0", Cert: "c"}, "--listen-cert and --listen-key go together"},
		{Where{Workers: -2}, "--workers -2: want 0"},
		{Where{Workers: most() + 1}, fmt.Sprintf("to %d, or -1 for none", most())},
		{Where{Workers: -1}, "--workers -1 leaves the work to others"},
		{Where{Access: jobs.Access{Login: "f"}}, "go with --cluster"},
		{Where{Cluster: "http://me:secret@host"}, `--cluster "http://host": want nats://host:port`},
	} {
		err := c.w.Validate()
		if c.want == "" && err != nil ||
			c.want != "" && (!cli.IsUsage(err) || !strings.Contains(err.Error(), c.want) ||
				strings.Contains(err.Error(), "secret")) {
			t.Errorf("%+v: %v", c.w, err)
		}
	}

	if (Where{}).Shared() || !(Where{Cluster: "x"}).Shared() || !(Where{Listen: "x"}).Shared() {
		t.Error("who takes part")
	}
	if got := KeysFile("/a/queue"); got != "/a/.queue.keys" {
		t.Error(got)
	}
}

// TestCrews: items are worked on in this process, results come in the order of the items, whoever is done first, and a
// failure or an interrupt ends the call.
func TestCrews(t *testing.T) {
	handle := func(_ context.Context, it jobs.Item) ([]byte, error) {
		if it.ID == "bad" {
			return nil, errors.New("no memory")
		}
		return []byte("did " + it.ID), nil
	}
	items := func(ids ...string) (list []jobs.Item) {
		for _, id := range ids {
			list = append(list, jobs.Item{ID: id, Data: []byte("{}")})
		}
		return list
	}

	said := clitest.Run(t, func(j *cli.Job) (any, error) {
		c, err := Assemble(j, Options{
			Dir: filepath.Join(t.TempDir(), "queue"), Slots: 2, Kind: "test", Name: "test-1", Spec: []byte("{}"),
			Check: func(_ jobs.Item, data []byte) error {
				if !strings.HasPrefix(string(data), "did ") {
					return jobs.ErrItem
				}
				return nil
			},
		}, handle)
		if err != nil {
			return nil, err
		}

		ids := []string{"c", "a", "b", "d"}
		var seen []string
		results, err := c.Do(j.Ctx, "round", items(ids...), func(r jobs.Result) error {
			seen = append(seen, r.ID)
			return nil
		})
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}

		slices.Sort(seen)
		if !slices.Equal(seen, []string{"a", "b", "c", "d"}) || c.Done != 4 {
			t.Errorf("%q came in, %d counted", seen, c.Done)
		}
		for i, r := range results {
			if r.ID != ids[i] || string(r.Data) != "did "+ids[i] {
				t.Errorf("result %d is %s: %s", i, r.ID, r.Data)
			}
		}

		if _, err := c.Do(
			j.Ctx,
			"round",
			items("e", "bad"),
			nil,
		); !errors.Is(err, ErrWork) ||
			!strings.Contains(err.Error(), "no memory") {
			t.Errorf("a failure: %v", err)
		}
		stop := errors.New("enough")
		if _, err := c.Do(
			j.Ctx,
			"round",
			items("f", "g"),
			func(jobs.Result) error { return stop },
		); !errors.Is(
			err,
			stop,
		) {
			t.Errorf("who is told stops it: %v", err)
		}
		if r, err := c.Hand(j.Ctx, items("h")[0]); err != nil || string(r.Data) != "did h" {
			t.Errorf("one by hand: %+v, %v", r, err)
		}
		if r, err := c.Hand(
			j.Ctx,
			jobs.Item{ID: "bad", Data: []byte("1")},
		); err != nil ||
			!strings.Contains(r.Failure, "no memory") {
			t.Errorf("one that fails by hand: %+v, %v", r, err)
		}

		return nil, errors.Join(c.Withdraw(j.Ctx), c.Close())
	})
	if said.Code != 0 {
		t.Error(said.Stderr)
	}
}

// TestOffersOfOthers: a worker refuses kinds that it does not know, naming those that it does in order, and
// coordinators of another build; what it has done is counted by offer.
func TestOffersOfOthers(t *testing.T) {
	freed := 0
	broken := errors.New("broken")
	kinds := map[string]Opener{"b": nil, "a": func(context.Context, *Worker, []byte) (jobs.Handler, func(), error) {
		return func(_ context.Context, it jobs.Item) ([]byte, error) {
			if it.ID == "bad" {
				return nil, broken
			}
			return nil, nil
		}, func() { freed++ }, nil
	}}

	said := clitest.Run(t, func(j *cli.Job) (any, error) {
		w := &Worker{Job: j, Slots: 2, served: map[string]*Served{}}
		if _, _, err := w.open(
			j.Ctx,
			"me",
			jobs.Offer{Kind: "x", Contract: "me"},
			nil,
			kinds,
		); !errors.Is(
			err,
			jobs.ErrRefused,
		) ||
			!strings.Contains(err.Error(), `work of kind "x"; this program does a, b`) {
			t.Error(err)
		}
		if _, _, err := w.open(
			j.Ctx,
			"me",
			jobs.Offer{Kind: "a", Contract: "you"},
			nil,
			kinds,
		); !errors.Is(
			err,
			jobs.ErrRefused,
		) ||
			!strings.Contains(err.Error(), "you, here me") {
			t.Error(err)
		}

		for _, name := range []string{"second", "first", "second"} {
			handle, free, err := w.open(j.Ctx, "me", jobs.Offer{Name: name, Kind: "a", Contract: "me"}, nil, kinds)
			if err != nil {
				return nil, err
			}

			var wg sync.WaitGroup
			for _, id := range []string{"x", "bad", "y"} {
				wg.Go(func() { _, _ = handle(j.Ctx, jobs.Item{ID: id}) })
			}
			wg.Wait()
			free()
		}
		return w.report("host-1"), nil
	})

	r, ok := said.Result.(*WorkerReport)
	if !ok || freed != 3 || r.Name != "host-1" || r.Workers != 2 || len(r.Served) != 2 {
		t.Fatalf("%+v, freed %d times", said, freed)
	}
	for i, want := range []Served{
		{Name: "first", Kind: "a", Items: 2, Failed: 1}, {Name: "second", Kind: "a", Items: 4, Failed: 2},
	} {
		got := r.Served[i]
		if got.Busy <= 0 {
			t.Errorf("%s took no time", got.Name)
		}
		if got.Busy = 0; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if strings.Count(said.Stderr, "serving second\nsecond is done\n") != 2 {
		t.Errorf("%s", said.Stderr)
	}
}

// TestWorkersFlags: what a worker cannot do is refused before it reaches for a cluster.
func TestWorkersFlags(t *testing.T) {
	for want, o := range map[string]WorkerOptions{
		"--workers -1: want 0 (one for each processor) or more": {Workers: -1, Cluster: "nats://x"},
		`--cluster "ftp://x"`: {Cluster: "ftp://x"},
	} {
		clitest.Refused(t, clitest.Run(t, func(j *cli.Job) (any, error) { return Work(j, o, nil) }), want)
	}

	if told(nil) != "no reason given" || strings.ContainsRune(told(errors.New("a\x1b[2J")), 0x1b) {
		t.Error("words of servers")
	}

	id, err := Identity(ref.New())
	again, errAgain := Identity(ref.New())
	if err != nil || errAgain != nil || id != again || !strings.HasPrefix(id, "program ") ||
		!strings.Contains(id, " device ref ") {
		t.Errorf("%s, %s", id, again)
	}
}

// TestFoldersWithin: a folder lies in one of others by where links lead, not by how its name begins.
func TestFoldersWithin(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"runs/one", "runs-of-others", "elsewhere"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(root, "elsewhere"), filepath.Join(root, "runs", "link")); err != nil {
		t.Fatal(err)
	}

	runs := []string{filepath.Join(root, "nowhere"), filepath.Join(root, "runs")}
	for dir, want := range map[string]bool{
		"runs": true, "runs/one": true, "runs/../runs/one": true, "runs-of-others": false, "runs/link": false,
		".":         false,
		"runs/none": false,
	} {
		if got := within(filepath.Join(root, dir), runs); got != want {
			t.Errorf("%s: %t", dir, got)
		}
	}

	secret := Withheld(jobs.ErrRefused, errors.New("hash of mine"))
	var part interface{ Public() string }
	if !errors.Is(secret, jobs.ErrRefused) || !errors.As(secret, &part) || strings.Contains(part.Public(), "mine") ||
		!strings.Contains(secret.Error(), "mine") || Withheld(jobs.ErrRefused, nil) != jobs.ErrRefused {
		t.Error(secret)
	}

	line := (Where{Listen: "127.0.0.1:0", Token: "my token"}).join
	s, err := jobs.Serve(jobs.ServerOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if got := line(s); !strings.Contains(got, " --cluster-login 'my token'") {
		t.Errorf("a line that a shell takes apart wrongly: %s", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
