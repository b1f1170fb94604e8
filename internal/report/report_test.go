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
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/report"
)

func sample() *report.Table {
	t := &report.Table{
		Title: "Perplexity", Columns: report.Columns("model", "zeros", "perplexity|%.3f"),
		Note: "lower is better",
	}
	t.Add("dense", 0, 1.5)
	t.Add("wanda | 2:4", 12, 2.25)
	t.Add("broken", 3, math.NaN())
	return t
}

func ExampleTable_Markdown() {
	t := &report.Table{
		Title: "Perplexity", Columns: report.Columns("model", "zeros", "perplexity|%.3f"),
		Note: "lower is better",
	}
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

// layers are the numbers of the columns of a map.
func layers(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint(i)
	}
	return list
}

func charts() []*report.Chart {
	y := []float64{3, 2, math.NaN(), 1.5, 1.4, math.Inf(1), 1.3}
	s := []report.Series{
		{Name: "a <b>", Y: y},
		{Name: "b", X: []float64{1, 2, 4, 8, 16, 32, 64}, Y: []float64{1, 2, 3, 4, 5, 6, 7}},
	}
	return []*report.Chart{
		{
			Title: "line & more", Kind: report.Line, X: report.Axis{Label: "step"}, Y: report.Axis{Label: "loss"},
			Series: s,
		},
		{
			Title: "log", Kind: report.Line, X: report.Axis{Log: true, Label: "n"},
			Y: report.Axis{Log: true, Label: "seconds"}, Series: s,
		},
		{Title: "points", Kind: report.Scatter, Series: s},
		{
			Title: "bars", Kind: report.Bar, X: report.Axis{Label: "perplexity"},
			Labels: []string{"magnitude 50 %", "wanda 50 %", "a name that is much too long for the room that there " +
				"is on the left"}, Series: s,
		},
		{Title: "heat", Kind: report.Heat, Labels: []string{"q", "k", "v", "o", "gate", "up", "down"}, Series: s},
		{Title: "cells", Kind: report.Cells, X: report.Axis{Label: "layer"}, Labels: layers(30), Series: s},
	}
}

func TestChartsAreWellFormed(t *testing.T) {
	for _, c := range append(charts(), &report.Chart{Kind: report.Line}, &report.Chart{Kind: report.Bar},
		&report.Chart{Kind: report.Heat}, &report.Chart{Kind: report.Cells}) {
		wellFormed(t, c)
	}
}

// TestSeriesDiffer: no two of many series have the same colour and marker.
func TestSeriesDiffer(t *testing.T) {
	c := &report.Chart{Kind: report.Line}
	for i := range 32 {
		c.Series = append(c.Series, report.Series{Name: fmt.Sprint(i), Y: []float64{1, 2}})
	}

	var page strings.Builder
	p := report.Page{Sections: []report.Section{{Charts: []*report.Chart{c}}}}
	if err := p.HTML(&page); err != nil {
		t.Fatal(err)
	}

	keys := regexp.MustCompile(`class="key c.*?</svg>`).FindAllString(page.String(), -1)
	if n := len(keys); n != 32 || len(slices.Compact(slices.Sorted(slices.Values(keys)))) != n {
		t.Errorf("%d keys, some of them twice: %q", n, keys)
	}
}

// wellFormed parses the drawing and refuses coordinates that are not numbers.
func wellFormed(t interface{ Fatalf(string, ...any) }, c *report.Chart) {
	out := c.HTML()
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
			Kind: report.Kind(rapid.IntRange(0, 4).Draw(rt, "kind")), Y: report.Axis{Log: rapid.Bool().Draw(rt, "log")},
			Labels: make([]string, len(values)), Series: []report.Series{{Name: "s", Y: values}},
		})
	})
}

