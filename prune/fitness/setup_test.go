package fitness

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// TestGradientsOnDisk: the gradients of one set of calibration data lie on the disk at a time, 2 bytes a
// weight; those of the selection and the test are made when a metric there asks for them, and what it takes is
// said before and while it is done.
func TestGradientsOnDisk(t *testing.T) {
	dir, s := t.TempDir(), subjectOf(t, "base", 2)
	var plans []Setup
	seen := map[string]int64{}
	j := judge(t, Options{
		Settings: settings()[:1], Windows: 2, Dir: dir,
		Plan: func(p Setup) { plans = append(plans, p) },
		Progress: func(model, stage string, done, of int64) {
			if model != "base" || done < seen[stage] || done >= of {
				t.Errorf("%s, %s: %d of %d after %d", model, stage, done, of, seen[stage])
			}
			seen[stage] = done
		},
	}, s)

	files := func() []string {
		t.Helper()
		list, err := filepath.Glob(filepath.Join(dir, "*.safetensors*"))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}

	first := files()
	if len(first) != 2 {
		t.Fatalf("%q; want one file and its hash", first)
	}
	if len(plans) != 1 || plans[0].Gradients <= 0 || plans[0].Statistics <= 0 || plans[0].Memory <= 0 {
		t.Errorf("%+v", plans)
	}

	info, err := os.Stat(first[0])
	if err != nil || info.Size() < plans[0].Disk || info.Size() > plans[0].Disk*11/10 { // and a header
		t.Errorf("%d bytes, %d expected: %v", info.Size(), plans[0].Disk, err)
	}

	if seen[StageGradients] == 0 || seen[StageStatistics] == 0 {
		t.Errorf("%v", seen)
	}

	measure(t, j, Test, "wanda")
	if now := files(); len(now) != 2 || now[0] != first[0] {
		t.Errorf("a metric without gradients has left %q", now)
	}

	want := measure(t, j, Test, "pruner-zero").Values[0]
	if now := files(); len(now) != 2 || now[0] == first[0] {
		t.Errorf("after the test %q", now)
	}

	measure(t, j, Full, "pruner-zero")
	if got := measure(t, j, Test, "pruner-zero").Values[0]; got != want {
		t.Errorf("%g, and %g the second time", want, got)
	}
}

// TestRoom: what does not fit on the disk is refused before the work, and what is not known is tried.
func TestRoom(t *testing.T) {
	if err := room(10, 9, "dir"); !errors.Is(err, safetensors.ErrNoSpace) {
		t.Error(err)
	}

	for _, free := range []int64{10, -1} {
		if err := room(10, free, "dir"); err != nil {
			t.Error(err)
		}
	}
}
