package quantize

import (
	"errors"
	"path/filepath"
	"testing"
)

// TestHQQ: weights err less in the mean than by their ranges; the bytes are the same for any number of threads; schemes
// without zero points are refused, and so is a second search.
func TestHQQ(t *testing.T) {
	dense := source(t, nano)
	folders := map[string]string{}
	for i, method := range []string{RTN, HQQ, HQQ} {
		m := open(t, nano, i+1)
		o := options(t, "w4a16_asym", method, filepath.Join(t.TempDir(), "out"))
		if _, err := Model(ctx, m, calibration(t, m, 0, 0), o); err != nil {
			t.Fatal(err)
		}
		if before := folders[method]; before != "" {
			sameFiles(t, before, o.Out)
		}
		folders[method] = o.Out
	}

	alone, moved := source(t, folders[RTN]), source(t, folders[HQQ])
	for _, lin := range open(t, nano, 1).Linears(2) {
		before := powerError(t, dense, alone, lin.Name, 1, nil)
		if after := powerError(t, dense, moved, lin.Name, 1, nil); after > 0.99*before {
			t.Errorf("%s: an error of %g, by the ranges %g", lin.Name, after, before)
		}
	}

	m := open(t, nano, 1)
	for _, change := range []func(o *Options){
		func(o *Options) { o.Scheme, _ = SchemeByName("w4a16") },
		func(o *Options) { o.Types = []TypeRule{{"down_proj", "w8a16"}} },
		func(o *Options) { o.Range = RangeMSE },
	} {
		o := options(t, "w4a16_asym", HQQ, filepath.Join(t.TempDir(), "out"))
		change(&o)
		if _, err := Model(ctx, m, calibration(t, m, 0, 0), o); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
