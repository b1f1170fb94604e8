package crew

import (
	"cmp"
	"net"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/shell"
	"github.com/modelcompress/compress/internal/jobs"
)

// Where says who does the work of a run: the flags --workers, --cluster and --listen.
type Where struct {
	Workers int    // pieces of work at the same time in this process; 0: one for each thread, -1: none
	Cluster string // address of a cluster to queue the work in; empty: a queue in this process
	Listen  string // host:port at which others reach the queue of this process; empty: no port
}

// How the flags are worded in every verb that has them.
const (
	WorkersHelp = "pieces of work at the same time in this process; 0 is one for each thread"
	ClusterHelp = "nats:// address of a cluster"
)

// Add adds the flags. workers is the default of --workers; each says what comes with every piece of work, such as ", each with
// a model in memory", or is empty.
func (w *Where) Add(f *pflag.FlagSet, workers int, each string) {
	f.IntVar(&w.Workers, "workers", workers, WorkersHelp+", -1 leaves all to other workers"+each)
	f.StringVar(&w.Cluster, "cluster", "", ClusterHelp+"; the work is queued there instead of in this process")
	f.StringVar(&w.Listen, "listen", "", "host:port at which workers can join; without it no port is opened")
}

// Validate refuses what no run can do. Its error is one about a wrong command line.
func (w Where) Validate() error {
	switch {
	case w.Cluster != "" && w.Listen != "":
		return shell.Usagef("--cluster and --listen exclude each other: the cluster has an address already")
	case w.Cluster != "" && !isCluster(w.Cluster):
		return shell.Usagef("--cluster %.200q: want nats://host:port, or several of these with commas between", jobs.Address(w.Cluster))
	case w.Listen != "" && !isPort(w.Listen):
		return shell.Usagef("--listen %.200q: want host:port, such as 127.0.0.1:4222; port 0 chooses one", w.Listen)
	case w.Workers < -1 || w.Workers > most():
		return shell.Usagef("--workers %d: want 0 (one for each thread) to %d, or -1 for none", w.Workers, most())
	case w.Workers == -1 && w.Cluster == "" && w.Listen == "":
		return shell.Usagef("--workers -1 leaves the work to others, who need --cluster or --listen")
	}
	return nil
}

// isCluster tells whether a text has the form of addresses that workers understand. No name is looked up.
func isCluster(text string) bool {
	for one := range strings.SplitSeq(text, ",") {
		one = strings.TrimSpace(one)
		if !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		u, err := url.Parse(one)
		if err != nil || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) || u.Hostname() == "" {
			return false
		}
	}
	return true
}

// isPort tells whether a text is host:port; the host may be left out.
func isPort(text string) bool {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// most is the largest number of workers that a process may have.
func most() int { return 4*runtime.NumCPU() + 64 }

// Slots is how many pieces of work are done here at the same time, on a device with so many threads (0: one for each
// processor).
func (w Where) Slots(threads int) int {
	if w.Workers == -1 {
		return 0
	}
	return max(1, cmp.Or(w.Workers, threads, runtime.GOMAXPROCS(0)))
}
