package workers

import (
	"cmp"
	"net"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/jobs"
)

// Where says who does the work of a run: the flags --workers, those of --cluster and those of --listen.
type Where struct {
	Workers int    // pieces of work at the same time in this process; 0: one for each thread, -1: none
	Cluster string // address of a cluster to queue the work in; empty: a queue in this process
	Access  jobs.Access
	Listen  string // host:port at which others reach the queue of this process; empty: no port
	Token   string // file of the token that these show; empty: one is made
	Cert    string // files of the certificate for Listen and of its key
	Key     string
	Anyone  bool // no token
}

// How the flags are worded in every verb that has them.
const (
	AtOnce      = "pieces of work at the same time in this process"
	ClusterHelp = "nats:// address of a NATS cluster"
)

// Add adds the flags. workers is the default of --workers; each says what comes with every piece of work, such
// as ", each with a model in memory", or is empty.
func (w *Where) Add(f *pflag.FlagSet, workers int, each string) {
	otherwise := " (default: one for each thread)"
	if workers != 0 {
		otherwise = "; 0 takes one for each thread"
	}
	f.IntVar(&w.Workers, "workers", workers, "`N` "+AtOnce+each+"; -1 leaves the work to others"+otherwise)

	f.StringVar(&w.Cluster, "cluster", "",
		"`URL` "+ClusterHelp+"; the work is queued there instead of in this process")
	AddAccess(f, &w.Access)
	f.StringVar(&w.Listen, "listen", "", "`ADDRESS` host:port at which workers can join (default: none is opened)")
	f.StringVar(&w.Token, "listen-token", "",
		"`FILE` token that workers must show at --listen (default: a new one, which is printed)")
	f.StringVar(&w.Cert, "listen-cert", "",
		"`FILE` PEM certificate for --listen (default: a new one, except on loopback)")
	f.StringVar(&w.Key, "listen-key", "", "`FILE` PEM key of --listen-cert")
	f.BoolVar(&w.Anyone, "let-anyone-join", false,
		"use neither token nor encryption at --listen: whoever reaches it can take work and send results")
}

// AddAccess adds the flags that say how a cluster is reached besides its address.
func AddAccess(f *pflag.FlagSet, a *jobs.Access) {
	f.StringVar(&a.Login, "cluster-login", "", "`FILE` USER:PASSWORD or a token for --cluster")
	f.StringVar(&a.Creds, "cluster-creds", "", "`FILE` NATS credentials for --cluster")
	f.StringVar(&a.NKey, "cluster-nkey", "", "`FILE` NKey seed for --cluster")
	f.StringVar(&a.CA, "cluster-ca", "",
		"`FILE` PEM certificates of the authorities that --cluster is checked against")
	f.StringVar(&a.Cert, "cluster-cert", "", "`FILE` PEM certificate to show to --cluster")
	f.StringVar(&a.Key, "cluster-key", "", "`FILE` PEM key of --cluster-cert")
	f.StringVar(&a.Pin, "cluster-pin", "",
		"`SHA256` fingerprint (sha256:HEX) of the certificate of --cluster, which then needs no authority")
}

// Validate refuses what no run can do. Its error is one about a wrong command line.
func (w Where) Validate() error {
	if err := w.reached(); err != nil {
		return err
	}

	switch {
	case w.Cluster != "" && w.Listen != "":
		return cli.Usagef("--cluster and --listen exclude each other: the cluster has an address already")
	case w.Listen != "" && !isPort(w.Listen):
		return cli.Usagef("--listen %.200q: want host:port, such as 127.0.0.1:4222; port 0 chooses one", w.Listen)
	case w.Listen == "" && (w.Token != "" || w.Cert != "" || w.Key != "" || w.Anyone):
		return cli.Usagef("--listen-token, --listen-cert, --listen-key and --let-anyone-join go with --listen")
	case w.Anyone && w.Token != "":
		return cli.Usagef("--let-anyone-join and --listen-token exclude each other")
	case (w.Cert == "") != (w.Key == ""):
		return cli.Usagef("--listen-cert and --listen-key go together")
	case w.Workers < -1 || w.Workers > most():
		return cli.Usagef("--workers %d: want 0 (one for each thread) to %d, or -1 for none", w.Workers, most())
	case w.Workers == -1 && w.Cluster == "" && w.Listen == "":
		return cli.Usagef("--workers -1 leaves the work to others, who need --cluster or --listen")
	}

	return nil
}

// reached looks at what concerns the cluster.
func (w Where) reached() error {
	switch err := w.Access.Validate(); {
	case w.Cluster == "" && w.Access != jobs.Access{}:
		return cli.Usagef("--cluster-login, -creds, -nkey, -ca, -cert, -key and -pin go with --cluster")
	case w.Cluster != "" && !isCluster(w.Cluster):
		return cli.Usagef("--cluster %.200q: want nats://host:port, or several of these with commas between",
			jobs.Address(w.Cluster))
	case err != nil:
		return cli.Usagef("--cluster: %w", err)
	}

	return nil
}

// Shared reports whether others than this process can take part.
func (w Where) Shared() bool { return w.Cluster != "" || w.Listen != "" }

// join is the command line by which workers join a server of this process.
func (w Where) join(s *jobs.Server) string {
	line := "compress worker --cluster "
	if w.Token != "" { // which is known to those who are meant, and need not be in logs
		line += s.Address() + " --cluster-login " + cli.ShellLine([]string{w.Token})
	} else {
		line += s.URL()
	}

	if pin := s.Pin(); pin != "" {
		line += " --cluster-pin " + pin
	}

	return line
}

// isCluster reports whether a text has the form of addresses that workers understand. No name is looked up.
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

// isPort reports whether a text is host:port; the host may be left out.
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
