package serve

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
)

// heapNow is the heap without garbage.
func heapNow() int64 {
	runtime.GC()
	runtime.GC() // what pools hold lives through one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestNothingPilesUp: hundreds of adapters that come under new names, answer and go leave neither memory nor counters,
// and the prompts that are kept are no more than there is memory for.
func TestNothingPilesUp(t *testing.T) {
	x := newShelf(t)
	round := func(from, to int) {
		for i := from; i < to; i++ {
			name := fmt.Sprint("adapter-", i)
			if code, kind := x.load(t, "load", obj{"lora_name": name, "lora_path": fmt.Sprint("a", i%3)}); code != 200 {
				t.Fatal(code, kind)
			}
			x.complete(obj{
				"model": name, "prompt": strings.Repeat(fmt.Sprint(i, " "), 40), "max_tokens": 2, "logprobs": 1,
			})
			if code, kind := x.load(t, "unload", obj{"lora_name": name}); code != 200 {
				t.Fatal(code, kind)
			}
		}
		http.DefaultClient.CloseIdleConnections()
		wait(t, "the end", x.idle)
	}
	use := func() (kept, possible int) {
		text := x.text("/metrics")
		for name, to := range map[string]*int{"kept": &kept, "possible": &possible} {
			at := strings.Index(text, "\ncompress_positions_"+name+" ")
			if _, err := fmt.Sscanf(text[at+1:], "compress_positions_"+name+" %d", to); err != nil {
				t.Fatal(err)
			}
		}
		return kept, possible
	}

	round(0, 40) // pools have what they need
	before, lines := heapNow(), strings.Count(x.text("/metrics"), "\n")
	round(40, 240)
	if grown := heapNow() - before; grown > 2<<20 {
		t.Errorf("200 adapters and requests leave %d bytes", grown)
	}
	text := x.text("/metrics")
	if n := strings.Count(text, "\n"); n > lines+10 || strings.Contains(text, "adapter-") {
		t.Errorf("%d lines of metrics, %d before", n, lines)
	}
	if kept, possible := use(); kept > possible || possible == 0 {
		t.Errorf("%d positions of %d are kept", kept, possible)
	}
	if n := x.open.Load(); n != 0 {
		t.Errorf("%d adapters are open", n)
	}
}

// TestKeysAndValuesAreNoHeap: the collector lets garbage grow with the heap, and keys and values are no part of it;
// their memory goes back with the server.
func TestKeysAndValuesAreNoHeap(t *testing.T) {
	m := nano(t, "base")
	before := heapNow()
	s, err := Handler(Models{m}, Options{Memory: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	grown := heapNow() - before
	s.stop()
	if grown > 64<<20 {
		t.Errorf("the heap has %d bytes more", grown)
	}
}