// TestErrorBars: one for each value with two finite ends; the scale has room for them.
func TestErrorBars(t *testing.T) {
	c := &report.Chart{Kind: report.Line, Series: []report.Series{{
		Name: "a", Y: []float64{1, 2, 3, 4}, Low: []float64{0.5, math.NaN(), 3, 9}, High: []float64{30, 2.5, 3, 8},
	}}}
	svg := c.HTML()
	if n := strings.Count(svg, "whisker"); n != 1 {
		t.Errorf("%d error bars, want 1: one end is no number, one bar has no length, one is upside down", n)
	}
	if !strings.Contains(svg, ">30<") {
		t.Error("the scale ends below an error bar")
	}

	wellFormed(t, c)
}

// TestHeatScale: with a scale of its own a map of equal values is as pale as they are, and values beyond it are
// as strong as its end.
func TestHeatScale(t *testing.T) {
	c := &report.Chart{
		Kind: report.Heat, Labels: []string{"1", "2", "3"}, Scale: [2]float64{0, 1},
		Series: []report.Series{{Name: "a", Y: []float64{0.5, 0.5, 2}}},
	}
	table := c.HTML()
	if strings.Count(table, `--p:50%">0.5<`) != 2 || strings.Count(table, `--p:100%">2<`) != 1 {
		t.Error(table)
	}

	wellFormed(t, c)
	c.Series[0].Y = []float64{0.000166, 0.0248, 0.705}

	if table := c.HTML(); !strings.Contains(table, ">0<") || !strings.Contains(table, ">0.025<") ||
		!strings.Contains(table, ">0.705<") {
		t.Error(table)
	}
}

func page() *report.Page {
	return &report.Page{Title: "compress demo <x>", Subtitle: "base, 0.48M parameters, cpu", Sections: []report.Section{
		{
			Title: "Result", Text: []string{"Half of the weights are gone; the model is measured before and after " +
				"on text it has not seen."},
			Facts: []report.Fact{
				{Name: "perplexity", Value: "1.534"},
				{Name: "windows", Value: "128"},
				{Name: "data", Value: "sha256:0123456789abcdef0123456789abcdef"},
			},
			Charts: charts(), Tables: []*report.Table{sample()}, Code: []string{"compress demo --out 'a <b>'"},
		},
	}}
}

// TestEstimates: a figure and its error in the column's format, in full elsewhere.
func TestEstimates(t *testing.T) {
	err := 0.0519
	tab := &report.Table{Columns: report.Columns("task", "accuracy|%.2f")}
	tab.Add("facts", report.Estimate{Value: 0.6, Stderr: &err})
	tab.Add("sums", report.Estimate{Value: 0.975})
	if tab.Cell(0, 1) != "0.60 ± 0.05" || tab.Cell(1, 1) != "0.97" || !tab.Numeric(1) {
		t.Errorf("%q, %q, numeric %v", tab.Cell(0, 1), tab.Cell(1, 1), tab.Numeric(1))
	}

	var b bytes.Buffer
	if err := tab.CSV(&b); err != nil || b.String() != "task,accuracy\nfacts,0.6 ± 0.0519\nsums,0.975\n" {
		t.Errorf("%v: %q", err, b.String())
	}

	raw, e := json.Marshal(tab)
	if want := `[{"accuracy":{"value":0.6,"stderr":0.0519},"task":"facts"},{"accuracy":{"value":0.975,"stderr":null},"task":"sums"}]`; e != nil || string(raw) != want {
		t.Errorf("%v: %s", e, raw)
	}
}

// TestClasses: numbers and intervals are set as figures, in lines that are not broken; sentences may be.
func TestClasses(t *testing.T) {
	tab := &report.Table{Columns: report.Columns("task", "accuracy|%.2f", "95 %", "mark", "why")}
	tab.Add("facts", 0.5, "-0.10 to +0.20", "1.2 *", "")
	tab.Add("sums", 0.6, "", "none", "the model has seen no sums of this length before")
	if got := tab.Classes(); !slices.Equal(got, []string{"", "num", "fig", "", "text"}) {
		t.Errorf("%q", got)
	}
}

