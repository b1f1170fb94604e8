package arch

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"
)

// rotation is the rotation of a model of one head of 16 channels.
func rotation(t *testing.T, parameters json.RawMessage, positions int) *Rope {
	t.Helper()
	config, err := json.Marshal(map[string]any{
		"model_type": "llama", "vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
		"intermediate_size": 8, "max_position_embeddings": positions, "rope_parameters": parameters,
	})
	if err != nil {
		t.Fatal(err)
	}

	c, err := ParseConfig("config.json", config)
	if err != nil {
		t.Fatal(err)
	}
	return c.Rope
}

// TestFrequenciesAsTransformers: those of every type (testdata/rope.py), within the rounding of float32 there.
func TestFrequenciesAsTransformers(t *testing.T) {
	data, err := os.ReadFile("testdata/rope.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Parameters json.RawMessage `json:"rope_parameters"`
		Positions  int
		Most       int       `json:"max_position_embeddings"`
		Freq       []float64 `json:"inv_freq"`
		Gain       float64
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}

	for _, c := range cases {
		freq, gain := rotation(t, c.Parameters, c.Most).InvFreq(c.Positions)
		if math.Abs(gain-c.Gain) > 1e-6 || len(freq) != len(c.Freq) {
			t.Errorf("%s: gain %v of %d frequencies, want %v of %d", c.Parameters, gain, len(freq), c.Gain, len(c.Freq))
			continue
		}
		for i, f := range freq {
			if math.Abs(f-c.Freq[i]) > 2e-6*c.Freq[i] {
				t.Errorf("%s at %d: frequency %d is %v, want %v", c.Parameters, c.Positions, i, f, c.Freq[i])
			}
		}
	}
}

// TestFrequenciesStayBetween: whatever scales them, frequencies fall from pair to pair and lie between those of no
// scaling and these over the factor.
func TestFrequenciesStayBetween(t *testing.T) {
	for _, parameters := range []string{
		`{"rope_type":"linear","rope_theta":1e4,"factor":4}`,
		`{"rope_type":"llama3","rope_theta":5e5,"factor":4,"low_freq_factor":1,"high_freq_factor":4,` +
			`"original_max_position_embeddings":64}`,
		`{"rope_type":"yarn","rope_theta":1e4,"factor":4,"original_max_position_embeddings":64}`,
	} {
		r := rotation(t, json.RawMessage(parameters), 256)
		freq, _ := r.InvFreq(10)
		plain, last := r.base(r.Theta), math.Inf(1)
		for i, f := range freq {
			if f > plain[i]*(1+1e-12) || f < plain[i]/r.Factor*(1-1e-12) || f >= last {
				t.Errorf("%s: frequency %d is %v, unscaled %v, before it %v", parameters, i, f, plain[i], last)
			}
			last = f
		}
		if !r.Static() {
			t.Errorf("%s depends on the length", parameters)
		}
	}
}

// TestFillByPositions: rows are those of their positions, however many are filled at once, with sines and cosines of
// the angles, times the gain.
func TestFillByPositions(t *testing.T) {
	r := rotation(t, json.RawMessage(
		`{"rope_type":"yarn","rope_theta":1e4,"factor":4,"original_max_position_embeddings":64}`), 256)
	half := r.Dim / 2
	cos, sin := make([]float32, 40*half), make([]float32, 40*half)
	r.Fill(cos, sin, 0, 40)

	freq, gain := r.InvFreq(40)
	for _, at := range []int{0, 7, 39} {
		c, s := make([]float32, half), make([]float32, half)
		r.Fill(c, s, at, 40)
		for i := range half {
			if c[i] != cos[at*half+i] || s[i] != sin[at*half+i] {
				t.Errorf("position %d alone: pair %d is (%v, %v), among others (%v, %v)", at, i, c[i], s[i],
					cos[at*half+i], sin[at*half+i])
			}

			angle := float64(at) * freq[i]
			dc, ds := float64(c[i])-gain*math.Cos(angle), float64(s[i])-gain*math.Sin(angle)
			if math.Hypot(dc, ds) > 1e-5 { // angles are float32
				t.Errorf("position %d, pair %d: (%v, %v) at an angle of %v", at, i, c[i], s[i], angle)
			}
		}
	}
}

// TestLengthsThatMatter: dynamic frequencies begin to change behind the positions of the model, those of longrope
// behind the original ones.
func TestLengthsThatMatter(t *testing.T) {
	dynamic := rotation(t, json.RawMessage(`{"rope_type":"dynamic","rope_theta":1e4,"factor":2}`), 256)
	factors := `"short_factor":[1,1,1,1,1,1,1,1],"long_factor":[2,2,2,2,2,2,2,2]`
	long := rotation(t, json.RawMessage(
		`{"rope_type":"longrope","rope_theta":1e4,"factor":4,"original_max_position_embeddings":64,`+factors+`}`), 256)
	for _, c := range []struct {
		r      *Rope
		border int
	}{{dynamic, 256}, {long, 64}} {
		show := func(n int) string {
			freq, _ := c.r.InvFreq(n)
			return fmt.Sprint(freq)
		}
		same := show(1) == show(c.border-1) && show(1) == show(c.border)
		if !same || show(c.border) == show(c.border+1) || c.r.Static() {
			t.Errorf("%s: the frequencies do not change behind %d positions", c.r.Type, c.border)
		}
	}
}
