//go:build linux && (amd64 || arm64)

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// machine interprets a kernel of PTX over small grids: the threads of a block one after another, each until it
// meets a barrier or a shuffle, with bounds of every access checked. It knows the instructions that occur in
// the kernels with formulas, and refuses others.
type machine struct {
	code     []instruction
	labels   map[string]int
	regs     map[string]int
	shared   map[string]uint64
	room     uint64 // of shared memory
	global   []byte // at address base
	param    []byte
	executed int
}

// base is the address of global memory, so that a null pointer is outside.
const base = 1 << 20

type instruction struct {
	text           string
	guard          operand
	guarded, unset bool
	op             []string // what dots separate
	args           []operand
}

// operand is a register, a number, an address (a register or number and an offset), a label, or a tuple.
type operand struct {
	reg   int // -1: none
	value uint64
	name  string
	tuple []operand
}

var (
	statement = regexp.MustCompile(`^(?:@(!?)(%\w+)\s+)?([a-z][\w.]*)\s*([^;]*);$`)
	variable  = regexp.MustCompile(`^\.shared \.align (\d+) \.(?:b8 ([\w$]+)\[(\d+)\]|u32 ([\w$]+));$`)
	separator = regexp.MustCompile(`\s*[,|]\s*`)
)

// assembled reads the text of a module with one kernel.
func assembled(text string) (*machine, error) {
	m := &machine{labels: map[string]int{}, regs: map[string]int{}, shared: map[string]uint64{}}
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(l), "\n"))
		if v := variable.FindStringSubmatch(l); v != nil {
			size := uint64(4)
			if v[3] != "" {
				size, _ = strconv.ParseUint(v[3], 10, 64)
			}

			m.room = (m.room + 15) &^ 15
			m.shared[v[2]+v[4]] = m.room
			m.room += size
			continue
		}

		switch {
		case l == "" || strings.HasPrefix(l, "//") || strings.HasPrefix(l, ".") || strings.ContainsAny(l[:1], "{}()"):
		case strings.HasSuffix(l, ":"):
			m.labels[strings.TrimSuffix(l, ":")] = len(m.code)
		default:
			s := statement.FindStringSubmatch(l)
			if s == nil {
				return nil, fmt.Errorf("line %q", l)
			}

			i := instruction{text: l, op: strings.Split(s[3], "."), guarded: s[2] != "", unset: s[1] != ""}
			if i.guarded {
				i.guard = m.operand(s[2])
			}

			i.args = m.operands(s[4])
			m.code = append(m.code, i)
		}
	}

	return m, nil
}

// operands reads a list; braces hold a tuple.
func (m *machine) operands(text string) (list []operand) {
	for text = strings.TrimSpace(text); text != ""; {
		if strings.HasPrefix(text, "{") {
			inner, rest, _ := strings.Cut(text[1:], "}")
			list = append(list, operand{reg: -1, tuple: m.operands(inner)})
			text = strings.TrimLeft(rest, ", ")
			continue
		}

		parts := separator.Split(text, 2)
		list = append(list, m.operand(parts[0]))
		text = strings.Join(parts[1:], "")
	}

	return list
}

// operand reads one; a name of a parameter is an address in the memory of parameters.
func (m *machine) operand(s string) operand {
	s = strings.Trim(s, "[] ")
	o := operand{reg: -1, name: s}
	if at := strings.IndexByte(s, '+'); at > 0 {
		offset, _ := strconv.ParseInt(s[at+1:], 10, 64)
		o = m.operand(s[:at])
		o.value += uint64(offset)
		return o
	}

	switch {
	case strings.HasPrefix(s, "%"):
		n, ok := m.regs[s]
		if !ok {
			n = len(m.regs)
			m.regs[s] = n
		}
		o.reg = n
	case strings.HasPrefix(s, "0f"), strings.HasPrefix(s, "0d"):
		o.value, _ = strconv.ParseUint(s[2:], 16, 64)
	case strings.HasSuffix(s, "_param_0"):
	default:
		if v, ok := m.shared[s]; ok {
			o.value = v
		} else if v, err := strconv.ParseInt(s, 0, 64); err == nil {
			o.value = uint64(v)
		}
	}

	return o
}

// Why a thread stopped.
const (
	running = iota
	atBarrier
	atShuffle
	ended
)

type lane struct {
	pc, state int
	regs      []uint64
	shared    []byte
	local     [512]byte
}

