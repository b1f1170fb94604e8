package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/modelcompress/compress/checkpoint"
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
	if strings.Contains(got, "\n") || !strings.Contains(got, "first; line; second") ||
		strings.Count(got, "HINT:") != 1 {
		t.Errorf("%q", got)
	}
}

func TestShardLimit(t *testing.T) {
	for text, want := range map[string]int64{
		"keep": checkpoint.KeepShards, "none": 0, "2GB": 2e9, "1.5KiB": 1536,
		"7B": 7,
	} {
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
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1 kB", 960192: "960 kB",
		13_500_000_000: "13.5 GB", 2e15: "2e+03 TB",
	} {
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

// TestProgressOfStages: the stages to come are part of the time left, by the pace of those before them; a stage
// that has not moved says how long it takes by that pace, and steps of an earlier run say nothing about it.
func TestProgressOfStages(t *testing.T) {
	var b bytes.Buffer
	j := &Job{app: &App{stderr: &b}}
	j.Announce(Stage{"first", 10}, Stage{"never", 5}, Stage{"second", 30}, Stage{"third", 20})
	shown := func(p *Progress, ago time.Duration, done int64) string {
		b.Reset()
		p.start, p.last = time.Now().Add(-ago), time.Time{}
		p.Set(done)
		return b.String()
	}

	first := j.Progress("first", 100)
	if got := shown(first, 10*time.Second, 0); got != "first: 0 %, 10s so far\n" {
		t.Errorf("before anything is known: %q", got)
	}
	if got := shown(first, 10*time.Second, 50); got != "first: 50 %, 10s left, 2m0s in all\n" { // 10 s for 5 of 65
		t.Errorf("the first of three: %q", got)
	}

	shown(first, 20*time.Second, 100)
	first.End()
	first.End()

	second := j.Progress("second", 10)
	if got := shown(second, 0, 0); got != "second: 0 %, about 1m0s left\n" { // 2 s for each unit of the first
		t.Errorf("a stage that begins: %q", got)
	}

	second.Skip(5)
	if got := shown(second, 30*time.Second, 10); got != "second: 100 %, 0s left, 40s in all\n" { // 50 s for 25 units
		t.Errorf("half of it was done before: %q", got)
	}

	second.End()

	third := j.Progress("third", 4)
	if got := shown(third, 4*time.Second, 1); got != "third: 25 %, 12s left\n" {
		t.Errorf("the last stage: %q", got)
	}

	third.End()

	if got := shown(j.Progress("nobody announced it", 4), 4*time.Second,
		1); got != "nobody announced it: 25 %, 12s left\n" {
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
