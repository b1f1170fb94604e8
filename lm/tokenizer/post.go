package tokenizer

import (
	"fmt"
	"unicode"

	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
)

// templatePart says what stands in one place of a template.
type templatePart uint8

const (
	partTokens templatePart = iota
	partA
	partB
)

// templateItem is one place of a template: a text, or tokens.
type templateItem struct {
	part   templatePart
	ids    []int32
	typeID int32
}

// postProcessor adds tokens around one or two texts and trims offsets. Its zero value adds nothing.
type postProcessor struct {
	one, two []templateItem
	trimming *trimming
}

// trimming takes white space off the offsets of byte-level tokens.
type trimming struct{ prefix bool }

func (t *Tokenizer) buildPost(v config.Value) (postProcessor, error) {
	p := postProcessor{one: []templateItem{{part: partA}}, two: []templateItem{{part: partA}, {part: partB, typeID: 1}}}
	if v.Absent() {
		return p, nil
	}

	n, err := config.NewNode(v, 0)
	if err != nil {
		return p, err
	}

	if err := t.addPost(&p, n, new(bool)); err != nil {
		return p, err
	}
	if first := p.one[0]; first.part == partTokens && len(first.ids) > 0 {
		t.info.bos = first.ids[0]
	}
	if last := p.one[len(p.one)-1]; last.part == partTokens && len(last.ids) > 0 {
		t.info.eos = last.ids[len(last.ids)-1]
	}

	return p, nil
}

func postKinds() map[string]func(*Tokenizer, *postProcessor, *config.Node) {
	return map[string]func(*Tokenizer, *postProcessor, *config.Node){
		"TemplateProcessing": (*Tokenizer).addTemplate, "BertProcessing": (*Tokenizer).addBert,
		"RobertaProcessing": (*Tokenizer).addRoberta, "ByteLevel": (*Tokenizer).addTrimming,
		"Sequence": nil, // spelled out by addPost
	}
}

// addPost applies one post-processor of the file; adds remembers whether one that adds tokens came before.
func (t *Tokenizer) addPost(p *postProcessor, n *config.Node, adds *bool) error {
	if n.Kind == "Sequence" {
		for _, c := range n.List("processors") {
			if err := t.addPost(p, c, adds); err != nil {
				return err
			}
		}
		return n.Err
	}

	apply := postKinds()[n.Kind]
	if apply == nil {
		return config.Unknown(n.Kind, postKinds())
	}

	if n.Kind != "ByteLevel" {
		if *adds {
			return fmt.Errorf("%w: a second post-processor that adds tokens (%s)", ErrUnsupported, n.Kind)
		}
		*adds = true
	}

	apply(t, p, n)
	return n.Err
}

func (t *Tokenizer) addTrimming(p *postProcessor, n *config.Node) {
	if n.Flag("trim_offsets", true) {
		p.trimming = &trimming{n.Flag("add_prefix_space", true)}
	}
}

func (t *Tokenizer) addTemplate(p *postProcessor, n *config.Node) {
	special := map[string][]int32{}
	if n.Has("special_tokens") {
		tokens := n.Object("special_tokens")
		for key := range tokens.Fields {
			ids, err := t.readIDs(tokens.Object(key))
			special[key] = ids
			tokens.Fail(err, key)
		}

		n.Fail(tokens.Err, "special_tokens")
	}

	p.one = t.readTemplate(n, "single", special)
	p.two = t.readTemplate(n, "pair", special)
}

// readIDs reads the ids of a template's token and checks that they exist.
func (t *Tokenizer) readIDs(n *config.Node) (ids []int32, err error) {
	c := n.Fields["ids"].Cursor()
	err = c.Array(func() error {
		id, err := c.Integer()
		if err != nil {
			return err
		}
		ids = append(ids, int32(id))
		return t.checkID(id)
	})

	return ids, err
}

func (t *Tokenizer) checkID(id int64) error {
	if id < 0 || id >= int64(len(t.tokens)) || t.tokens[id].kind == tokenNone {
		return fmt.Errorf("%w: no token has the id %d", ErrTokenID, id)
	}
	return nil
}

