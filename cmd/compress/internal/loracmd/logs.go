package loracmd

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lora"
)

// Logs are files that a training writes as it goes, for other programs to watch: a table, and events for TensorBoard. A
// training that goes on writes the steps before anew, so that they are in the files once.
type Logs struct {
	CSV, TensorBoard string // file and folder; empty: none

	table  *csv.Writer
	events io.Writer
	files  []*os.File
	now    func() time.Time // nil: time.Now
}

// eventFile is the name of the file in TensorBoard's folder; the part in the middle is what TensorBoard looks for.
const eventFile = "events.out.tfevents.compress"

// brand is by what TensorBoard knows the file.
const brand = "brain.Event:2"

// columns of the table. Rows of steps have no held-out loss, rows of evaluations that alone.
var columns = []string{
	"step", "loss", "lr", "grad_norm", "tokens", "counted", "held_out_loss", "reward_chosen", "reward_rejected",
	"reward_margin", "reward_accuracy",
}

// apart refuses logs in the folder of the result, which has nothing else in it, and to replace files unless that is
// asked for.
func (l *Logs) apart(out string, replace bool) error {
	for _, x := range []struct{ flag, path string }{{"log-csv", l.CSV}, {"log-tensorboard", l.TensorBoard}} {
		flag, path := x.flag, x.path
		if path == "" {
			continue
		}

		in, err := filepath.Rel(filepath.Clean(out), filepath.Clean(path))
		if err == nil && in != ".." && !strings.HasPrefix(in, ".."+string(filepath.Separator)) {
			return cli.Usagef("--%s %s: it lies in --out, which holds the result alone", flag, path)
		}

		if flag == "log-tensorboard" {
			path = filepath.Join(path, eventFile)
		}
		switch f, err := os.Stat(path); {
		case err != nil: // it is not there, or writing says what is wrong
		case !f.Mode().IsRegular():
			return cli.Usagef("--%s: %s is not a regular file", flag, path)
		case !replace:
			return cli.Usagef("--%s: %s is there already (HINT: --overwrite replaces it, --resume goes on)", flag, path)
		case f.Size() > 0 && !logged(path):
			return cli.Usagef("--%s: %s is no log of an earlier training, and stays (HINT: choose another name)", flag,
				path)
		}
	}
	return nil
}

// logged reports whether a file begins as tables and events of [Logs] do.
func logged(path string) bool {
	f, err := safefile.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()

	begin := make([]byte, 64)
	n, _ := io.ReadFull(f, begin)
	begin = begin[:n]
	return bytes.HasPrefix(begin, []byte(strings.Join(columns[:3], ",")+",")) || bytes.Contains(begin, []byte(brand))
}

// open makes the files, with what an earlier run has done.
func (l *Logs) open(p lora.RunPlan) error {
	if l.CSV != "" {
		f, err := l.create(l.CSV)
		if err != nil {
			return err
		}
		l.table = csv.NewWriter(f)
		if err := l.table.Write(columns); err != nil {
			return err
		}
	}

	if l.TensorBoard != "" {
		if err := os.MkdirAll(l.TensorBoard, 0o777); err != nil {
			return err
		}
		f, err := l.create(filepath.Join(l.TensorBoard, eventFile))
		if err != nil {
			return err
		}
		l.events = f
		version := append([]byte{3<<3 | 2}, text(brand)...) // field 3 of Event: file_version
		if _, err := f.Write(record(append(l.stamp(0), version...))); err != nil {
			return err
		}
	}

	return l.earlier(p)
}

// earlier writes steps and evaluations in the order in which they were made: an evaluation after step n comes before
// step n, since steps count from 0.
func (l *Logs) earlier(p lora.RunPlan) error {
	evals := p.Evals
	for _, s := range p.Earlier {
		for len(evals) > 0 && evals[0].Step <= s.Step {
			if err := l.eval(evals[0]); err != nil {
				return err
			}
			evals = evals[1:]
		}
		if err := l.step(s); err != nil {
			return err
		}
	}
	for _, e := range evals {
		if err := l.eval(e); err != nil {
			return err
		}
	}
	return l.flush()
}

// create makes a file, or empties the one that is there.
func (l *Logs) create(path string) (*os.File, error) {
	f, err := os.Create(path)
	if err == nil {
		l.files = append(l.files, f)
	}
	return f, err
}

