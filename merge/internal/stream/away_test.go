package stream

import (
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
)

// asked counts how often a device is asked what it is, which looks at the machine's memory.
type asked struct {
	kernels.Device
	times int
}

func (d *asked) Info() kernels.Info { d.times++; return d.Device.Info() }

// However many groups a merge has, its device is asked as often as for one.
func TestDeviceIsAskedOnce(t *testing.T) {
	d := &asked{Device: cpu.New(cpu.Options{})}
	defer d.Close()

	if Away(d) != nil {
		t.Fatal("the host counts as another device")
	}

	once := d.times

	for range 100 {
		if TaskOf(Away(nil), "linear", nil) != nil {
			t.Fatal("a task without a device")
		}
	}

	e := &engine{o: Options{Device: d}, away: Away(d)}
	twice := d.times

	for range 100 {
		if done, err := e.count(Group{Census: &Census{}}, make([]segment, 1)); done || err != nil {
			t.Fatal(done, err)
		}
	}

	if d.times != twice || twice != 2*once {
		t.Errorf("asked %d times", d.times)
	}
}
