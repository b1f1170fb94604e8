package report

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"strings"
	"unicode/utf8"
)

const (
	barH, barGap = 18.0, 10.0
	charW        = 7.4 // average width of a letter at the style sheet's size
)

// gutter is the room for the longest caption on the left.
func gutter(names []string, width float64) float64 {
	w := 0
	for _, n := range names {
		w = max(w, utf8.RuneCountInString(n))
	}
	return min(float64(w)*charW+12, width*0.45)
}

// clip shortens names to a width, at their ends; where two would be the same, at their beginnings.
func clip(names []string, width float64) []string {
	n := max(2, int(width/charW))
	out := make([]string, len(names))
	seen := map[string]string{}
	twice := false
	for i, s := range names {
		out[i] = s
		if r := []rune(s); len(r) > n {
			out[i] = string(r[:n-1]) + "…"
		}
		other, ok := seen[out[i]]
		twice = twice || ok && other != s
		seen[out[i]] = s
	}
	if !twice {
		return out
	}

	for i, s := range names {
		if r := []rune(s); len(r) > n {
			out[i] = "…" + string(r[len(r)-n+1:])
		}
	}
	return out
}

// bars draws horizontal bars from zero, grouped by label.
func (c *Chart) bars(f frame) string {
	values := []float64{0}
	for _, s := range c.Series {
		values = append(values, s.Y...)
	}

	g := gutter(c.Labels, f.w)
	end := f.w - 58
	x, ticks := fit(values, false, g, end)
	group := barH*float64(len(c.Series)) + barGap
	h := group*float64(len(c.Labels)) + bottom
	var b svg
	b.open(f.w, h, c)
	for _, t := range ticks {
		b.line("grid", x.at(t), 0, x.at(t), h-bottom)
	}

	b.ticks(x, ticks, h-bottom+15, f.w)
	names := clip(c.Labels, g-12)

	for i, label := range c.Labels {
		y := group*float64(i) + barGap/2
		b.text(g-6, y+(group-barGap)/2+4, "end", names[i])

		for j, s := range c.Series {
			if i >= len(s.Y) || !x.shows(s.Y[i]) {
				continue
			}

			from, to := min(x.at(0), x.at(s.Y[i])), max(x.at(0), x.at(s.Y[i]))
			yj := y + barH*float64(j)
			fmt.Fprintf(&b,
				`<rect class="fill c%d" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s, %s: %s</title></rect>`,
				j%colours, from, yj+1,
				max(to-from, 0.5), barH-2, html.EscapeString(label), html.EscapeString(s.Name), c.said(s.Y[i]))

			b.text(to+4, yj+barH/2+4, "start", c.said(s.Y[i]))
		}
	}

	b.line("axis", x.at(0), 0, x.at(0), h-bottom)
	b.text((g+end)/2, h-8, "middle", c.X.Label)
	b.WriteString("</svg>")

	return b.String()
}

// said is a value beside its bar.
func (c *Chart) said(v float64) string {
	if c.Format != "" {
		return fmt.Sprintf(c.Format, v)
	}
	return number(v)
}

// heat is a table of cells whose strength follows the value.
func (c *Chart) heat() string {
	lo, hi := c.ends()
	var b strings.Builder
	fmt.Fprintf(&b,
		`<div class="scroll" tabindex="0" role="region" aria-label="%s"><table class="heat"><thead><tr><th scope="col">%s</th>`,
		html.EscapeString(c.Title), html.EscapeString(c.X.Label))
	for _, l := range c.Labels {
		fmt.Fprintf(&b, `<th scope="col">%s</th>`, html.EscapeString(l))
	}

	b.WriteString("</tr></thead><tbody>")

	for _, s := range c.Series {
		fmt.Fprintf(&b, `<tr><th scope="row">%s</th>`, html.EscapeString(s.Name))
		for j := range c.Labels {
			b.WriteString(c.cell(s, j, lo, hi))
		}
		b.WriteString("</tr>")
	}

	b.WriteString("</tbody></table></div>")
	return b.String()
}

// ends are the values of the palest and the strongest cell.
func (c *Chart) ends() (lo, hi float64) {
	if c.Scale[0] < c.Scale[1] {
		return c.Scale[0], c.Scale[1]
	}

	lo, hi = math.Inf(1), math.Inf(-1)
	for _, s := range c.Series {
		for _, v := range s.Y {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}
	return lo, hi
}

// part is where a value lies between the palest and the strongest.
func part(v, lo, hi float64) float64 {
	if hi > lo {
		return min(1, max(0, (v-lo)/(hi-lo)))
	}
	return 1
}

// cell is one of a heat map.
func (c *Chart) cell(s Series, j int, lo, hi float64) string {
	if j >= len(s.Y) || math.IsNaN(s.Y[j]) || math.IsInf(s.Y[j], 0) {
		return "<td></td>"
	}

	v := s.Y[j]
	// beside larger ones the digits of a small value only take room
	if c.Format == "" && hi >= 0.1 && math.Abs(v) < 0.1 {
		v = math.Round(1000*v) / 1000
	}

	text := fmt.Sprintf(cmp.Or(c.Format, "%.3g"), v)
	return fmt.Sprintf(`<td style="--p:%.0f%%">%s</td>`, 100*part(s.Y[j], lo, hi), text)
}
