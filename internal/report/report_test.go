package report_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/report"
)

func sample() *report.Table {
	t := &report.Table{Title: "Perplexity", Columns: report.Columns("model", "zeros", "perplexity|%.3f"), Note: "lower is better"}
	t.Add("dense", 0, 1.5)
	t.Add("wanda | 2:4", 12, 2.25)
	t.Add("broken", 3, math.NaN())
	return t
}

func ExampleTable_Markdown() {
	t := &report.Table{Title: "Perplexity", Columns: report.Columns("model", "zeros", "perplexity|%.3f"), Note: "lower is better"}
	t.Add("dense", 0, 1.5)
	t.Add("wanda | 2:4", 12, 2.25)
	if err := t.Markdown(os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// **Perplexity**
	//
	// | model | zeros | perplexity |
	// |---|---:|---:|
	// | dense | 0 | 1.500 |
	// | wanda \| 2:4 | 12 | 2.250 |
	//
	// lower is better
}

func TestCSVKeepsPrecisionAndQuotes(t *testing.T) {
	tab := sample()
	tab.Add(`a "b", c`, 1, 1.0/3)
	var b bytes.Buffer
	if err := tab.CSV(&b); err != nil {
		t.Fatal(err)
	}
	got, err := csv.NewReader(&b).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if last := got[len(got)-1]; last[0] != `a "b", c` || last[2] != fmt.Sprint(1.0/3) {
		t.Errorf("last row %q", last)
	}
}

func TestJSONHasNullForNaN(t *testing.T) {
	raw, err := json.Marshal(sample())
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]any
	if err := json.Unmarshal(raw, &rows); err != nil {
		t.Fatal(err)
	}
	if rows[0]["perplexity"] != 1.5 || rows[2]["perplexity"] != nil || len(rows) != 3 {
		t.Errorf("rows %v", rows)
	}
}

func charts() []*report.Chart {
	y := []float64{3, 2, math.NaN(), 1.5, 1.4, math.Inf(1), 1.3}
	s := []report.Series{{Name: "a <b>", Y: y}, {Name: "b", X: []float64{1, 2, 4, 8, 16, 32, 64}, Y: []float64{1, 2, 3, 4, 5, 6, 7}}}
	return []*report.Chart{
		{Title: "line & more", Kind: report.Line, X: report.Axis{Label: "step"}, Y: report.Axis{Label: "loss"}, Series: s},
		{Title: "log", Kind: report.Line, X: report.Axis{Log: true, Label: "n"}, Y: report.Axis{Log: true, Label: "seconds"}, Series: s},
		{Title: "points", Kind: report.Scatter, Series: s},
		{Title: "bars", Kind: report.Bar, X: report.Axis{Label: "perplexity"}, Labels: []string{"magnitude 50 %", "wanda 50 %", "a name that is much too long for the room that there is on the left"}, Series: s},
		{Title: "heat", Kind: report.Heat, Labels: []string{"q", "k", "v", "o", "gate", "up", "down"}, Series: s},
	}
}

func TestChartsAreWellFormed(t *testing.T) {
	for _, c := range append(charts(), &report.Chart{Kind: report.Line}, &report.Chart{Kind: report.Bar}, &report.Chart{Kind: report.Heat}) {
		wellFormed(t, c)
	}
}

// wellFormed parses the drawing and refuses coordinates that are not numbers.
func wellFormed(t interface{ Fatalf(string, ...any) }, c *report.Chart) {
	out := c.SVG()
	for d := xml.NewDecoder(strings.NewReader(out)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("chart %q: %v in %s", c.Title, err, out)
		}
	}
	if regexp.MustCompile(`="[^"]*(NaN|Inf)`).MatchString(out) {
		t.Fatalf("chart %q has a coordinate that is not a number: %s", c.Title, out)
	}
}

func TestAnyValuesDraw(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64(), 0, 30).Draw(rt, "y")
		for i := range values { // figures are measurements: beyond these the ticks themselves overflow
			values[i] = math.Mod(values[i], 1e200)
		}
		wellFormed(rt, &report.Chart{
			Kind: report.Kind(rapid.IntRange(0, 3).Draw(rt, "kind")), Y: report.Axis{Log: rapid.Bool().Draw(rt, "log")},
			Labels: make([]string, len(values)), Series: []report.Series{{Name: "s", Y: values}},
		})
	})
}

// TestErrorBars: one for each value with two finite ends; the scale has room for them.
func TestErrorBars(t *testing.T) {
	c := &report.Chart{Kind: report.Line, Series: []report.Series{{
		Name: "a", Y: []float64{1, 2, 3, 4}, Low: []float64{0.5, math.NaN(), 3, 9}, High: []float64{30, 2.5, 3, 8},
	}}}
	svg := c.SVG()
	if n := strings.Count(svg, "whisker"); n != 1 {
		t.Errorf("%d error bars, want 1: one end is no number, one bar has no length, one is upside down", n)
	}
	if !strings.Contains(svg, ">30<") {
		t.Error("the scale ends below an error bar")
	}
	wellFormed(t, c)
}

// TestHeatScale: with a scale of its own a map of equal values is as pale as they are, and values beyond it are as strong as its end.
func TestHeatScale(t *testing.T) {
	c := &report.Chart{Kind: report.Heat, Labels: []string{"1", "2", "3"}, Scale: [2]float64{0, 1}, Series: []report.Series{{Name: "a", Y: []float64{0.5, 0.5, 2}}}}
	svg := c.SVG()
	if strings.Count(svg, `fill-opacity="0.50"`) != 2 || strings.Count(svg, `fill-opacity="0.92"`) != 1 {
		t.Error(svg)
	}
	wellFormed(t, c)
}

func page() *report.Page {
	return &report.Page{Title: "compress demo <x>", Subtitle: "base, 0.48M parameters, cpu", Sections: []report.Section{
		{
			Title: "Result", Text: []string{"Half of the weights are gone; the model is measured before and after on text it has not seen."},
			Facts:  []report.Fact{{Name: "perplexity", Value: "1.534"}, {Name: "windows", Value: "128"}, {Name: "data", Value: "sha256:0123456789abcdef0123456789abcdef"}},
			Charts: charts(), Tables: []*report.Table{sample()},
		},
	}}
}

func TestPageStandsAlone(t *testing.T) {
	var b bytes.Buffer
	if err := page().HTML(&b); err != nil {
		t.Fatal(err)
	}
	out := b.String()
	for _, bad := range []string{"http://", "https://", "<script", "<x>", "url(", "@import", "ZgotmplZ"} {
		if strings.Contains(out, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	for _, want := range []string{"compress demo &lt;x&gt;", "prefers-color-scheme:dark", "@media print", "a &lt;b&gt;", "viewport"} {
		if !strings.Contains(out, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if f := os.Getenv("REPORT_SAMPLE"); f != "" { // to look at it: REPORT_SAMPLE=page.html go test ./internal/report
		if err := os.WriteFile(f, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkPage(b *testing.B) {
	for b.Loop() {
		if err := page().HTML(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
