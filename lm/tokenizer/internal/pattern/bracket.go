package pattern

import "strings"

// bracket reads [...]: characters, ranges, escapes, POSIX names, nested brackets, and && for what both sides hold.
func (p *parser) bracket() (*class, error) {
	p.depth++
	if p.depth > maxDepth {
		return nil, p.fail("brackets nested too deeply")
	}
	defer func() { p.depth-- }()

	p.i++
	c := &class{neg: p.accept("^")}
	part := &class{}
	var parts []*class
	for first := true; ; first = false {
		if !p.more() {
			return nil, p.fail("missing ]")
		}

		switch {
		case p.s[p.i] == ']' && !first:
			p.i++
			c.union, c.and = []*class{part}, parts
			return c, nil
		case p.accept("&&"):
			parts = append(parts, part)
			part = &class{}
			continue
		}

		if err := p.bracketItem(part); err != nil {
			return nil, err
		}
	}
}

// bracketItem reads one item and adds it to a class.
func (p *parser) bracketItem(c *class) error {
	if strings.HasPrefix(p.s[p.i:], "[:") {
		if named, ok := p.posix(); ok {
			c.add(named)
			return nil
		}
	}

	if p.s[p.i] == '[' {
		inner, err := p.bracket()
		if err == nil {
			c.add(inner)
		}
		return err
	}

	set, low, err := p.bracketChar()
	if err != nil {
		return err
	}

	if set != nil {
		c.add(set)
		return nil
	}

	high := low
	if rest := p.s[p.i:]; len(rest) > 1 && rest[0] == '-' && rest[1] != ']' && rest[1] != '[' {
		mark := p.i
		p.i++
		if set, high, err = p.bracketChar(); err != nil {
			return err
		}
		if set != nil { // as in [a-\d]: the hyphen stands for itself
			p.i, high = mark, low
		}
	}

	if high < low {
		return p.fail("empty range")
	}

	c.ranges = append(c.ranges, low, high)
	return nil
}

// bracketChar reads a character, or a class such as \s.
func (p *parser) bracketChar() (*class, rune, error) {
	if p.s[p.i] == '\\' {
		return p.classEscape()
	}
	return nil, p.rune(), nil
}

// add joins another class to an open one, in place where it is simple.
func (c *class) add(other *class) {
	if other.neg || other.fold || len(other.and) > 0 || len(other.union) > 0 {
		c.union = append(c.union, other)
		return
	}
	c.set |= other.set
	c.ranges = append(c.ranges, other.ranges...)
	c.tables = append(c.tables, other.tables...)
}

// posix reads [:name:] or [:^name:].
func (p *parser) posix() (*class, bool) {
	end := strings.Index(p.s[p.i:], ":]")
	if end < 0 {
		return nil, false
	}

	name, negative := strings.CutPrefix(p.s[p.i+2:p.i+end], "^")
	c := namedClasses()[name]
	if c == nil {
		return nil, false
	}

	p.i += end + 2
	if negative {
		c = c.negated()
	}

	return c, true
}
