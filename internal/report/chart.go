package report

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// Kind is the form of a chart.
type Kind uint8

const (
	// Line joins the points of every series.
	Line Kind = iota
	// Scatter shows the points alone.
	Scatter
	// Bar shows one horizontal bar for every label and series.
	Bar
	// Heat shows one row for every series and one column for every label; the stronger, the larger. It is a
	// table of coloured cells, so that its numbers can be read at any width.
	Heat
	// Cells shows the same as small squares without figures, which stand in their titles: a whole model in one view.
	// Of columns with numbers for names every fifth or tenth is named where there are many.
	Cells
)

// Chart is one figure. Values that are not finite are left out (and leave a gap in a line).
type Chart struct {
	Title  string
	Note   string // one line below the figure; empty: none
	Kind   Kind
	X, Y   Axis     // Bar uses X, never logarithmic, for its values
	Labels []string // Bar: the groups; Heat, Cells: the columns
	Series []Series
	// Heat, Cells: values of the palest and of the strongest cell, so that maps can be compared; both 0: the least and
	// the largest there is
	Scale  [2]float64
	Format string // Bar, Heat, Cells: how values are printed; empty: as short as they can be
	Wide   bool   // Line, Scatter: over the whole width and higher, for drawings that have names at their points
}

// Axis is a caption and a scale.
type Axis struct {
	Label string
	Log   bool // values not above zero are left out
}

// Series is one named row of values. X may be nil: positions count from 0 then. Low and High, where they are there and
// finite, are the ends of error bars in lines and scatters.
type Series struct {
	Name      string
	X, Y      []float64
	Low, High []float64
	Joined    bool     // Scatter: the points are joined all the same
	Names     []string // Scatter: texts beside the points, as far as there is room; nil: none
}

// whisker is the error bar of a value.
func (s Series) whisker(i int) (low, high float64, ok bool) {
	if i >= len(s.Low) || i >= len(s.High) {
		return 0, 0, false
	}
	low, high = s.Low[i], s.High[i]
	return low, high, low <= high && !math.IsInf(low, 0) && !math.IsInf(high, 0)
}

// Front gives the points that no other beats, which is one that is not more in either coordinate and less in one of
// them, in the order of x. Of points in the same place it gives the first.
func Front(x, y []float64) (points []int) {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(x[a], x[b]), cmp.Compare(y[a], y[b])) })

	least := math.Inf(1)
	for _, i := range order {
		if y[i] < least {
			points = append(points, i)
			least = y[i]
		}
	}
	return points
}

func (s Series) x(i int) float64 {
	if s.X == nil {
		return float64(i)
	}
	return s.X[i]
}

// frame is the size of a drawing.
type frame struct{ w, h float64 }

// A drawing is made for the room that it has, so that its letters are about as large as those beside it: small on a
// phone and where three stand side by side, medium where two do, large by itself.
var (
	small  = frame{360, 250}
	medium = frame{540, 300}
	large  = frame{1080, 360}
	// of a Wide chart
	tall = frame{1080, 540}
)

const (
	left, right, top, bottom = 66.0, 14.0, 12.0, 44.0
	colours                  = 8 // classes c0 … c7 of the style sheet
)

// HTML is the figure for little room: an SVG, or the table of a heat map, with classes that the page's style sheet
// colours, so that it follows light, dark and print.
func (c *Chart) HTML() string { return c.draw(small) }

func (c *Chart) draw(f frame) string {
	switch c.Kind {
	case Bar:
		return c.bars(f)
	case Heat:
		return c.heat()
	case Cells:
		return c.cells(f)
	}
	return c.points(f)
}

// in is the figure in a row of so many: the small drawing, and beside it the one for more room, of which the style
// sheet shows the one that fits.
func (c *Chart) in(columns int) string {
	more := large
	switch {
	case c.Kind == Heat:
		return c.heat()
	case c.Wide:
		more = tall
	case c.Kind == Cells:
	case columns == 2:
		more = medium
	case columns > 2:
		return c.draw(small)
	}
	class := "large"
	if more == medium {
		class = "medium"
	}
	return `<div class="small">` + c.draw(small) + `</div><div class="` + class + `">` + c.draw(more) + `</div>`
}

// scale maps values to a stretch of the drawing.
type scale struct {
	lo, hi, from, to float64
	log              bool
}

func (s scale) at(v float64) float64 {
	lo, hi := s.lo, s.hi
	if s.log {
		v, lo, hi = math.Log10(v), math.Log10(lo), math.Log10(hi)
	}
	return s.from + (v-lo)/(hi-lo)*(s.to-s.from)
}

