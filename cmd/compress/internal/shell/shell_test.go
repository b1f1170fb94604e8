package shell

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/safetensors"
)

func TestExitCodes(t *testing.T) {
	working := &App{working: true}
	for _, c := range []struct {
		app  *App
		err  error
		want int
	}{
		{working, nil, exitDone},
		{working, io.ErrUnexpectedEOF, exitFailed},
		{working, fmt.Errorf("deep: %w", Usagef("wrong")), exitUsage},
		{working, fmt.Errorf("deep: %w", checkpoint.ErrExists), exitUsage},
		{working, fmt.Errorf("block 3: %w", context.Canceled), exitInterrupted},
		{&App{}, errors.New("unknown flag"), exitUsage},
	} {
		if got := c.app.exitCode(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
}

func TestErrorsAreOneLine(t *testing.T) {
	err := errors.Join(errors.New("first\nline"), fmt.Errorf("second: %w", safetensors.ErrTruncated))
	got := oneLine(err)
	if strings.Contains(got, "\n") || !strings.Contains(got, "first; line; second") || strings.Count(got, "HINT:") != 1 {
		t.Errorf("%q", got)
	}
}

func TestShardLimit(t *testing.T) {
	for text, want := range map[string]int64{"keep": checkpoint.KeepShards, "none": 0, "2GB": 2e9, "1.5KiB": 1536, "7B": 7} {
		if got, err := ShardLimit(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "2", "-1GB", "NaNGB", "1e300GB", "GB"} {
		if n, err := ShardLimit(text); !IsUsage(err) {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
}

func TestUnits(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1 kB", 960192: "960 kB", 13_500_000_000: "13.5 GB", 2e15: "2e+03 TB"} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		if got := Thousands(n); got != want {
			t.Errorf("Thousands(%d) = %q, want %q", n, got, want)
		}
	}
}

// TestProgressIsSilent: where stderr is no terminal nothing is written before some seconds have passed.
func TestProgressIsSilent(t *testing.T) {
	var b bytes.Buffer
	p := (&Job{app: &App{stderr: &b}}).Progress("counting", 10)
	for i := range 10 {
		p.Set(int64(i))
	}
	p.End()
	if b.Len() > 0 {
		t.Errorf("%q", b.String())
	}
	p = (&Job{app: &App{stderr: &b}}).Progress("counting", 10)
	p.last = p.last.Add(-2 * plainEvery)
	p.Set(5)
	if got := b.String(); !strings.HasPrefix(got, "counting: 50 %, ") || strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
}

// TestWithoutSecrets: a report holds no password of a cluster.
func TestWithoutSecrets(t *testing.T) {
	for given, want := range map[string]string{
		"nats://a:b@host:4222":                        "nats://host:4222",
		"--cluster=nats://a:b@one,nats://token@two:1": "--cluster=nats://one,nats://two:1",
		"me@home": "me@home", "nats://host/a@b": "nats://host/a@b", "--prompt": "--prompt",
	} {
		if got := withoutSecrets([]string{given})[0]; got != want {
			t.Errorf("%q gives %q, want %q", given, got, want)
		}
	}
}
