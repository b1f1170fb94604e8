package report

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"strconv"
)

// Sides of a square of [Cells]: as large as the width has room for, within these. Where the least of them do not fit,
// the drawing is wider than its frame, and scrolls.
const (
	leastCell, mostCell = 11.0, 24.0
	keyCells            = 6 // squares of the legend
)

// cells draws small squares whose strength follows the value.
func (c *Chart) cells(f frame) string {
	lo, hi := c.ends()
	names := make([]string, len(c.Series))
	for i, s := range c.Series {
		names[i] = s.Name
	}

	// Names have a quarter of the width, or what large cells leave of it.
	g := min(gutter(names, f.w), max(f.w*0.25, 90, f.w-6-mostCell*float64(len(c.Labels))))
	names = clip(names, g-8)
	side := min(mostCell, max(leastCell, math.Floor(2*(f.w-g-6)/float64(max(1, len(c.Labels))))/2))
	width := max(f.w, g+side*float64(len(c.Labels))+6)
	foot := side * float64(len(c.Series))
	h := foot + 64

	var b svg
	fmt.Fprintf(&b, `<div class="scroll" tabindex="0" role="region" aria-label="%s">`, html.EscapeString(c.Title))
	if width > f.w {
		fmt.Fprintf(&b, `<div style="min-width:%.0fpx">`, width)
	} else {
		b.WriteString("<div>")
	}
	b.open(width, h, c)

	for i, s := range c.Series {
		y := side * float64(i)
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="end" style="font-size:%.1fpx">%s</text>`, g-6, y+side/2+4,
			min(12.5, side), html.EscapeString(names[i]))
		for j, label := range c.Labels {
			if j >= len(s.Y) || math.IsNaN(s.Y[j]) || math.IsInf(s.Y[j], 0) {
				continue
			}
			fmt.Fprintf(&b, `<rect class="cell" x="%.1f" y="%.1f" width="%.1f" height="%.1f" style="--p:%.0f%%">`+
				`<title>%s, %s %s: %s</title></rect>`, g+side*float64(j), y, side-.5, side-.5,
				100*part(s.Y[j], lo, hi), html.EscapeString(s.Name), html.EscapeString(c.X.Label),
				html.EscapeString(label), c.value(s.Y[j]))
		}
	}

	every := c.everyLabel(side)
	for j, label := range c.Labels {
		if j%every == 0 {
			b.text(g+side*(float64(j)+.5), foot+16, "middle", label)
		}
	}
	b.text(g+side*float64(len(c.Labels))/2, foot+34, "middle", c.X.Label)
	c.scaleKey(&b, g, foot+44, lo, hi)

	b.WriteString("</svg></div></div>")
	return b.String()
}

// everyLabel is the distance of columns that are named.
func (c *Chart) everyLabel(side float64) int {
	longest := 1
	numbers := true
	for _, l := range c.Labels {
		longest = max(longest, len([]rune(l)))
		_, err := strconv.Atoi(l)
		numbers = numbers && err == nil
	}

	need := charW * (float64(longest) + 1) / side
	if !numbers {
		return max(1, int(math.Ceil(need)))
	}
	for _, n := range []int{1, 5, 10, 20, 50} {
		if float64(n) >= need && (n > 1 || len(c.Labels) <= 12) {
			return n
		}
	}
	return 100
}

// scaleKey says what the palest and the strongest square mean.
func (c *Chart) scaleKey(b *svg, x, y, lo, hi float64) {
	if !(lo < hi) {
		return
	}

	from := c.value(lo)
	b.text(x, y+11, "start", from)
	x += charW*float64(len([]rune(from))) + 4
	for i := range keyCells {
		fmt.Fprintf(b, `<rect class="cell" x="%.1f" y="%.1f" width="13" height="13" style="--p:%.0f%%"/>`, x, y,
			100*float64(i)/(keyCells-1))
		x += 13
	}
	b.text(x+5, y+11, "start", c.value(hi))
}

// value prints a cell.
func (c *Chart) value(v float64) string { return fmt.Sprintf(cmp.Or(c.Format, "%.3g"), v) }
