package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestKilledTraining: training that is killed as soon as some state is there, again and again, ends with the
// bytes of a run that was left alone, for adapters with dropout and for whole models with a fused update.
func TestKilledTraining(t *testing.T) {
	binary, dir := program(t), t.TempDir()
	for name, flags := range map[string][]string{
		"mos":  {"--kind", "mos", "--equivalent-rank", "3", "--rank", "5", "--dropout", "0.1", "--clip", "1"},
		"full": {"--kind", "full", "--optimizer", "adalomo", "--lr", "1e-3"},
	} {
		t.Run(name, func(t *testing.T) {
			args := func(out string, more ...string) []string {
				list := []string{
					"lora", "train", "../../testdata/nano/base", "--data", "../../testdata/nano/text/calib.txt",
					"--steps", "14", "--batch", "2", "--seqlen", "64",
					"--schedule", "cosine", "--warmup", "3", "--save-every", "2", "--threads", "1", "--quiet", "--out",
					out,
				}
				return append(append(list, flags...), more...)
			}

			want, out := filepath.Join(dir, name+"-want"), filepath.Join(dir, name+"-killed")
			run1(t, binary, args(want)...)

			midway := 0
			for _, after := range []int{2, 6, 10} {
				state := filepath.Join(dir, "."+name+"-killed.training", fmt.Sprintf("state-%08d.safetensors", after))
				if _, _, stopped := stopWhen(t, exec.Command(binary, args(out, "--resume")...), syscall.SIGKILL,
					dir, func() bool {
						_, err := os.Stat(state)
						return err == nil
					}); !stopped {
					continue
				}

				midway++
				if midway > 1 {
					continue
				}
				text, err := exec.Command(binary, args(out, "--resume", "--batch", "3")...).CombinedOutput()
				if err == nil || !strings.Contains(string(text), "it was begun with --batch 2, now 3") {
					t.Errorf("other settings: %v: %s", err, text)
				}
			}

			run1(t, binary, args(out, "--resume")...)
			if midway == 0 {
				t.Error("no run was killed before its end")
			}

			compareModels(t, want, out)
			if _, err := os.Stat(filepath.Join(dir, "."+name+"-killed.training")); err == nil {
				t.Error("the state is still there")
			}
		})
	}
}

// compareModels compares the tensors and configurations of two folders.
func compareModels(t *testing.T, want, got string) {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(want, "*.safetensors"))
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}

	for _, path := range append(list, filepath.Join(want, "adapter_config.json")) {
		a, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue // of a whole model
		}

		b, err2 := os.ReadFile(filepath.Join(got, filepath.Base(path)))
		if err != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs (%v, %v)", filepath.Base(path), err, err2)
		}
	}
}