// step logs a step.
func (l *Logs) step(s lora.Step) error {
	row := []string{
		strconv.Itoa(s.Step + 1), figure(s.Loss), figure(s.LR), figure(s.GradNorm), strconv.Itoa(s.Tokens),
		strconv.Itoa(s.Counted), "",
	}
	values := []scalar{{"train/loss", s.Loss}, {"train/lr", s.LR}, {"train/grad_norm", s.GradNorm}}
	return l.write(s.Step+1, row, rewarded(values, "train", s.Rewards), s.Rewards)
}

// eval logs an evaluation.
func (l *Logs) eval(e lora.Eval) error {
	row := []string{strconv.Itoa(e.Step), "", "", "", "", "", figure(e.Loss)}
	return l.write(e.Step, row, rewarded([]scalar{{"eval/loss", e.Loss}}, "eval", e.Rewards), e.Rewards)
}

// write adds a row to the table, and an event of figures. Rows are on the disk when a reader looks for them.
func (l *Logs) write(step int, row []string, values []scalar, r *lora.Rewards) error {
	if l.table != nil {
		if r == nil {
			row = append(row, "", "", "", "")
		} else {
			row = append(row, figure(r.Chosen), figure(r.Rejected), figure(r.Margin), figure(r.Accuracy))
		}
		if err := l.table.Write(row); err != nil {
			return err
		}
	}

	if l.events != nil {
		if _, err := l.events.Write(record(append(l.stamp(step), summary(values)...))); err != nil {
			return err
		}
	}

	return l.flush()
}

func (l *Logs) flush() error {
	if l.table == nil {
		return nil
	}
	l.table.Flush()
	return l.table.Error()
}

// close ends the logs.
func (l *Logs) close() error {
	err := l.flush()
	for _, f := range l.files {
		err = errors.Join(err, f.Close())
	}
	l.files = nil
	l.table, l.events = nil, nil
	return err
}

// stop ends the logs, whatever is wrong with them.
func (l *Logs) stop() { _ = l.close() }

func figure(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// scalar is a figure with its tag.
type scalar struct {
	tag   string
	value float64
}

func rewarded(list []scalar, name string, r *lora.Rewards) []scalar {
	if r == nil {
		return list
	}
	name += "/rewards/"
	return append(list, scalar{name + "chosen", r.Chosen}, scalar{name + "rejected", r.Rejected},
		scalar{name + "margin", r.Margin}, scalar{name + "accuracy", r.Accuracy})
}

// stamp is the beginning of an Event of TensorBoard: protocol buffers with wall_time (field 1, a double) and step
// (field 2, an integer).
func (l *Logs) stamp(step int) []byte {
	now := time.Now
	if l.now != nil {
		now = l.now
	}
	p := binary.LittleEndian.AppendUint64([]byte{1<<3 | 1}, math.Float64bits(float64(now().UnixMicro())/1e6))
	return binary.AppendUvarint(append(p, 2<<3), uint64(step))
}

// summary is field 5 of an Event: values (field 1 of Summary), each with a tag (1) and a simple_value (2, a float).
func summary(values []scalar) []byte {
	var all []byte
	for _, v := range values {
		one := append([]byte{1<<3 | 2}, text(v.tag)...)
		one = binary.LittleEndian.AppendUint32(append(one, 2<<3|5), math.Float32bits(float32(v.value)))
		all = append(append(all, 1<<3|2), text(string(one))...)
	}
	return append([]byte{5<<3 | 2}, text(string(all))...)
}

// text is a text or a message with its length before it.
func text(s string) []byte { return append(binary.AppendUvarint(nil, uint64(len(s))), s...) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is an entry of a TFRecord file: the length, its checksum, the data, its checksum. The checksums are CRC-32C,
// turned and moved ("masked"), so that a sum of data that have sums in them is no trivial one.
func record(data []byte) []byte {
	sum := func(p []byte, of []byte) []byte {
		c := crc32.Checksum(of, castagnoli)
		return binary.LittleEndian.AppendUint32(p, (c>>15|c<<17)+0xa282ead8)
	}

	p := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	p = append(sum(p, p), data...)
	return sum(p, data)
}