// TestSmallMaps: maps of few columns stand beside each other, others have the width of the page; a flag in a text is
// set so that no line ends within it.
func TestSmallMaps(t *testing.T) {
	for columns, broad := range map[int]bool{4: false, 30: true} {
		c := &report.Chart{Title: "t", Kind: report.Cells, Labels: layers(columns), Note: "see --density <x>"}
		p := &report.Page{Sections: []report.Section{{Charts: []*report.Chart{c, c}}}}
		var b bytes.Buffer
		if err := p.HTML(&b); err != nil {
			t.Fatal(err)
		}
		page := b.String()
		if strings.Contains(page, `class="map"`) != broad || strings.Contains(page, `class="charts two"`) == broad {
			t.Errorf("%d columns: %s", columns, page[strings.Index(page, "<main>"):])
		}
		if want := `see <span class="flag">--density</span> &lt;x&gt;`; !strings.Contains(page, want) {
			t.Errorf("%s is missing", want)
		}
	}
}

// TestPageCanBeRead: every element is closed, every drawing has words, every heading of a table a scope, and a
// section can be reached.
func TestPageCanBeRead(t *testing.T) {
	p := page()
	for range 5 {
		p.Sections = append(p.Sections, report.Section{Title: "More", Tables: []*report.Table{sample()}})
	}

	var b bytes.Buffer
	if err := p.HTML(&b); err != nil {
		t.Fatal(err)
	}

	d := xml.NewDecoder(&b)
	count := map[string]int{}
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}

		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}

		count[e.Name.Local]++
		has := map[string]string{}
		for _, a := range e.Attr {
			has[a.Name.Local] = a.Value
		}

		switch e.Name.Local {
		case "th":
			if has["scope"] == "" {
				t.Error("a heading of a table has no scope")
			}
		case "svg":
			if has["aria-hidden"] == "" && (has["role"] != "img" || has["aria-label"] == "") {
				t.Errorf("a drawing without words: %v", e.Attr)
			}
		case "a":
			count[has["href"]]++
		case "section":
			count["#"+has["id"]]++
		}
	}

	if count["desc"] != 10 || count["#s5"] != 2 || count["table"] != 7 || count["code"] != 1 {
		t.Errorf("%v", count)
	}
}

// TestContrast: words on their ground 4.5 to 1, in the strongest cell of a heat map too, and lines of charts 3
// to 1, in light, dark and print.
func TestContrast(t *testing.T) {
	var b bytes.Buffer
	if err := page().HTML(&b); err != nil {
		t.Fatal(err)
	}

	palettes := regexp.MustCompile(`:root\{([^}]*)\}`).FindAllStringSubmatch(b.String(), -1)
	if len(palettes) != 3 {
		t.Fatalf("%d palettes, want light, dark and print", len(palettes))
	}

	for i, p := range palettes {
		c := map[string]float64{}
		for _, m := range regexp.MustCompile(`--(\w+):#([0-9a-f]+)`).FindAllStringSubmatch(p[1], -1) {
			c[m[1]] = luminance(t, m[2])
		}

		for _, pair := range [][2]string{
			{"ink", "bg"},
			{"ink", "card"},
			{"soft", "bg"},
			{"soft", "card"},
			{"ink", "hot"},
			{"c0", "bg"},
		} {
			if r := contrast(c[pair[0]], c[pair[1]]); r < 4.5 {
				t.Errorf("palette %d: %s on %s has %.2f, want 4.5", i, pair[0], pair[1], r)
			}
		}

		for k := range 8 {
			if r := contrast(c[fmt.Sprintf("c%d", k)], c["card"]); r < 3 {
				t.Errorf("palette %d: colour %d has %.2f, want 3", i, k, r)
			}
		}
	}
}

