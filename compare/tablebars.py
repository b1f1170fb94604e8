"""Draws a column of a page's table as bars, so that picture and table cannot say different things:

    python3 compare/tablebars.py PAGE MARK COLUMN OUT.svg TITLE [WITHOUT]     # prints nothing

The table is the first one behind MARK (a text of the page). Its first column has the names, of which those that match WITHOUT (a pattern) are
left out, COLUMN is the heading of the values (the first number of a cell counts; rows without one are left out), and a column "parameters", where there is one, is added to the names.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "real"))
import plot


def table(page, mark):
    """The rows of the table, each as a dictionary by heading."""
    text = page.read_text()
    lines = iter(text[text.index(mark):].splitlines())
    head = next(line for line in lines if line.startswith("|"))
    keys = [c.strip() for c in head.strip("|").split("|")]
    next(lines)
    for line in lines:
        if not line.startswith("|"):
            return
        yield dict(zip(keys, (c.strip() for c in line.strip("|").split("|"))))


def main():
    page, mark, column, out, title, *without = sys.argv[1:]
    found = []
    for row in table(pathlib.Path(page), mark):
        name = next(iter(row.values())).replace("`", "").replace("… ", "MoS: ")
        value = re.search(r"[+-]?[\d.]+", row[column])
        if not value or without and re.search(without[0], name):
            continue
        if "parameters" in row:
            name += f" ({row['parameters']})"
        found.append((name, float(value[0])))
    plot.bars(pathlib.Path(out), title, sorted(found, key=lambda f: f[1]))


if __name__ == "__main__":
    main()
