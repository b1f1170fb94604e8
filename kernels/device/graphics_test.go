//go:build !nogpu && linux && (amd64 || arm64)

package device_test

import (
	"debug/elf"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest"
	"github.com/modelcompress/compress/kernels/ref"
)

// TestGraphics opens devices of the driver's stand-in by name, and lets "auto" choose.
func TestGraphics(t *testing.T) {
	standIn(t)
	list, err := device.Graphics()
	if err != nil || len(list) != 2 || list[1].Name != "cuda:1" {
		t.Fatalf("found %+v, %v", list, err)
	}

	for _, c := range []struct {
		name  string
		work  int64
		use   device.Use
		want  string
		notes int
	}{
		{"cuda", 0, device.Batches, "cuda:0", 0},
		{"cuda:1", 0, device.Once, "cuda:1", 0},
		{"auto", 0, device.Batches, "cpu", 0},
		{"auto", device.LargeWork - 1, device.Batches, "cpu", 0},
		{"auto", device.LargeWork, device.Batches, "cuda:0", 0},
		{"auto", device.LargeWork, device.Tokens, "cuda:0", 0},
		{"auto", 2800 << 20, device.Batches, "cuda:0", 1}, // does not fit, and is sent for each pass
		{"auto", 2800 << 20, device.Tokens, "cpu", 1},     // would be sent for each token
		{"auto", 2800 << 20, device.Once, "cpu", 0},
	} {
		var notes []string
		d, err := device.Open(c.name, device.Options{Work: c.work, Use: c.use, Note: func(s string) {
			notes = append(
				notes, s)
		}})
		if err != nil {
			t.Fatal(err)
		}

		if got := d.Info().Name; got != c.want || len(notes) != c.notes {
			t.Errorf("%q for %d bytes of work opens %s with the remarks %q, want %s", c.name, c.work, got, notes,
				c.want)
		}

		if f := device.Fallbacks(d); len(f) != 0 {
			t.Errorf("%s lacks %v", c.name, f)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}

	if _, err := device.Open("cuda:2", device.Options{}); !errors.Is(err, device.ErrNoDevice) {
		t.Errorf("cuda:2: %v", err)
	}

	t.Setenv("COMPRESS_AUTO_FROM", "1")

	for use, want := range map[device.Use]string{
		device.Batches: "cuda:0", device.Tokens: "cuda:0",
		device.Once: "cpu",
	} {
		d, err := device.Open("auto", device.Options{Work: 1, Use: use})
		if err != nil || d.Info().Name != want {
			t.Fatalf("from 1 byte on, %s opens %+v, %v", use, d, err)
		}

		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}

	wideHeads(t)
}

// wideHeads: attention with heads of 320 channels, for which there is no kernel, is the reference backend's,
// and counted.
func wideHeads(t *testing.T) {
	d, err := device.Open("cuda:0", device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()

	const rows, channels = 3, 320
	var on, host [4]kernels.Mat
	for i := range on {
		values := kernels.NewHost(kernels.F32, rows*channels)
		for k := range values.F32() {
			values.F32()[k] = float32((k*(7+i))%19-9) / 16
		}

		b, err := d.Alloc(kernels.F32, values.Len)
		if err == nil {
			err = d.Upload(b, 0, values.Bytes())
		}
		if err != nil {
			t.Fatal(err)
		}

		on[i], host[i] = kernels.MatOf(b, rows, channels), kernels.MatOf(values, rows, channels)
	}

	a := kernels.Attention{Heads: 1, KVHeads: 1, HeadDim: channels, Scale: 0.1}
	d.Ops().Attention(on[0], on[1], on[2], on[3], a)
	ref.New().Ops().Attention(host[0], host[1], host[2], host[3], a)
	got := kernels.NewHost(kernels.F32, rows*channels)
	if err := errors.Join(d.Ops().Sync(), d.Download(got.Bytes(), on[0].Buf, 0)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.F32(), host[0].Buf.F32()) {
		t.Error("another result than the reference backend's")
	}
	if f := device.Fallbacks(d); len(f) != 1 || f["Attention"] != 1 {
		t.Errorf("counted %v", f)
	}
}

// standIn makes the driver's stand-in, with two devices, the driver; without a C++ compiler the test is skipped.
func standIn(t *testing.T) {
	t.Helper()
	lib := kerneltest.StandIn(t)
	if _, err := device.Open("cuda:0", device.Options{}); !errors.Is(err, device.ErrNoDevice) {
		t.Skipf("the machine has a device: %v", err)
	}
	t.Setenv("COMPRESS_CUDA_DRIVER", lib)
	t.Setenv("FAKE_CUDA", "devices=2,memory=3000000000")
}

// TestProgramFiles looks at programs that were built before as they are released (.ci/run does): one with -tags nogpu
// is a static file, one with the backend needs nothing but the C library, and is hardened as far as the loader can do
// that.
func TestProgramFiles(t *testing.T) {
	for variable, want := range map[string]string{
		"COMPRESS_STATIC_PROGRAM": "",
		"COMPRESS_PROGRAM":        "libc.so.6 libdl.so.2 libpthread.so.0",
	} {
		t.Run(variable, func(t *testing.T) {
			if os.Getenv(variable) == "" {
				t.Skip(variable + " names no program")
			}

			f, err := elf.Open(os.Getenv(variable))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()

			needed, err := f.ImportedLibraries()
			if err != nil && want != "" {
				t.Fatal(err)
			}

			loader := slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
			slices.Sort(needed)
			if got := strings.Join(needed, " "); got != want || loader != (want != "") {
				t.Errorf("needs %q, a loader: %t; want %q", got, loader, want)
			}

			for _, p := range f.Progs {
				if p.Type == elf.PT_GNU_STACK && p.Flags&elf.PF_X != 0 {
					t.Error("the stack is executable")
				}
			}
			if loader {
				hardened(t, f)
			}
		})
	}
}

// hardened fails unless a program can be loaded at any address (PIE), and the tables that the loader fills, all of them
// before the program begins, are read-only from then on (full RELRO).
func hardened(t *testing.T, f *elf.File) {
	t.Helper()
	if f.Type != elf.ET_DYN {
		t.Errorf("a file of type %v has its place in memory", f.Type)
	}
	if !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_GNU_RELRO }) {
		t.Error("nothing becomes read-only")
	}
	flags, err := f.DynValue(elf.DT_FLAGS)
	if err != nil || !slices.ContainsFunc(flags, func(v uint64) bool { return elf.DynFlag(v)&elf.DF_BIND_NOW != 0 }) {
		t.Errorf("functions are bound when they are first called: %x, %v", flags, err)
	}
}