// luminance and contrast are those of the Web Content Accessibility Guidelines 2.
func luminance(t *testing.T, hex string) float64 {
	if len(hex) == 3 {
		hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
	}

	sum := 0.0
	for i, share := range []float64{0.2126, 0.7152, 0.0722} {
		v, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}

		x := float64(v) / 255
		if x <= 0.03928 {
			x /= 12.92
		} else {
			x = math.Pow((x+0.055)/1.055, 2.4)
		}

		sum += share * x
	}

	return sum
}

func contrast(a, b float64) float64 { return (max(a, b) + 0.05) / (min(a, b) + 0.05) }

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

	for _, want := range []string{
		"compress demo &lt;x&gt;", "prefers-color-scheme:dark", "@media print", "a &lt;b&gt;",
		"viewport",
	} {
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

// TestNames: points of a scatter have their names beside them, none over another or over a point, and one that finds no
// room is in the title of its point alone; the drawing is a file by itself.
func TestNames(t *testing.T) {
	s := report.Series{Name: "models", Names: []string{"small", "large", "beside small", "hidden", "", ""}}
	s.X = []float64{10, 20, 10.1, 10.05, 1, 30}
	s.Y = []float64{0.5, 0.3, 0.5, 0.5, 0.1, 0.9}
	c := &report.Chart{Title: "t", Kind: report.Scatter, Wide: true, Series: []report.Series{s}}
	text := c.SVG()
	for _, want := range []string{`xmlns="http://www.w3.org/2000/svg"`, ">small</text>", ">large</text>", "<style>"} {
		if !strings.Contains(text, want) {
			t.Errorf("the drawing lacks %s", want)
		}
	}
	if err := xml.Unmarshal([]byte(text), new(struct{ XMLName xml.Name })); err != nil {
		t.Error(err)
	}

	s.X = slices.Repeat([]float64{1}, 40)
	s.Y = slices.Repeat([]float64{1}, 40)
	s.Names = slices.Repeat([]string{"all in one place"}, 40)
	c.Series = []report.Series{s}
	if n := strings.Count(c.SVG(), ">all in one place</text>"); n < 1 || n > 4 {
		t.Errorf("%d names in one place", n)
	}

	// Of a crowd the least are named, whatever their order.
	crowd := make([]string, 40)
	s.X = slices.Repeat([]float64{1}, 40)
	for i := range crowd {
		crowd[i] = fmt.Sprint("form-", i)
		s.Y[i] = 1 + float64((i+20)%40)/1000
	}
	s.X, s.Y = append(s.X, 1), append(s.Y, 100) // far from them, so that they are one
	s.Names = append(crowd, "")
	c.Series = []report.Series{s}
	if text := c.SVG(); !strings.Contains(text, ">form-20</text>") || strings.Contains(text, ">form-19</text>") {
		t.Error("the least of a crowd has no name, or the largest has one")
	}
}

// TestIsPage: pages are known by what they hold, not by their names.
func TestIsPage(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.html")
	for text, want := range map[string]bool{"": false, "<!doctype html>\n<html>mine</html>": false, "own": true} {
		if want {
			var b strings.Builder
			if err := (&report.Page{Title: "T"}).HTML(&b); err != nil {
				t.Fatal(err)
			}
			text = b.String()
		}
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if got := report.IsPage(file); got != want {
			t.Errorf("%.40q: %v", text, got)
		}
	}
	if report.IsPage(dir) || report.IsPage(file+"x") {
		t.Error("a folder, or nothing")
	}
}

// TestCells: a square for each value, with its figure in a title, and of many numbered columns every fifth has a name;
// where they do not fit a phone the drawing keeps its width.
func TestCells(t *testing.T) {
	y := make([]float64, 30)
	for i := range y {
		y[i] = float64(i) / 29
	}
	c := &report.Chart{
		Title: "t", Kind: report.Cells, X: report.Axis{Label: "layer"}, Labels: layers(30), Format: "%.2f",
		Series: []report.Series{{Name: "iffel", Y: y}, {Name: "of", Y: []float64{math.NaN(), 1}}},
	}
	text := c.HTML()
	if n := strings.Count(text, `class="cell" x`); n != 31+6 {
		t.Errorf("%d squares", n)
	}
	for want, yes := range map[string]bool{
		">iffel, layer 29: 1.00<": true, ">25</text>": true, ">26</text>": false, `<div style="min-width:`: true,
		`--p:100%"><title>of, layer 1: 1.00<`: true,
	} {
		if strings.Contains(text, want) != yes {
			t.Errorf("%q: %v in %s", want, !yes, text)
		}
	}
}

// strokes finds the heights of a line's two points.
var strokes = regexp.MustCompile(`class="stroke c0" d="M[0-9.]+ ([0-9.]+)L[0-9.]+ ([0-9.]+)"`)

// TestAxesEndWithTheData: no axis is much longer than what it shows, and there are two ticks at least.
func TestAxesEndWithTheData(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lo := rapid.Float64Range(.01, 1000).Draw(t, "lo")
		hi := lo * rapid.Float64Range(1.05, 1e5).Draw(t, "times")
		log := rapid.Bool().Draw(t, "log")
		c := &report.Chart{Kind: report.Line, Y: report.Axis{Log: log}, Series: []report.Series{{
			Name: "s",
			Y:    []float64{lo, hi},
		}}}
		text := c.HTML()

		path := strokes.FindStringSubmatch(text)
		if path == nil {
			t.Fatal(text)
		}
		low, _ := strconv.ParseFloat(path[1], 64)
		high, _ := strconv.ParseFloat(path[2], 64)
		if used := (low - high) / (250 - 44 - 12); used < .94 {
			t.Fatalf("%g to %g, log %v: %.0f %% of the height are used", lo, hi, log, 100*used)
		}
		if n := strings.Count(text, `class="grid"`); n < 1 || n > 12 {
			t.Fatalf("%g to %g, log %v: %d ticks", lo, hi, log, n)
		}
	})
}

