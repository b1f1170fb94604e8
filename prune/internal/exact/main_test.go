package exact

import (
	"flag"
	"os"
	"testing"
)

// TestMain gives property tests the same draws in every run; -rapid.seed=0 draws anew.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