func (s scale) shows(v float64) bool {
	return !math.IsNaN(v) && !math.IsInf(v, 0) && (!s.log || v > 0)
}

// An axis ends where its values end, or at the next tick where that is not far; both as a fraction of its length.
const (
	nearTick = 0.025
	margin   = 0.02
)

// fit is a scale over the values that can be shown, and its ticks.
func fit(values []float64, log bool, from, to float64) (scale, []float64) {
	s := scale{lo: math.Inf(1), hi: math.Inf(-1), from: from, to: to, log: log}
	for _, v := range values {
		if s.shows(v) {
			s.lo, s.hi = min(s.lo, v), max(s.hi, v)
		}
	}

	if s.lo > s.hi {
		s.lo, s.hi = 1, 2
	}
	if log {
		return s.logarithmic()
	}

	d := max(math.Abs(s.lo)*0.1, 1e-9)
	if s.lo == s.hi {
		s.lo, s.hi = s.lo-d, s.hi+d
	}
	return s.linear()
}

// linear puts ticks at round numbers.
func (s scale) linear() (scale, []float64) {
	width := s.hi - s.lo
	step := niceStep(width / 5)
	below, above := math.Floor(s.lo/step+1e-9)*step, math.Ceil(s.hi/step-1e-9)*step

	if s.lo-below <= nearTick*width {
		s.lo = below
	} else {
		s.lo -= margin * width
	}
	if above-s.hi <= nearTick*width {
		s.hi = above
	} else {
		s.hi += margin * width
	}

	var ticks []float64
	for i := 0; i <= int(math.Round((above-below)/step)); i++ {
		if t := below + float64(i)*step; t >= s.lo-1e-9*width && t <= s.hi+1e-9*width {
			ticks = append(ticks, t)
		}
	}
	return s, ticks
}

// logarithmic puts ticks at powers of ten, and at round numbers between them where there are few.
func (s scale) logarithmic() (scale, []float64) {
	if s.hi < s.lo*(1+1e-9) {
		s.lo, s.hi = s.lo/1.5, s.hi*1.5
	}

	width := math.Log10(s.hi) - math.Log10(s.lo)
	grow := math.Pow(10, margin*width)
	if width < math.Log10(2) {
		plain, ticks := scale{lo: s.lo, hi: s.hi}.linear()
		if plain.lo > 0 {
			s.lo, s.hi = plain.lo, plain.hi
			return s, ticks
		}
	}

	first, last := math.Floor(math.Log10(s.lo)+1e-9), math.Ceil(math.Log10(s.hi)-1e-9)
	steps := []float64{1}
	every := 1.0
	switch {
	case width < 1:
		steps = []float64{1, 2, 3, 5, 7}
	case width < 2:
		steps = []float64{1, 2, 5}
	default:
		every = math.Ceil((last - first) / 9)
	}

	var all []float64
	for e := first; e <= last; e += every {
		for _, m := range steps {
			all = append(all, m*math.Pow(10, e))
		}
	}

	near := math.Pow(10, nearTick*width)
	lo, hi, ended := s.lo/grow, s.hi*grow, false
	for _, t := range all {
		if t <= s.lo && t*near >= s.lo {
			lo = t
		}
		if t >= s.hi && t <= s.hi*near && !ended {
			hi, ended = t, true
		}
	}
	s.lo, s.hi = lo, hi

	var ticks []float64
	for _, t := range all {
		if t >= s.lo*(1-1e-9) && t <= s.hi*(1+1e-9) {
			ticks = append(ticks, t)
		}
	}
	return s, ticks
}

// Spans reports whether positive values lie so far apart that a linear axis would show the largest alone, which losses
// and perplexities do from three times on: they belong on a logarithmic one.
func Spans(list ...Series) bool {
	lo, hi := math.Inf(1), 0.0
	for _, s := range list {
		for _, v := range s.Y {
			if v > 0 && !math.IsInf(v, 0) {
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}
	return hi > farApart*lo
}

const farApart = 3

func niceStep(raw float64) float64 {
	e := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if raw <= m*e*(1+1e-9) {
			return m * e
		}
	}
	return 10 * e
}

func number(v float64) string {
	if math.Abs(v) < 1e-12 {
		v = 0
	}

	if a := math.Abs(v); a >= 1e4 && a < 1e15 {
		for i, unit := range []string{"T", "G", "M", "k"} {
			if d := math.Pow(1000, float64(4-i)); a >= d {
				return fmt.Sprintf("%.4g%s", v/d, unit)
			}
		}
	}

	return fmt.Sprintf("%.4g", v)
}

type svg struct{ strings.Builder }

func (b *svg) open(w, h float64, c *Chart) {
	title := html.EscapeString(c.Title)
	fmt.Fprintf(b, `<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s"><title>%s</title><desc>%s</desc>`, w, h,
		title, title, html.EscapeString(c.describe()))
}

func (b *svg) text(x, y float64, anchor, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, x, y, anchor, html.EscapeString(s))
}

