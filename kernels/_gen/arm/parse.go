package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// operand is an operand of an instruction for x86 in Go's syntax.
type operand struct {
	kind  byte // 'i' immediate, 'r' general register, 'x' and 'y' vector registers, 'm' memory, 'f' parameter, 's' symbol
	n     int  // register, base or immediate
	index int  // register that is added, or -1
	scale int
	off   int    // displacement
	name  string // of a parameter or symbol
}

// line is one instruction, or a label.
type line struct {
	op    string
	args  []operand
	label string
	text  string

	flags  bool // a jump depends on its flags
	setter int  // of a jump: the line whose flags it reads
}

// function is one function.
type function struct {
	name, doc, frame string
	lines            []line
}

// source is a file for AVX2.
type source struct {
	data      []string // DATA and GLOBL lines
	values    map[string]map[int]string
	functions []function
}

// general registers: those of x86 in their order, on ARM's first ones. R7, R16 and R17 are left for short use, R19 and
// up for the addresses of tables; R18, R27 and above belong to the system, the assembler and Go.
var general = map[string]int{
	"AX": 0, "CX": 1, "DX": 2, "BX": 3, "SI": 4, "DI": 5, "BP": 6,
	"R8": 8, "R9": 9, "R10": 10, "R11": 11, "R12": 12, "R13": 13, "R14": 14, "R15": 15,
}

type macro struct {
	params []string
	body   []string
}

var (
	defineForm = regexp.MustCompile(`^#define (\w+)(?:\(([^)]*)\))?\s*(.*)$`)
	textForm   = regexp.MustCompile(`^TEXT ·(\w+)\(SB\), NOSPLIT, (\$\d+-\d+)`)
	dataForm   = regexp.MustCompile(`^DATA (\w+<>)\+(?:0x)?([0-9a-f]+)\(SB\)/(\d), \$(\S+)`)
)

// parse reads the functions for AVX2 of a file.
func parse(text string, wanted func(name string) bool) source {
	src := source{values: map[string]map[int]string{}}
	macros := map[string]macro{}
	var doc []string
	var current *function

	text = strings.ReplaceAll(text, "\\\n", "\x00")
	for l := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(l, "#define"):
			m := defineForm.FindStringSubmatch(l)
			var body []string
			for s := range strings.SplitSeq(m[3], "\x00") {
				body = append(body, strings.TrimSpace(s))
			}
			macros[m[1]] = macro{splitArgs(m[2]), body}
		case strings.HasPrefix(l, "DATA"), strings.HasPrefix(l, "GLOBL"):
			src.data = append(src.data, l)
			src.value(l)
		case strings.HasPrefix(l, "TEXT"):
			m := textForm.FindStringSubmatch(l)
			current = nil
			if m != nil && wanted(m[1]) {
				src.functions = append(src.functions, function{name: m[1], frame: m[2], doc: strings.Join(doc, "\n")})
				current = &src.functions[len(src.functions)-1]
			}
		case strings.HasPrefix(l, "//"):
			doc = append(doc, l)
			continue
		case current != nil:
			for _, s := range expand(l, macros) {
				current.add(s)
			}
		}
		doc = nil
	}
	return src
}

// value notes what a DATA line says.
func (s *source) value(l string) {
	m := dataForm.FindStringSubmatch(l)
	if m == nil {
		return
	}
	off, _ := strconv.Atoi(m[2])
	if s.values[m[1]] == nil {
		s.values[m[1]] = map[int]string{}
	}
	s.values[m[1]][off] = m[3] + ":" + m[4]
}

// same reports whether two pieces of a table are equal.
func (s *source) same(name string, off, size, gap int) bool {
	v := s.values[name]
	for i := range size {
		a, okA := v[off+i]
		b, okB := v[off+gap+i]
		if okA != okB || a != b {
			return false
		}
	}
	_, ok := v[off]
	return ok
}

// four reports whether the 16 bytes of a table hold one 32-bit value four times.
func (s *source) four(name string, off int) bool {
	v := s.values[name][off]
	if v == "" || v != s.values[name][off+8] || !strings.HasPrefix(v, "8:0x") {
		return false
	}
	hex := fmt.Sprintf("%016s", v[4:])
	return hex[:8] == hex[8:]
}