// readTemplate reads the places of a template.
func (t *Tokenizer) readTemplate(n *config.Node, key string, special map[string][]int32) []templateItem {
	var items []templateItem
	for _, place := range n.List(key) {
		item := templateItem{}
		switch {
		case place.Has("Sequence"):
			s := place.Object("Sequence")
			item.typeID = int32(s.Integer("type_id", 0, 0, 1<<30))

			item.part = partA
			if name := s.Need("id"); name == "B" {
				item.part = partB
			} else if name != "A" {
				n.Fail(fmt.Errorf("%w: sequence %q is neither A nor B", ErrSyntax, name), key)
			}

			n.Fail(s.Err, key)
		default:
			s := place.Object("SpecialToken")
			item.typeID = int32(s.Integer("type_id", 0, 0, 1<<30))
			name := s.Need("id")
			ids, ok := special[name]
			if !ok {
				n.Fail(fmt.Errorf("%w: template token %q is not in special_tokens", ErrVocab, name), key)
			}

			item.ids = ids
			n.Fail(s.Err, key)
		}

		n.Fail(place.Err, key)
		items = append(items, item)
	}

	if len(items) == 0 {
		n.Fail(fmt.Errorf("%w: empty template", ErrSyntax), key)
		return []templateItem{{part: partA}}
	}

	return items
}

// namedID reads ["token", id].
func (t *Tokenizer) namedID(n *config.Node, key string) []int32 {
	if !n.Has(key) {
		n.Missing(key)
		return nil
	}

	c := n.Fields[key].Cursor()
	i, id := 0, int64(-1)
	err := c.Array(func() (err error) {
		i++
		if i == 1 {
			_, err = c.String()
			return err
		}
		id, err = c.Integer()
		return err
	})
	if err == nil {
		err = t.checkID(id)
	}

	n.Fail(err, key)
	return []int32{int32(id)}
}

func (t *Tokenizer) addBert(p *postProcessor, n *config.Node) {
	cls, sep := t.namedID(n, "cls"), t.namedID(n, "sep")
	p.one = []templateItem{{ids: cls}, {part: partA}, {ids: sep}}
	p.two = []templateItem{{ids: cls}, {part: partA}, {ids: sep}, {part: partB, typeID: 1}, {ids: sep, typeID: 1}}
}

func (t *Tokenizer) addRoberta(p *postProcessor, n *config.Node) {
	cls, sep := t.namedID(n, "cls"), t.namedID(n, "sep")
	t.addTrimming(p, n)
	p.one = []templateItem{{ids: cls}, {part: partA}, {ids: sep}}
	p.two = []templateItem{{ids: cls}, {part: partA}, {ids: sep}, {ids: sep}, {part: partB}, {ids: sep}}
}

// items returns the template for one text or two, without its tokens if they are not wanted.
func (p *postProcessor) items(pair, bare bool) []templateItem {
	items := p.one
	if pair {
		items = p.two
	}
	if !bare {
		return items
	}

	texts := make([]templateItem, 0, 2)
	for _, it := range items {
		if it.part != partTokens {
			texts = append(texts, it)
		}
	}

	return texts
}

// trim takes the white space at the ends of each token off its span; ids and spans are those of one text.
func (p *postProcessor) trim(ids []int32, spans []Span, t *Tokenizer) {
	if p.trimming == nil {
		return
	}

	for i := range spans {
		sp := &spans[i]
		lead, trail := blanks(t.tokens[ids[i]].text)
		if lead == 1 && (i == 0 || sp.Start == 0) && p.trimming.prefix {
			lead = 0 // the space that was put in front
		}

		sp.Start = min(sp.Start+lead, sp.End)
		if trail > 0 && sp.End >= trail {
			sp.End = max(sp.End-trail, sp.Start)
		}
	}
}

// blanks counts the characters for white space at both ends of a token.
func blanks(token string) (lead, trail int) {
	blank := func(r rune) bool { return r == 'Ġ' || unicode.IsSpace(r) }
	runes := []rune(token)
	for lead < len(runes) && blank(runes[lead]) {
		lead++
	}
	for trail < len(runes) && blank(runes[len(runes)-1-trail]) {
		trail++
	}
	return lead, trail
}
