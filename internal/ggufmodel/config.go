package ggufmodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/lm/arch"
)

// configuration makes a config.json of metadata.
type configuration struct {
	*metadata
	arch    *arch.Arch
	tensors *tensors
	out     orderedjson.Object
	layers  int
}

// choose finds the architecture among those that files call by one name.
func choose(m *metadata, t *tensors) (*arch.Arch, error) {
	const key = "general.architecture"
	name, err := m.text(key)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, m.fault(ErrMetadata, key, "it is missing")
	}

	list, err := arch.ByGGUF(name)
	if err != nil {
		return nil, &Error{File: m.file, Err: err}
	}

	m.prefix = name + "."
	for _, a := range list {
		if m.holds(a.GGUF.When, t) {
			return a, nil
		}
	}

	return nil, m.fault(ErrArchitecture, key, "%q has no form with these metadata", name)
}

// holds evaluates the condition that tells architectures of one name apart.
func (m *metadata) holds(when string, t *tensors) bool {
	for option := range strings.SplitSeq(when, " | ") {
		if m.all(option, t) {
			return true
		}
	}
	return false
}

// all evaluates conditions that are joined by " & ".
func (m *metadata) all(conditions string, t *tensors) bool {
	for one := range strings.SplitSeq(conditions, " & ") {
		name, negated := strings.CutPrefix(one, "!")
		if name == "" {
			continue
		}

		is := t.match(name)
		if !isTensor(name) {
			key, value, compared := strings.Cut(name, "=")
			v, ok := m.own(key)
			is = ok && (compared && v.String() == value || !compared && truth(v))
		}
		if is == negated {
			return false
		}
	}

	return true
}

// isTensor reports whether a table means a tensor rather than a key.
func isTensor(name string) bool {
	return strings.HasSuffix(name, ".weight") || strings.HasSuffix(name, ".bias")
}

// build writes the configuration and reads it back.
func (c *configuration) build() (*arch.Config, error) {
	for key, allowed := range c.arch.GGUFRequire() {
		if err := c.require(key, allowed); err != nil {
			return nil, err
		}
	}

	classes, _ := json.Marshal(c.arch.Classes[:1])
	c.out.Set("architectures", classes)
	c.out.Set("model_type", quote(c.arch.ModelType))

	layers, err := c.number("block_count", 0)
	if err != nil {
		return nil, err
	}
	c.layers = int(min(max(layers, 0), 1<<14))

	for _, field := range arch.Fields() {
		if err := c.field(field); err != nil {
			return nil, err
		}
	}

	for _, step := range []func() error{c.constants, c.blocks, c.rope, c.special, c.dtype} {
		if err := step(); err != nil {
			return nil, err
		}
	}

	return c.parse()
}

// parse reads what was written, which checks it; faults of values are faults of the metadata.
func (c *configuration) parse() (*arch.Config, error) {
	text, err := c.out.Indent()
	if err != nil {
		return nil, &Error{File: c.file, Err: ErrMetadata, Detail: err.Error()}
	}

	parsed, err := arch.ParseConfig(c.file, text)
	if err == nil {
		return parsed, c.agree(parsed)
	}

	var fault *arch.ConfigError
	if !errors.As(err, &fault) {
		return nil, &Error{File: c.file, Err: ErrMetadata, Detail: err.Error()}
	}

	return nil, &Error{
		File: c.file, Key: c.keyOf(fault.Key), Err: ErrMetadata,
		Detail: strings.TrimPrefix(fault.Key+": "+fault.Problem, ": "),
	}
}

// keyOf is the metadata key behind a key of the configuration; "" where there is none.
func (c *configuration) keyOf(key string) string {
	for field, k := range c.arch.Config {
		if k.Key != key || key == "" {
			continue
		}
		if g, ok := c.arch.GGUFField(field); ok && g.Key != "" {
			return c.prefix + g.Key
		}
	}
	return ""
}