// run runs the kernel over a grid.
func (m *machine) run(g grid) error {
	for y := range g.y {
		for x := range g.x {
			if err := m.block(x, y, g); err != nil {
				return fmt.Errorf("block %d, %d: %w", x, y, err)
			}
		}
	}
	return nil
}

func (m *machine) block(x, y int, g grid) error {
	lanes, shared := make([]lane, g.threads), make([]byte, m.room)
	for i := range shared {
		shared[i] = 0xCC
	}

	for t := range lanes {
		l := lane{regs: make([]uint64, len(m.regs)), shared: shared}
		for name, v := range map[string]int{
			"%tid.x": t, "%ctaid.x": x, "%ctaid.y": y, "%ntid.x": g.threads,
			"%nctaid.x": g.x, "%nctaid.y": g.y,
		} {
			if n, ok := m.regs[name]; ok {
				l.regs[n] = uint64(v)
			}
		}

		lanes[t] = l
	}

	for {
		for t := range lanes {
			for lanes[t].state == running {
				if err := m.step(&lanes[t]); err != nil {
					return fmt.Errorf("thread %d: %w", t, err)
				}
			}
		}

		switch more, err := m.meet(lanes); {
		case err != nil:
			return err
		case !more:
			return nil
		}
	}
}

// meet lets the warps go on that shuffle, or if there are none the block that waits at a barrier. A warp of
// which some threads shuffle and others do not is an error, as is a barrier that not all threads reach.
func (m *machine) meet(lanes []lane) (more bool, err error) {
	count := [ended + 1]int{}
	for w := 0; w < len(lanes); w += 32 {
		warp, shuffling := lanes[w:min(w+32, len(lanes))], 0
		for _, l := range warp {
			count[l.state]++
			if l.state == atShuffle {
				shuffling++
			}
		}

		if shuffling == 0 {
			continue
		}

		for _, l := range warp {
			if shuffling < 32 || l.pc != warp[0].pc {
				return false, fmt.Errorf("%q is not met by the whole warp", m.code[max(l.pc, 0)].text)
			}
		}

		m.shuffle(warp)
	}

	if count[atShuffle] > 0 {
		return true, nil
	}
	if count[atBarrier] == 0 {
		return false, nil
	}
	if count[atBarrier] < len(lanes) {
		return false, fmt.Errorf("%d of %d threads reach a barrier", count[atBarrier], len(lanes))
	}

	for t := range lanes {
		if lanes[t].pc != lanes[0].pc {
			return false, fmt.Errorf("threads wait at different barriers")
		}
	}

	for t := range lanes {
		lanes[t].state, lanes[t].pc = running, lanes[t].pc+1
	}

	return true, nil
}

// shuffle exchanges registers of a warp.
func (m *machine) shuffle(warp []lane) {
	i := m.code[warp[0].pc]
	values, old := make([]uint64, 32), make([]uint64, 32)
	from, valid := make([]int, 32), make([]bool, 32)
	for t := range warp {
		old[t] = m.get(&warp[t], i.args[2])
		b, c := int(m.get(&warp[t], i.args[3]))&31, int(m.get(&warp[t], i.args[4]))
		limit := t&(c>>8&31) | c&31&^(c>>8&31)
		if i.op[2] == "up" {
			from[t] = t - b
			valid[t] = from[t] >= limit
		} else {
			from[t] = t ^ b
			valid[t] = from[t] <= limit
		}

		if !valid[t] {
			from[t] = t
		}
	}

	for t := range warp {
		values[t] = old[from[t]]
	}

	for t := range warp {
		l := &warp[t]
		l.regs[i.args[0].reg], l.regs[i.args[1].reg] = values[t], truth(valid[t])
		l.state, l.pc = running, l.pc+1
	}
}

