package crew

import (
	"cmp"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/shell"
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
	case w.Workers < -1 || w.Workers > most():
		return shell.Usagef("--workers %d: want 0 (one for each thread) to %d, or -1 for none", w.Workers, most())
	case w.Workers == -1 && w.Cluster == "" && w.Listen == "":
		return shell.Usagef("--workers -1 leaves the work to others, who need --cluster or --listen")
	}
	return nil
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