// agree compares sizes that a configuration computes with what the file says about them.
func (c *configuration) agree(p *arch.Config) error {
	sizes := map[string]int{"attention.head_count_kv": p.KVHeads}
	if p.KVRank > 0 {
		sizes = nil // keys and values of latents count differently
	} else {
		sizes["attention.key_length"] = p.HeadDim
		sizes["attention.value_length"] = p.HeadDim
	}

	for _, key := range slices.Sorted(maps.Keys(sizes)) {
		have, err := c.number(key, float64(sizes[key]))
		if err != nil {
			return err
		}
		if have != float64(sizes[key]) {
			return c.fault(ErrMetadata, c.prefix+key, "%g, and a %s of these sizes has %d", have, c.arch.ModelType,
				sizes[key])
		}
	}

	return nil
}

// require checks a key that must have a certain value if it is there.
func (c *configuration) require(key string, allowed []json.RawMessage) error {
	v, ok := c.own(key)
	if !ok {
		return nil
	}

	text, err := c.json(key, v)
	if err != nil {
		return err
	}

	for _, a := range allowed {
		if equal(a, text) {
			return nil
		}
	}

	return c.fault(ErrMetadata, c.prefix+key, "%v is not supported for %s", v, c.arch.ModelType)
}

// equal compares JSON values, numbers by their value.
func equal(a, b json.RawMessage) bool {
	x, errX := strconv.ParseFloat(string(a), 64)
	y, errY := strconv.ParseFloat(string(b), 64)
	if errX == nil && errY == nil {
		return x == y
	}
	return string(a) == string(b)
}

// field writes one field, if the configuration has a key for it and the file says something about it.
func (c *configuration) field(field string) error {
	k, ok := c.arch.Config[field]
	if !ok || k.Key == "" {
		return nil
	}

	if field == "vocab" {
		return c.vocabulary(k.Key)
	}
	if field == "activation" {
		c.out.Set(k.Key, k.Default)
		return nil
	}

	_, given := c.arch.GGUF.Fields[field]
	if slices.Contains(arch.Conditions(), field) && !given {
		if is, known := c.shown(field); known {
			c.out.Set(k.Key, json.RawMessage(strconv.FormatBool(is)))
			return nil
		}
	}

	g, ok := c.arch.GGUFField(field)
	if !ok {
		return nil
	}

	value, absent, err := c.value(field, g)
	if err != nil || value == nil || absent && string(g.Absent) == string(k.Default) {
		return err
	}

	c.out.Set(k.Key, value)
	return nil
}

// vocabulary takes the number of tokens from the token table, with which the file must agree.
func (c *configuration) vocabulary(key string) error {
	const table = "token_embd.weight"
	info, ok := c.tensors.info[table]
	if !ok {
		return &Error{File: c.file, Tensor: table, Err: ErrMissing}
	}
	if len(info.Shape) != 2 {
		return &Error{File: c.file, Tensor: table, Err: ErrShape, Detail: fmt.Sprintf("%v is no matrix", info.Shape)}
	}

	rows := info.Shape[0]
	said, err := c.number("vocab_size", float64(rows))
	if err != nil {
		return err
	}
	if said != float64(rows) {
		return &Error{
			File: c.file, Key: c.prefix + "vocab_size", Tensor: table, Err: ErrShape,
			Detail: fmt.Sprintf("%g tokens, and the table has %d rows", said, rows),
		}
	}

	c.out.Set(key, json.RawMessage(strconv.FormatInt(rows, 10)))
	return nil
}

// shown works out a flag from the tensors that depend on it; !known where none does.
func (c *configuration) shown(flag string) (is, known bool) {
	for i := range c.arch.Tensors {
		t := &c.arch.Tensors[i]
		name, negated := strings.CutPrefix(t.When, "!")
		if name != flag {
			continue
		}

		there := c.there(t)
		if there {
			return !negated, true
		}

		is = negated
		known = true
	}

	return is, known
}