func (m *machine) get(l *lane, o operand) uint64 {
	if o.reg >= 0 {
		return l.regs[o.reg] + o.value
	}
	return o.value
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// step runs one instruction of a thread.
func (m *machine) step(l *lane) error {
	if l.pc >= len(m.code) {
		return fmt.Errorf("runs past the end")
	}

	m.executed++
	if m.executed > 1<<28 {
		return fmt.Errorf("runs on and on")
	}

	i := &m.code[l.pc]
	if i.guarded && (m.get(l, i.guard) != 0) == i.unset {
		l.pc++
		return nil
	}

	switch i.op[0] {
	case "ret":
		l.state = ended
		return nil
	case "bra":
		to, ok := m.labels[i.args[0].name]
		if !ok {
			return fmt.Errorf("%q: no such label", i.text)
		}
		l.pc = to
		return nil
	case "bar":
		l.state = atBarrier
		return nil
	case "shfl":
		l.state = atShuffle
		return nil
	case "ld", "st", "atom":
		if err := m.access(l, i); err != nil {
			return fmt.Errorf("%q: %w", i.text, err)
		}
	default:
		if err := m.compute(l, i); err != nil {
			return fmt.Errorf("%q: %w", i.text, err)
		}
	}

	l.pc++
	return nil
}

// widthOf is the size in bytes of a type such as f32, b64 or u8.
func widthOf(t string) (int, error) {
	n, err := strconv.Atoi(t[1:])
	if err != nil || n != 8 && n != 16 && n != 32 && n != 64 {
		return 0, fmt.Errorf("unknown type %s", t)
	}
	return n / 8, nil
}

// memory is size bytes of a space.
func (m *machine) memory(l *lane, space string, at uint64, size int) ([]byte, error) {
	var room []byte
	switch space {
	case "global":
		room, at = m.global, at-base
	case "shared":
		room = l.shared
	case "local":
		room = l.local[:]
	case "param":
		room = m.param
	}

	if at%uint64(size) != 0 || at > uint64(len(room)) || uint64(len(room))-at < uint64(size) {
		return nil, fmt.Errorf("%d bytes at %d of %s memory of %d bytes", size, at, space, len(room))
	}

	return room[at : at+uint64(size)], nil
}

// access loads, stores or adds to memory.
func (m *machine) access(l *lane, i *instruction) error {
	size, err := widthOf(i.op[len(i.op)-1])
	if err != nil {
		return err
	}

	where, what := 1, 0
	if i.op[0] == "st" {
		where, what = 0, 1
	}

	list := []operand{i.args[what]}
	if list[0].tuple != nil {
		list = list[0].tuple
	}

	p, err := m.memory(l, i.op[1], m.get(l, i.args[where]), size*len(list))
	if err != nil {
		return err
	}

	word := make([]byte, 8)
	for k, o := range list {
		part := p[k*size : (k+1)*size]
		if i.op[0] == "st" {
			binary.LittleEndian.PutUint64(word, m.get(l, o))
			copy(part, word[:size])
			continue
		}

		clear(word)
		copy(word, part)
		l.regs[o.reg] = binary.LittleEndian.Uint64(word)
	}

	if i.op[0] == "atom" {
		if i.op[2] != "add" || size != 4 {
			return fmt.Errorf("unknown operation")
		}
		binary.LittleEndian.PutUint32(p, binary.LittleEndian.Uint32(p)+uint32(m.get(l, i.args[2])))
	}

	return nil
}

// compute does what changes registers only.
func (m *machine) compute(l *lane, i *instruction) error {
	t := i.op[len(i.op)-1]
	v := make([]uint64, 0, 3)
	for _, o := range i.args[1:] {
		v = append(v, m.get(l, o))
	}
	if tuples := m.moveParts(l, i); tuples {
		return nil
	}

	out, err := uint64(0), error(nil)
	switch {
	case i.op[0] == "mov" || i.op[0] == "cvta":
		out = v[0]
	case i.op[0] == "selp":
		out = v[1]
		if v[2] != 0 {
			out = v[0]
		}
	case i.op[0] == "cvt":
		out, err = converted(i.op, v[0])
	case t == "pred":
		out, err = integer(i.op[0], "b32", v)
	case i.op[0] == "setp" && t[0] == 'f':
		out, err = compared(i.op[1], number64(t, v[0]), number64(t, v[1]))
	case i.op[0] == "setp":
		out, err = ordered(i.op[1], t, v[0], v[1])
	case t == "f32":
		out, err = single(i.op, v)
	case t == "f64":
		out, err = double(i.op[0], v)
	default:
		out, err = integer(strings.Join(i.op[:len(i.op)-1], "."), t, v)
	}

	l.regs[i.args[0].reg] = out
	return err
}

// moveParts moves between a register and the tuple of its parts.
func (m *machine) moveParts(l *lane, i *instruction) bool {
	if i.op[0] != "mov" {
		return false
	}

	if parts := i.args[0].tuple; parts != nil {
		v, half := m.get(l, i.args[1]), 32
		for k, o := range parts {
			l.regs[o.reg] = v >> (half * k) & math.MaxUint32
		}
		return true
	}

	if parts := i.args[1].tuple; parts != nil {
		half := 32
		if i.op[1] == "b32" {
			half = 16
		}
		l.regs[i.args[0].reg] = m.get(l, parts[0]) | m.get(l, parts[1])<<half
		return true
	}

	return false
}