// expand replaces macros.
func expand(l string, macros map[string]macro) []string {
	l, _, _ = strings.Cut(l, "//")
	l = strings.TrimSpace(l)
	if l == "" {
		return nil
	}
	if strings.Contains(l, ";") {
		var out []string
		for part := range strings.SplitSeq(l, ";") {
			out = append(out, expand(part, macros)...)
		}
		return out
	}

	name := regexp.MustCompile(`^\w+`).FindString(l)
	m, ok := macros[name]
	if !ok {
		return []string{l}
	}

	var args []string
	if len(m.params) > 0 {
		args = splitArgs(strings.TrimSuffix(strings.TrimSpace(l[len(name):])[1:], ")"))
	}
	var out []string
	for _, b := range m.body {
		for i, p := range m.params {
			b = regexp.MustCompile(`\b`+p+`\b`).ReplaceAllString(b, strings.ReplaceAll(args[i], "$", "$$"))
		}
		out = append(out, expand(b, macros)...)
	}
	return out
}

// splitArgs cuts at commas outside parentheses.
func splitArgs(s string) []string {
	var out []string
	depth, from := 0, 0
	for i, c := range s {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			out = append(out, strings.TrimSpace(s[from:i]))
			from = i + 1
		}
	}
	if rest := strings.TrimSpace(s[from:]); rest != "" {
		out = append(out, rest)
	}
	return out
}

// add appends one line of text.
func (f *function) add(s string) {
	if label, ok := strings.CutSuffix(s, ":"); ok {
		f.lines = append(f.lines, line{label: label})
		return
	}
	op, rest, _ := strings.Cut(s, " ")
	l := line{op: op, text: s}
	if op[0] == 'J' {
		l.label = strings.TrimSpace(rest)
	} else {
		for _, a := range splitArgs(rest) {
			l.args = append(l.args, parseOperand(a))
		}
	}
	f.lines = append(f.lines, l)
}

var (
	memoryForm = regexp.MustCompile(`^(-?\w*)\((\w+)\)(?:\((\w+)\*(\d)\))?$`)
	paramForm  = regexp.MustCompile(`^(\w+)\+(\d+)\(FP\)$`)
	symbolForm = regexp.MustCompile(`^(·?\w+(?:<>)?)(?:\+(\d+))?\(SB\)$`)
)

func parseOperand(s string) operand {
	if n, ok := strings.CutPrefix(s, "$"); ok {
		if v, err := strconv.ParseInt(n, 0, 64); err == nil {
			return operand{kind: 'i', n: int(v)}
		}
		v, err := strconv.ParseUint(n, 0, 64)
		if err != nil {
			panic("immediate " + s)
		}
		return operand{kind: 'i', n: int(v)}
	}
	if n, ok := general[s]; ok {
		return operand{kind: 'r', n: n}
	}
	if m := regexp.MustCompile(`^([XY])(\d+)$`).FindStringSubmatch(s); m != nil {
		n, _ := strconv.Atoi(m[2])
		return operand{kind: m[1][0] + 'x' - 'X', n: n}
	}
	if m := paramForm.FindStringSubmatch(s); m != nil {
		off, _ := strconv.Atoi(m[2])
		return operand{kind: 'f', name: m[1], off: off}
	}
	if m := symbolForm.FindStringSubmatch(s); m != nil {
		off, _ := strconv.Atoi(m[2])
		return operand{kind: 's', name: m[1], off: off}
	}

	m := memoryForm.FindStringSubmatch(s)
	if m == nil {
		panic("operand " + s)
	}
	o := operand{kind: 'm', n: mustGeneral(m[2]), index: -1, scale: 1}
	if m[1] != "" {
		off, err := strconv.ParseInt(m[1], 0, 64)
		if err != nil {
			panic("operand " + s)
		}
		o.off = int(off)
	}
	if m[3] != "" {
		o.scale, _ = strconv.Atoi(m[4])
		if r, ok := strings.CutPrefix(m[3], "Y"); ok { // of a gather
			n, _ := strconv.Atoi(r)
			o.index = 100 + n
		} else {
			o.index = mustGeneral(m[3])
		}
	}
	return o
}

func mustGeneral(s string) int {
	n, ok := general[s]
	if !ok {
		panic("register " + s)
	}
	return n
}