// there reports whether a file has the tensors of a template, in any block.
func (c *configuration) there(t *arch.Tensor) bool {
	blocks := 1
	if t.PerBlock() {
		blocks = c.layers
	}

	for _, s := range c.arch.Sources(t) {
		for l := range blocks {
			if c.tensors.has(s, l, 0) {
				return true
			}
		}
	}

	return false
}

// value gives a field as JSON; nil where the file and the table say nothing. absent reports that it is what the
// absence of the key means.
func (c *configuration) value(field string, g arch.GGUFKey) (value json.RawMessage, absent bool, err error) {
	if v, ok := g.ByLayers[strconv.Itoa(c.layers)]; ok {
		value, err = c.evaluate(v)
		return value, false, err
	}

	key := g.Key
	switch {
	case key == "":
		value, err = c.evaluate(g.Absent)
		return value, false, err
	case isTensor(key):
		return g.Cases[strconv.FormatBool(c.tensors.match(key))], false, nil
	}

	v, ok := c.own(key)
	if !ok && g.Also != "" {
		key = g.Also
		v, ok = c.own(key)
	}

	if !ok {
		if given, ok := g.Cases[""]; ok {
			return given, true, nil
		}
		if g.Absent == nil && (g.Required || c.arch.Config[field].Default == nil) {
			return nil, true, c.fault(ErrMetadata, c.prefix+g.Key, "it is missing")
		}
		value, err = c.evaluate(g.Absent)
		return value, true, err
	}

	value, err = c.json(key, v)
	if err != nil {
		return nil, false, err
	}
	if g.Minus != "" {
		value, err = c.less(key, value, g.Minus)
	}

	for _, name := range []string{string(value), "*"} {
		if translated, ok := g.Cases[name]; ok && err == nil {
			return translated, false, nil
		}
	}

	return value, false, err
}

// less takes the value of a key off a whole number.
func (c *configuration) less(key string, value json.RawMessage, minus string) (json.RawMessage, error) {
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return nil, c.fault(ErrMetadata, c.prefix+key, "%s is not a whole number", value)
	}

	if n < 1 {
		return nil, c.fault(ErrMetadata, c.prefix+key, "%d; it must be at least 1", n)
	}

	x, err := c.number(minus, 0)
	if err != nil {
		return nil, err
	}
	if x < 0 || x >= float64(n) || x != math.Trunc(x) {
		return nil, c.fault(ErrMetadata, c.prefix+minus, "%g, and %s is %d", x, c.prefix+key, n)
	}

	return json.RawMessage(strconv.FormatInt(n-int64(x), 10)), nil
}

// evaluate works out the value of an absent key: a text names fields ("heads", "hidden/heads"), others stand for
// themselves.
func (c *configuration) evaluate(v json.RawMessage) (json.RawMessage, error) {
	var expression string
	if v == nil || json.Unmarshal(v, &expression) != nil || expression == "" {
		return v, nil
	}

	over, under, quotient := strings.Cut(expression, "/")
	n, err := c.size(over)
	if err != nil || !quotient {
		return json.RawMessage(strconv.FormatInt(n, 10)), err
	}

	d, err := c.size(under)
	if err != nil {
		return nil, err
	}
	if d == 0 || n%d != 0 {
		return nil, &Error{
			File: c.file, Err: ErrMetadata,
			Detail: fmt.Sprintf("%d (%s) is not a multiple of %d (%s)", n, over, d, under),
		}
	}

	return json.RawMessage(strconv.FormatInt(n/d, 10)), nil
}