func (b *svg) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(b, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, class, x1, y1, x2, y2)
}

func (c *Chart) points(f frame) string {
	var xs, ys []float64
	for _, s := range c.Series {
		for i, y := range s.Y {
			xs, ys = append(xs, s.x(i)), append(ys, y)
			if low, high, ok := s.whisker(i); ok {
				ys = append(ys, low, high)
			}
		}
	}

	w, h := f.w, f.h
	x, xt := fit(xs, c.X.Log, left, w-right)
	y, yt := fit(ys, c.Y.Log, h-bottom, top)
	var b svg
	b.open(w, h, c)

	for _, t := range yt {
		b.line("grid", left, y.at(t), w-right, y.at(t))
		b.text(left-6, y.at(t)+4, "end", number(t))
	}

	b.ticks(x, xt, h-bottom+17, w)
	b.line("axis", left, h-bottom, w-right, h-bottom)
	b.text((left+w-right)/2, h-6, "middle", c.X.Label)
	fmt.Fprintf(&b, `<text transform="translate(13 %.1f) rotate(-90)" text-anchor="middle">%s</text>`,
		(top+h-bottom)/2, html.EscapeString(c.Y.Label))
	for i, s := range c.Series {
		c.trace(&b, i, s, x, y)
	}
	c.name(&b, f, x, y)

	b.WriteString("</svg>")
	return b.String()
}

// ticks writes the numbers below an axis, leaving out those that would touch the one before.
func (b *svg) ticks(x scale, at []float64, y, width float64) {
	free := math.Inf(-1)
	for _, t := range at {
		s := number(t)
		half := charW * float64(len(s)) / 2
		if middle := min(x.at(t), width-half); middle-half > free {
			b.text(middle, y, "middle", s)
			free = middle + half + charW/2
		}
	}
}

// trace draws one series; markers only where they do not run together.
func (c *Chart) trace(b *svg, n int, s Series, x, y scale) {
	var path, dots strings.Builder
	pen := "M"
	for i, v := range s.Y {
		if !x.shows(s.x(i)) || !y.shows(v) {
			pen = "M"
			continue
		}

		px, py := x.at(s.x(i)), y.at(v)
		fmt.Fprintf(&path, "%s%.1f %.1f", pen, px, py)
		pen = "L"

		if low, high, ok := s.whisker(i); ok && y.shows(low) && y.shows(high) && low < high {
			fmt.Fprintf(&dots, `<path class="whisker" d="M%.1f %.1fV%.1fM%.1f %.1fh6m-6 %.1fh6"/>`, px, y.at(low),
				y.at(high), px-3, y.at(low), y.at(high)-y.at(low))
		}

		if c.Kind == Scatter || len(s.Y) <= 40 {
			fmt.Fprintf(&dots, `<path d="M%.1f %.1f%s"><title>%s: %s, %s</title></path>`,
				px, py, marker(n), html.EscapeString(s.Name), number(s.x(i)), number(v))
		}
	}

	if c.Kind == Line || s.Joined {
		fmt.Fprintf(b, `<path class="stroke c%d" d="%s"/>`, n%colours, path.String())
	}

	fmt.Fprintf(b, `<g class="fill c%d">%s</g>`, n%colours, dots.String())
}

// box is a piece of the drawing that something stands on.
type box struct{ x1, y1, x2, y2 float64 }

func (a box) meets(b box) bool { return a.x1 < b.x2 && b.x1 < a.x2 && a.y1 < b.y2 && b.y1 < a.y2 }

// name writes the names of points beside them: right, left, above or below, where nothing stands yet; a name
// that has no such place is left to the title of its point.
func (c *Chart) name(b *svg, f frame, x, y scale) {
	w, h := f.w, f.h
	var taken []box
	for _, s := range c.Series {
		for i, v := range s.Y {
			if x.shows(s.x(i)) && y.shows(v) {
				px, py := x.at(s.x(i)), y.at(v)
				taken = append(taken, box{px - 4, py - 4, px + 4, py + 4})
			}
		}
	}

	for _, p := range c.named() {
		if !x.shows(p.x) || !y.shows(p.y) {
			continue
		}
		px, py := x.at(p.x), y.at(p.y)
		wide := charW * float64(len([]rune(p.name)))
		for _, at := range []struct {
			anchor string
			box    box
		}{
			{"start", box{px + 6, py - 7, px + 6 + wide, py + 6}},
			{"end", box{px - 6 - wide, py - 7, px - 6, py + 6}},
			{"middle", box{px - wide/2, py - 20, px + wide/2, py - 7}},
			{"middle", box{px - wide/2, py + 7, px + wide/2, py + 20}},
		} {
			free := at.box.x1 > left && at.box.x2 < w && at.box.y1 > 0 && at.box.y2 < h-bottom &&
				!slices.ContainsFunc(taken, at.box.meets)
			if !free {
				continue
			}
			taken = append(taken, at.box)
			place := map[string]float64{"start": at.box.x1, "end": at.box.x2, "middle": px}[at.anchor]
			b.text(place, at.box.y2-2.5, at.anchor, p.name)
			break
		}
	}
}

