package stats

import (
	"encoding/json"
	"math"
	"testing"
)

// TestVersusNotFinite: where a loss is no number, the test has no result and is null in a report.
func TestVersusNotFinite(t *testing.T) {
	v := NewVersus([]float64{1, math.NaN(), 3}, []float64{1.5, 1, 2})
	v.Best = "a"
	AdjustHolm([]*Versus{v})
	got, err := json.Marshal(v)
	want := `{"best":"a","nll_difference":null,"stderr":null,"t":null,"windows":3,"p":null,"p_holm":null}`
	if err != nil || string(got) != want {
		t.Errorf("%s %v\nwant %s", got, err, want)
	}

	var back Versus
	if err := json.Unmarshal(got, &back); err != nil || !math.IsNaN(back.P) || back.Windows != 3 {
		t.Errorf("read back: %+v %v", back, err)
	}
}
