package workers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/jobs"
)

// TestJoinLine: the line by which workers join has all that they need, and a token that the user keeps in a file is not
// in it.
func TestJoinLine(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	for name, c := range map[string]struct {
		where     Where
		has, lack []string
	}{
		"loopback": {
			Where{Listen: "127.0.0.1:0"},
			[]string{"compress worker --cluster nats://worker:", "@127.0.0.1:"},
			[]string{"--cluster-pin", "--cluster-login"},
		},
		"not known to be loopback": {
			Where{Listen: "LOCALHOST:0"}, []string{"--cluster tls://worker:", " --cluster-pin sha256:"}, nil,
		},
		"token of a file": {
			Where{Listen: "127.0.0.1:0", Token: token},
			[]string{"--cluster nats://127.0.0.1:", " --cluster-login " + token},
			[]string{"0123456789abcdef", "worker:"},
		},
		"open": {
			Where{Listen: "127.0.0.1:0", Anyone: true},
			[]string{"--cluster nats://127.0.0.1:"},
			[]string{"worker:", "--cluster-"},
		},
	} {
		s, err := jobs.Serve(jobs.ServerOptions{Listen: c.where.Listen, TokenFile: c.where.Token, Open: c.where.Anyone})
		if err != nil {
			t.Fatal(err)
		}

		line := c.where.join(s)
		for _, part := range c.has {
			if !strings.Contains(line, part) {
				t.Errorf("%s: %q is not in %q", name, part, line)
			}
		}
		for _, part := range c.lack {
			if strings.Contains(line, part) {
				t.Errorf("%s: %q is in %q", name, part, line)
			}
		}

		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSlots: none where all work is left to others, otherwise what was asked for, or one for each thread.
func TestSlots(t *testing.T) {
	for _, c := range []struct{ workers, threads, want int }{{-1, 8, 0}, {0, 8, 8}, {3, 8, 3}, {1, 0, 1}} {
		if got := (Where{Workers: c.workers}).Slots(c.threads); got != c.want {
			t.Errorf("--workers %d with %d threads: %d, want %d", c.workers, c.threads, got, c.want)
		}
	}
	if got := (Where{}).Slots(0); got < 1 {
		t.Errorf("%d slots where nothing is known", got)
	}
}
