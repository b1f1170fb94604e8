//go:build linux && amd64

package faulttest

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/modelcompress/compress/internal/scratch"
)

// Flags of the long campaign; they stand after -args.
var (
	long     = flag.Bool("long", false, "the whole campaign instead of a few points")
	points   = flag.Int("points", 200, "faults of a kind for each verb in the whole campaign")
	seed     = flag.Uint64("seed", 1, "seed of the points")
	only     = flag.String("verbs", "", "regular expression: only these verbs")
	kinds    = flag.String("kinds", "", "regular expression: only these kinds of faults")
	patience = flag.Duration("patience", 2*time.Minute, "how long a run may take before it counts as hanging")
	workDir  = flag.String("scratch", "", "folder to work in, kept; a temporary one if empty")
	results  = flag.String("results", "",
		"file that results are appended to, and taken from where they are there already")
	table = flag.String("table", "", "page to write from -results")
)

// built is where the program is built once for all tests.
var built string

var program = sync.OnceValues(func() (string, error) { return build(built) })

// TestMain makes the test program the launcher of the traced program where the environment says so.
func TestMain(m *testing.M) {
	if binary := os.Getenv(launchVariable); binary != "" {
		os.Unsetenv(launchVariable)
		fmt.Fprintln(os.Stderr, "launch:", launch(binary))
		os.Exit(127)
	}

	flag.Parse()
	dir, release, err := scratch.Folder("compress-fault-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}

	built = dir
	code := m.Run()
	if err := release(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}

	os.Exit(code)
}