// TestBarNames: of names that begin alike and are too long the ends are shown.
func TestBarNames(t *testing.T) {
	long := "tree:demo-out/search/of/some/depth/best.json"
	c := &report.Chart{
		Kind: report.Bar, Labels: []string{long, long + "+sparsegpt"}, Series: []report.Series{{
			Name: "p",
			Y:    []float64{1, 2},
		}},
	}
	names := regexp.MustCompile(`text-anchor="end">([^<]*)<`).FindAllStringSubmatch(c.HTML(), -1)
	if len(names) != 2 || names[0][1] == names[1][1] || !strings.HasSuffix(names[1][1], "+sparsegpt") {
		t.Errorf("%q", names)
	}
}

// TestCommandsDoNotBreak: a flag is one word, which no line ends within; a table may be folded; links lead to files.
func TestCommandsDoNotBreak(t *testing.T) {
	tab := sample()
	tab.Folded = true
	p := &report.Page{
		Title: "t", Date: "2026-01-02", Links: []report.Link{{Text: "more", To: "a/b.html"}},
		Sections: []report.Section{
			{Code: []string{"compress prune m --seqlen 256"}, Tables: []*report.Table{tab}},
		},
	}
	var b strings.Builder
	if err := p.HTML(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"compress prune m <span>--seqlen</span> 256</code>", "<summary>Perplexity (3 rows)</summary>",
		`<a href="a/b.html">more</a>`,
		`<time datetime="2026-01-02">`,
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// TestSpans: from three times on values belong on a logarithmic axis.
func TestSpans(t *testing.T) {
	for hi, want := range map[float64]bool{2.9: false, 3.1: true, math.Inf(1): false} {
		if got := report.Spans(report.Series{Y: []float64{1, 0, math.NaN(), hi}}); got != want {
			t.Errorf("1 to %g: %v", hi, got)
		}
	}
}