// size gives a field that is a whole number.
func (c *configuration) size(field string) (int64, error) {
	g, ok := c.arch.GGUFField(field)
	if !ok {
		return 0, &Error{File: c.file, Err: ErrMetadata, Detail: fmt.Sprintf("nothing is known of %s", field)}
	}

	value, _, err := c.value(field, g)
	if err != nil {
		return 0, err
	}

	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || n < 0 {
		return 0, c.fault(ErrMetadata, c.prefix+g.Key, "%s is not a size", value)
	}

	return n, nil
}

// constants writes what all files of the architecture mean.
func (c *configuration) constants() error {
	for _, key := range slices.Sorted(maps.Keys(c.arch.GGUF.Values)) {
		value := c.arch.GGUF.Values[key]
		var text string
		if json.Unmarshal(value, &text) == nil && strings.HasPrefix(text, "=") {
			n, err := c.size(text[1:])
			if err != nil {
				return err
			}
			value = json.RawMessage(strconv.FormatInt(n, 10))
		}
		c.out.Set(key, value)
	}

	for _, key := range slices.Sorted(maps.Keys(c.arch.GGUF.Each)) {
		c.out.Set(key, list(c.layers, func(int) json.RawMessage { return c.arch.GGUF.Each[key] }))
	}

	return nil
}

// blocks writes which blocks attend to a window, where the file says so.
func (c *configuration) blocks() error {
	const key = "attention.sliding_window_pattern"
	if !c.out.Has(c.arch.Config["window"].Key) || c.arch.Window == "" || c.arch.Window == arch.AllBlocks {
		return nil
	}

	v, ok := c.own(key)
	if !ok {
		return nil
	}

	slides, ok := v.Bools()
	if n, isNumber := v.Uint(); isNumber && n > 0 {
		ok = true
		for l := range c.layers {
			slides = append(slides, uint64(l+1)%n != 0)
		}
	}
	if !ok || len(slides) < c.layers {
		return c.fault(ErrMetadata, c.prefix+key, "%v does not say which of %d blocks have a window", v, c.layers)
	}

	c.out.Set("layer_types", list(c.layers, func(l int) json.RawMessage {
		if slides[l] {
			return quote("sliding_attention")
		}
		return quote("full_attention")
	}))

	return nil
}

// list writes a list of n values.
func list(n int, value func(i int) json.RawMessage) json.RawMessage {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = string(value(i))
	}
	return json.RawMessage("[" + strings.Join(texts, ", ") + "]")
}

// special writes the ids of the tokens that begin, end and fill sequences; a null where the file names none, for which
// libraries would take those of the family's first model.
func (c *configuration) special() error {
	for _, one := range [][2]string{
		{"bos_token_id", "bos_token_id"}, {"eos_token_id", "eos_token_id"}, {"pad_token_id", "padding_token_id"},
	} {
		id, ok, err := c.tokenID(one[1])
		if err != nil {
			return err
		}

		c.out.Set(one[0], json.RawMessage("null"))
		if ok {
			c.out.Set(one[0], json.RawMessage(strconv.Itoa(id)))
		}
	}

	return nil
}

// tokenID reads the id of a special token; !ok where the file names none.
func (m *metadata) tokenID(name string) (id int, ok bool, err error) {
	key := "tokenizer.ggml." + name
	v, ok := m.values[key]
	if !ok {
		return 0, false, nil
	}

	n, isNumber := v.Uint()
	if !isNumber || n > math.MaxInt32 {
		if n, isInt := v.Int(); isInt && n == -1 || n == math.MaxUint32 { // none, as some tools write it
			return 0, false, nil
		}
		return 0, false, m.fault(ErrMetadata, key, "%v is not the id of a token", v)
	}

	return int(n), true, nil
}

// dtype writes the type that most values are stored in.
func (c *configuration) dtype() error {
	c.out.Set("torch_dtype", quote(c.tensors.dtype()))
	return nil
}

// quote writes a text as JSON.
func quote(s string) json.RawMessage {
	text, err := orderedjson.Text(s)
	if err != nil {
		panic("ggufmodel: " + err.Error())
	}
	return text
}
