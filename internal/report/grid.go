package report

import (
	"fmt"
	"html"
	"math"
	"unicode/utf8"
)

const (
	barH, barGap = 18.0, 10.0
	cellH        = 22.0
	charW        = 6.6 // average width of a letter at the style sheet's size
)

// gutter is the room for the longest caption on the left.
func gutter(names []string) float64 {
	w := 0
	for _, n := range names {
		w = max(w, utf8.RuneCountInString(n))
	}
	return min(float64(w)*charW+12, plotW*0.45)
}

func clip(s string, width float64) string {
	if n := int(width / charW); utf8.RuneCountInString(s) > n && n > 1 {
		return string([]rune(s)[:n-1]) + "…"
	}
	return s
}

// bars draws horizontal bars from zero, grouped by label.
func (c *Chart) bars() string {
	values := []float64{0}
	for _, s := range c.Series {
		values = append(values, s.Y...)
	}
	g := gutter(c.Labels)
	x, ticks := fit(values, false, g, plotW-58)
	group := barH*float64(len(c.Series)) + barGap
	h := group*float64(len(c.Labels)) + bottom
	var b svg
	b.open(plotW, h, c.Title)
	for _, t := range ticks {
		b.line("grid", x.at(t), 0, x.at(t), h-bottom)
		b.text(x.at(t), h-bottom+15, "middle", number(t))
	}
	for i, label := range c.Labels {
		y := group*float64(i) + barGap/2
		b.text(g-6, y+(group-barGap)/2+4, "end", clip(label, g-12))
		for j, s := range c.Series {
			if i >= len(s.Y) || !x.shows(s.Y[i]) {
				continue
			}
			from, to := min(x.at(0), x.at(s.Y[i])), max(x.at(0), x.at(s.Y[i]))
			yj := y + barH*float64(j)
			fmt.Fprintf(&b, `<rect class="fill c%d" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s, %s: %s</title></rect>`, j%colours, from, yj+1,
				max(to-from, 0.5), barH-2, html.EscapeString(label), html.EscapeString(s.Name), number(s.Y[i]))
			b.text(to+4, yj+barH/2+4, "start", number(s.Y[i]))
		}
	}
	b.line("axis", x.at(0), 0, x.at(0), h-bottom)
	b.text((g+plotW-58)/2, h-8, "middle", c.X.Label)
	b.WriteString("</svg>")
	return b.String()
}

// heat draws cells whose strength follows the value; the values are printed where they fit.
func (c *Chart) heat() string {
	lo, hi := math.Inf(1), math.Inf(-1)
	names := make([]string, len(c.Series))
	for i, s := range c.Series {
		names[i] = s.Name
		for _, v := range s.Y {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}
	if c.Scale[0] < c.Scale[1] {
		lo, hi = c.Scale[0], c.Scale[1]
	}
	g := gutter(names)
	w := (plotW - g) / float64(max(len(c.Labels), 1))
	var b svg
	b.open(plotW, cellH*float64(len(c.Series))+bottom, c.Title)
	for i, s := range c.Series {
		y := cellH * float64(i)
		b.text(g-6, y+cellH/2+4, "end", clip(s.Name, g-12))
		for j, v := range s.Y {
			if j >= len(c.Labels) || math.IsNaN(v) || math.IsInf(v, 0) {
				continue
			}
			part := 1.0
			if hi > lo {
				part = min(1, max(0, (v-lo)/(hi-lo)))
			}
			fmt.Fprintf(&b, `<rect class="fill c0" fill-opacity="%.2f" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s, %s: %s</title></rect>`,
				0.08+0.84*part, g+w*float64(j), y, w-1, cellH-1, html.EscapeString(s.Name), html.EscapeString(c.Labels[j]), number(v))
			if t := number(v); w > charW*float64(len(t))+4 {
				b.text(g+w*(float64(j)+0.5), y+cellH/2+4, "middle", t)
			}
		}
	}
	every := max(1, int(math.Ceil(40/w)))
	for j := 0; j < len(c.Labels); j += every {
		b.text(g+w*(float64(j)+0.5), cellH*float64(len(c.Series))+16, "middle", clip(c.Labels[j], max(w*float64(every), 24)))
	}
	b.text((g+plotW)/2, cellH*float64(len(c.Series))+36, "middle", c.X.Label)
	b.WriteString("</svg>")
	return b.String()
}
