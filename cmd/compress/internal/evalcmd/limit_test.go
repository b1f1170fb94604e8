package evalcmd

import (
	"testing"

	"github.com/modelcompress/compress/editeval/task"
)

// TestLimit: whole numbers are documents, numbers between 0 and 1 shares, and nothing else is a limit.
func TestLimit(t *testing.T) {
	for text, want := range map[string]task.Options{
		"0": {}, "7": {Limit: 7}, "10.0": {Limit: 10}, "1.0": {Limit: 1}, "0.5": {Share: 0.5}, "1e-3": {Share: 0.001},
	} {
		var o task.Options
		l := Limit{&o}
		if err := l.Set(text); err != nil || o.Limit != want.Limit || o.Share != want.Share {
			t.Errorf("%s: %d %g, %v", text, o.Limit, o.Share, err)
		}
		var again task.Options
		if err := (Limit{&again}).Set(l.String()); err != nil || again.Limit != o.Limit || again.Share != o.Share {
			t.Errorf("%s is shown as %s", text, l)
		}
	}
	for _, text := range []string{"", "half", "-0.5", "1.5", "NaN", "Inf", "0.0"} {
		if err := (Limit{new(task.Options)}).Set(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