// point is a point that has a name.
type point struct {
	name string
	x, y float64
}

// named lists the points with names. Those of the least values come first: where points crowd, they are what a reader
// looks for.
func (c *Chart) named() (list []point) {
	for _, s := range c.Series {
		for i, name := range s.Names {
			if name != "" && i < len(s.Y) {
				list = append(list, point{name, s.x(i), s.Y[i]})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b point) int { return cmp.Compare(a.y, b.y) })
	return list
}

// SVG is a line or scatter as a file of its own, with its colours.
func (c *Chart) SVG() string {
	f := frame{2 * small.w, 2 * small.h}
	if !c.Wide {
		f = small
	}
	style := `<style>svg{background:#fff;font:12.5px system-ui,sans-serif}text{fill:#5a616c}.grid{stroke:#dfe2e6}` +
		`.axis{stroke:#5a616c}.c0{--c:#2f6fc4}.c1{--c:#c2571a}.c2{--c:#1b7f67}.c3{--c:#b5408a}.c4{--c:#7a5cc0}` +
		`.c5{--c:#6b7280}.c6{--c:#8a6d14}.c7{--c:#c0392b}.fill{fill:var(--c)}.whisker{fill:none;stroke:var(--c)}` +
		`.stroke{fill:none;stroke:var(--c);stroke-width:2}</style>`
	text := c.points(f)
	at := strings.Index(text, ">") + 1
	head := strings.Replace(text[:at], "<svg ", fmt.Sprintf(
		`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" `, f.w, f.h), 1)
	return head + style + text[at:] + "\n"
}

// markers are outlines around a point: disc, square, triangle, diamond, so that series differ without colour too.
var markers = []string{
	"m-3.3 0a3.3 3.3 0 1 0 6.6 0a3.3 3.3 0 1 0 -6.6 0z", "m-3 -3h6v6h-6z", "m0 -4l3.9 6.8h-7.8z",
	"m0 -4.2l4.2 4.2l-4.2 4.2l-4.2 -4.2z",
}

// marker is the outline of a series' points. Where the colours begin anew, the outlines move on by one: no two of the
// first 32 series look the same.
func marker(n int) string { return markers[(n+n/colours)%len(markers)] }

// key is the marker of a series as a drawing of its own, for a legend.
func (c *Chart) key(n int) string {
	shape := marker(n)
	if c.Kind == Bar {
		shape = "m-5 -5h10v10h-10z"
	}
	return fmt.Sprintf(
		`<svg viewBox="-6 -6 12 12" aria-hidden="true" class="key c%d"><path class="fill" d="M0 0%s"/></svg>`,
		n%colours, shape)
}

// maxSaid bounds the values that a description lists.
const maxSaid = 12

// describe says what a drawing shows, for those who do not see it.
func (c *Chart) describe() string {
	var parts []string
	for _, s := range c.Series[:min(len(c.Series), maxSaid)] {
		var ends []string
		for i, v := range s.Y {
			switch {
			case math.IsNaN(v) || math.IsInf(v, 0):
			case c.Kind == Bar && i < min(len(c.Labels), maxSaid):
				ends = append(ends, c.Labels[i]+" "+c.said(v))
			case c.Kind != Bar && (i == 0 || i == len(s.Y)-1):
				ends = append(ends, fmt.Sprintf("%s at %s", number(v), number(s.x(i))))
			}
		}

		join := map[bool]string{true: ", ", false: " to "}[c.Kind == Bar]
		if c.Kind == Scatter {
			parts = append(parts, fmt.Sprintf("%s: %d points", s.Name, len(s.Y)))
		} else if len(ends) > 0 {
			parts = append(parts, s.Name+": "+strings.Join(ends, join))
		}
	}

	axes := strings.Trim(c.Y.Label+" over "+c.X.Label, " ")
	if c.Kind == Bar {
		axes = c.X.Label
	}

	return axes + ". " + strings.Join(parts, "; ")
}
