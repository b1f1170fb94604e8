// Package fuzzlimit holds what the fuzz targets of this module ask of every reader of files from strangers,
// whatever it makes of them: that it takes no memory out of proportion to its input, and comes to an end.
package fuzzlimit

import (
	"encoding/binary"
	"flag"
	"fmt"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/modelcompress/compress/internal/cputime"
)

// Free bytes may be allocated for any input, and PerByte for each of its bytes; counted is all that is
// allocated, also what is freed again at once, so this bounds the work as well.
const (
	Free    = 128 << 20
	PerByte = 16 << 10
)

// patience is how long an input may take while fuzzing, in time of the processor: far more than any of the sizes
// that are tried needs. One that waits for something instead is ended after stillness, by the clock, which a
// process that only gets what others leave of the processors may need for an honest input.
const (
	patience  = 60 * time.Second
	stillness = 20 * time.Minute
)

// allocated is the metric of all bytes allocated so far.
const allocated = "/gc/heap/allocs:bytes"

// Watch begins to watch over one input of so many bytes; the function that it returns ends that, and reports what was
// allocated if it is too much:
//
//	defer hostile.Watch(t, len(data))()
//
// An input that does not come to an end is ended by a panic, so that the fuzzer notes it. That holds only while
// fuzzing: go test has a limit of its own.
func Watch(t testing.TB, size int) (done func()) {
	t.Helper()
	stop := func() {}
	if fuzzing() {
		stop = limit(patience, stillness, func(took time.Duration) {
			panic("hostile: an input takes longer than " + took.String())
		})
	}

	before := total()
	return func() {
		t.Helper()
		stop()
		if err := Check(total()-before, size); err != nil {
			t.Error(err)
		}
	}
}

// limit calls late once this process has used more than some time of the processor, or more than some time has
// passed by the clock, unless it is stopped before.
func limit(cpu, wall time.Duration, late func(took time.Duration)) (stop func()) {
	began, used := time.Now(), cputime.Process()
	done := make(chan struct{})

	go func() {
		tick := time.NewTicker(cpu)
		defer tick.Stop()

		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}

			spent, passed := cputime.Process()-used, time.Since(began)
			if spent >= cpu || passed >= wall {
				late(max(spent, passed))
				return
			}
		}
	}()

	return func() { close(done) }
}

// Check reports whether so many allocated bytes are too many for an input of some size.
func Check(used uint64, size int) error {
	if limit := Free + PerByte*uint64(size); used > limit {
		return fmt.Errorf("%d bytes allocated for an input of %d, at most %d are in proportion", used, size, limit)
	}
	return nil
}

// fuzzing reports whether inputs are being made, and not only those of the corpus run.
func fuzzing() bool {
	f := flag.Lookup("test.fuzz")
	return f != nil && f.Value.String() != ""
}

func total() uint64 {
	s := []metrics.Sample{{Name: allocated}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// File makes a safetensors file of a header and the data of its tensors, so that what is tried is not stopped
// by the length in front.
func File(header string, data []byte) []byte {
	out := binary.LittleEndian.AppendUint64(make([]byte, 0, 8+len(header)+len(data)), uint64(len(header)))
	return append(append(out, header...), data...)
}

// Parts takes a safetensors file apart for [File].
func Parts(file []byte) (header string, data []byte) {
	if len(file) < 8 {
		return "", nil
	}
	n := min(binary.LittleEndian.Uint64(file), uint64(len(file)-8))
	return string(file[8 : 8+n]), file[8+n:]
}

// Aliases is YAML whose keys a0 to aN stand for 10^(N+1) values, each made of ten times the one before.
func Aliases(n int) string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), i-1)
	}
	return b.String()
}
