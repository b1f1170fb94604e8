package trim_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain gives property tests the same draws in every run, fewer than usual, since there are many tokenizers;
// -rapid.seed=0 draws anew, -rapid.checks=1000 more.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.seed": "1", "rapid.checks": "12"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
