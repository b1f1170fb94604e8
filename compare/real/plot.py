"""Charts as SVG: lines over categories, each with its name at its end, and bars with names and values."""
import html
import math

COLOURS = ["#3b6fd4", "#d1495b", "#2a9d6f", "#b07d2b", "#7b52ab", "#1b9aaa", "#8d5524", "#666666", "#c04d9c", "#4d7c0f"]
WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 60, 170, 40, 40

# What keeps a name readable above lines.
HALO = 'paint-order="stroke" stroke="#ffffff" stroke-width="4"'


def lines(path, title, categories, series, log=False):
    """series: [(name, [(index of the category, value)])]."""
    scale = math.log10 if log else float
    values = [scale(v) for _, points in series for _, v in points]
    low, high = min(values), max(values)
    high += (high == low) * 1.0

    def x(i):
        return LEFT + i * (WIDE - LEFT - RIGHT) / max(1, len(categories) - 1)

    def y(v):
        return HIGH - BOTTOM - (scale(v) - low) / (high - low) * (HIGH - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" font-family="system-ui, sans-serif" font-size="12">',
           f'<rect width="{WIDE}" height="{HIGH}" fill="#ffffff"/>', f'<text x="{LEFT}" y="22" font-size="15">{html.escape(title)}</text>']
    for tick in ticks(low, high, log):
        out.append(f'<line x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#dddddd"/>'
                   f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="#555555">{tick:g}</text>')
    for i, name in enumerate(categories):
        out.append(f'<text x="{x(i):.1f}" y="{HIGH - 16}" text-anchor="middle" fill="#555555">{html.escape(str(name))}</text>')

    ends = spread([(y(points[-1][1]), n) for n, (_, points) in enumerate(series)])
    names = []  # above all lines
    for n, (name, points) in enumerate(series):
        colour, path_ = COLOURS[n % len(COLOURS)], " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in points)
        last = x(points[-1][0])
        out.append(f'<polyline points="{path_}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x(i):.1f}" cy="{y(v):.1f}" r="3" fill="{colour}"><title>{html.escape(name)}: {v:.4g}</title></circle>' for i, v in points]
        names.append(f'<line x1="{last + 4:.1f}" y1="{y(points[-1][1]):.1f}" x2="{last + 18:.1f}" y2="{ends[n]:.1f}" stroke="{colour}" stroke-width="0.7"/>'
                     f'<text x="{last + 22:.1f}" y="{ends[n] + 4:.1f}" fill="{colour}" {HALO}>{html.escape(name)}</text>')
    path.write_text("\n".join([*out, *names, "</svg>"]) + "\n")


def bars(path, title, values):
    """values: [(name, value)], from the top down; values begin at zero."""
    step, left = 22, max(300, 16 + round(6.6 * max(len(name) for name, _ in values)))
    high = TOP + step * len(values) + 10
    low, top = min(0, *(v for _, v in values)), max(0, *(v for _, v in values))

    def x(v):
        return left + (v - low) / (top - low or 1) * (WIDE - left - 70)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high}" font-family="system-ui, sans-serif" font-size="12">',
           f'<rect width="{WIDE}" height="{high}" fill="#ffffff"/>', f'<text x="12" y="22" font-size="15">{html.escape(title)}</text>']
    for i, (name, value) in enumerate(values):
        y = TOP + step * i
        out.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{html.escape(name)}</text>'
                   f'<rect x="{min(x(0), x(value)):.1f}" y="{y + 2}" width="{max(1, abs(x(value) - x(0))):.1f}" height="14" fill="{COLOURS[0]}"/>'
                   f'<text x="{max(x(0), x(value)) + 6:.1f}" y="{y + 13}" fill="#555555">{value:.3f}</text>')
    path.write_text("\n".join([*out, "</svg>"]) + "\n")


def ticks(low, high, log):
    if not log:
        step = 10 ** math.floor(math.log10((high - low) / 2))
        return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    found = [m * 10 ** e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
    return [t for t in found if low <= math.log10(t) <= high]


def spread(places, gap=15):
    """Names that do not lie on one another, within the chart: their heights, by number."""
    order = [n for _, n in sorted(places)]
    at = dict((n, y) for y, n in places)
    for before, n in zip(order, order[1:]):
        at[n] = max(at[n], at[before] + gap)

    room = HIGH - BOTTOM
    for n in reversed(order):
        at[n] = room = min(at[n], room)
        room -= gap
    return at
