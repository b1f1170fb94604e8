package loracmd

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/modelcompress/compress/lora"
)

// golden is what tensorboard 2.21's RecordWriter writes for b"abc".
const golden = "0300000000000000b099490e6162636e57f121"

// TestRecord: a record of TensorFlow's own, whose sums are CRC-32C, masked.
func TestRecord(t *testing.T) {
	got := record([]byte("abc"))
	if hex.EncodeToString(got) != golden {
		t.Fatalf("%x, want %s", got, golden)
	}
	for _, part := range []struct{ data, sum []byte }{{got[:8], got[8:12]}, {got[12:15], got[15:]}} {
		// Turned back as readers do it.
		masked := binary.LittleEndian.Uint32(part.sum) - 0xa282ead8
		if c := masked>>17 | masked<<15; c != crc32.Checksum(part.data, crc32.MakeTable(crc32.Castagnoli)) {
			t.Errorf("%x: checksum %x", part.data, part.sum)
		}
	}
}

// TestLogs: the files of a run that goes on are those of a run that was not interrupted.
func TestLogs(t *testing.T) {
	steps := []lora.Step{
		{Step: 0, Loss: 2, LR: 0.5, GradNorm: 1, Tokens: 8, Counted: 7},
		{Step: 1, Loss: 1.5, LR: 0.25, GradNorm: 0.5, Tokens: 8, Counted: 7, Rewards: &lora.Rewards{
			Chosen: 1, Margin: 2,
		}},
	}
	evals := []lora.Eval{{Step: 0, Loss: 3}, {Step: 1, Loss: 2.5}, {Step: 2, Loss: 2}}
	files := func(plan lora.RunPlan, more func(l *Logs) error) (table, events []byte) {
		dir := t.TempDir()
		l := Logs{
			CSV: filepath.Join(dir, "log.csv"), TensorBoard: filepath.Join(dir, "tb"),
			now: func() time.Time { return time.UnixMicro(1_500_000) },
		}
		if err := l.apart(filepath.Join(dir, "out"), false); err != nil {
			t.Fatal(err)
		}
		if err := l.open(plan); err != nil {
			t.Fatal(err)
		}
		if err := more(&l); err != nil {
			t.Fatal(err)
		}
		if err := l.close(); err != nil {
			t.Fatal(err)
		}
		if err := l.apart(filepath.Join(dir, "out"), false); err == nil {
			t.Error("files that are there were taken for new ones")
		}
		if err := l.apart(dir, true); err == nil {
			t.Error("logs inside of the output were accepted")
		}

		table, err := os.ReadFile(l.CSV)
		if err == nil {
			events, err = os.ReadFile(filepath.Join(l.TensorBoard, eventFile))
		}
		if err != nil {
			t.Fatal(err)
		}
		return table, events
	}

	table, events := files(lora.RunPlan{}, func(l *Logs) error {
		for _, f := range []func() error{
			func() error { return l.eval(evals[0]) }, func() error { return l.step(steps[0]) },
			func() error { return l.eval(evals[1]) }, func() error { return l.step(steps[1]) },
			func() error { return l.eval(evals[2]) },
		} {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	})
	const want = `step,loss,lr,grad_norm,tokens,counted,held_out_loss,reward_chosen,reward_rejected,reward_margin,reward_accuracy
0,,,,,,3,,,,
1,2,0.5,1,8,7,,,,,
1,,,,,,2.5,,,,
2,1.5,0.25,0.5,8,7,,1,0,2,0
2,,,,,,2,,,,
`
	if string(table) != want {
		t.Errorf("%s", table)
	}

	again, same := files(lora.RunPlan{Earlier: steps, Evals: evals}, func(*Logs) error { return nil })
	if !bytes.Equal(table, again) || !bytes.Equal(events, same) {
		t.Errorf("after the step %d of another run the logs differ:\n%s", len(steps), again)
	}

	// The first event, field by field: wall_time 1.5, step 0, file_version.
	version := record([]byte("\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x10\x00\x1a\x0dbrain.Event:2"))
	// The second: the held-out loss before training, tag eval/loss, 3.
	first := record([]byte("\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x10\x00" +
		"\x2a\x12\x0a\x10\x0a\x09eval/loss\x15\x00\x00\x40\x40"))
	if !bytes.HasPrefix(events, append(version, first...)) {
		t.Errorf("%q", events[:min(len(events), 120)])
	}
}

// TestForeignLogs: files that no training has logged are neither replaced nor emptied, whatever the flags; logs are.
func TestForeignLogs(t *testing.T) {
	for content, mine := range map[string]bool{
		"": false, "step,loss,lr,grad_norm\n": false,
		string(record(append([]byte{26}, text("brain.Event:2")...))): false,
		"{}": true, "step\n1\n": true, "thesis": true,
	} {
		dir := t.TempDir()
		l := Logs{CSV: filepath.Join(dir, "log.csv"), TensorBoard: filepath.Join(dir, "tb")}
		for _, path := range []string{l.CSV, filepath.Join(l.TensorBoard, eventFile)} {
			err := os.MkdirAll(filepath.Dir(path), 0o777)
			if err = errors.Join(err, os.WriteFile(path, []byte(content), 0o666)); err != nil {
				t.Fatal(err)
			}
		}
		for _, one := range []Logs{{CSV: l.CSV}, {TensorBoard: l.TensorBoard}} {
			if err := one.apart(filepath.Join(dir, "out"), true); mine != (err != nil) {
				t.Errorf("%q: %v", content, err)
			}
		}
	}
}
