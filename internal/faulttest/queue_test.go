//go:build linux && amd64

package faulttest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcompress/compress/internal/scratch"
)

// queued are the verbs that work through a queue.
var queued = []string{"search", "editeval", "eval batch"}

// TestQueueCampaign: the process that holds the queue, and the workers that have joined it from outside, are
// killed and started again while the work goes on. In the end every byte is that of a run that was left alone:
// nothing is lost, and nothing counts twice.
func TestQueueCampaign(t *testing.T) {
	if !*long {
		t.Skip("a worker's death shows only after a minute, so this is part of the whole campaign: -args -long; " +
			"internal/jobs has the short form of it")
	}

	campaign(t, "queue", max(1, *points/25), func(t *testing.T, r *rig, v verb, calls []call, number int) record {
		for _, name := range queued {
			if v.name == name {
				return r.queue(t, v, len(calls), number)
			}
		}
		return record{Outcome: beyond}
	})
}

// queue kills the coordinator three times and a worker at every so many calls of it.
func (r *rig) queue(t *testing.T, v verb, calls, number int) record {
	draw := draw(v, "queue", number)
	rec := record{Outcome: equal}
	if _, err := r.start(v); err != nil {
		return failed(rec, err)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return failed(rec, err)
	}

	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return failed(rec, err)
	}

	h := &herd{r: r, address: address}
	for range 2 {
		h.start()
	}
	defer h.end()

	for round := 0; ; round++ {
		line := r.line(v, round > 0)
		line.args, line.limit = append(line.args, "--listen", address, "--let-anyone-join"), 5*time.Minute
		f := fault{match: call.changes, kill: true}
		if round < 3 {
			f.at = 1 + draw.IntN(calls/2)
		}

		every, n := 20+draw.IntN(calls/3), 0
		f.match = func(c call) bool {
			n++
			if n%every == 0 && h.kills < 6 {
				h.kill(draw.IntN(2))
			}
			return c.changes()
		}

		end, err := trace(line, f)
		if err != nil {
			return failed(rec, err)
		}

		rec.Said = append(rec.Said, said(end.stderr)...)

		if end.hit != nil {
			rec.Where += fmt.Sprintf("%s at its call %d; ", end.hit.path, f.at)
			continue
		}

		rec.Where += fmt.Sprintf("%d workers killed", h.kills)
		if end.code != 0 || end.hung {
			rec.Outcome, rec.Why = defect, fmt.Sprintf("exit code %d, hangs %v", end.code, end.hung)
		}

		t.Logf("%s, queue %d: coordinator %s", v.name, number, rec.Where)

		// What killed workers have left goes when the next one asks for a folder of temporary files.
		h.end()
		if err := r.sweep(); err != nil {
			return failed(rec, err)
		}

		return rec.finish(r, v)
	}
}

// sweep asks for folders of temporary files as workers do, which removes those of killed ones.
func (r *rig) sweep() error {
	temp, had := os.LookupEnv("TMPDIR")
	if err := os.Setenv("TMPDIR", r.home); err != nil {
		return err
	}

	_, release, err := scratch.Folder("compress-fitness-")
	if err == nil {
		err = release()
	}

	if !had {
		return errors.Join(err, os.Unsetenv("TMPDIR"))
	}
	return errors.Join(err, os.Setenv("TMPDIR", temp))
}

// herd is worker processes that are killed and replaced.
type herd struct {
	r       *rig
	address string
	kills   int

	mu   sync.Mutex
	list []*exec.Cmd
	stop bool
	wg   sync.WaitGroup
}

// start starts a worker, and another one whenever it ends.
func (h *herd) start() {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.stop {
		return
	}

	cmd := h.r.plain(strings.Fields("worker --cluster nats://" + h.address))
	if cmd.Start() != nil {
		return
	}

	h.list = append(h.list, cmd)
	h.wg.Go(func() {
		_ = cmd.Wait() // killed, or there is no coordinator at the moment
		h.start()
	})
}

// kill kills the i-th of the youngest two.
func (h *herd) kill(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kills++
	_ = h.list[max(0, len(h.list)-1-i)].Process.Kill()
}

// end kills those that live, once.
func (h *herd) end() {
	h.mu.Lock()
	h.stop = true
	for _, cmd := range h.list {
		_ = cmd.Process.Kill()
	}
	h.mu.Unlock()
	h.wg.Wait()
}
