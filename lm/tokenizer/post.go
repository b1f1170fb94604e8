package tokenizer

import (
	"fmt"
	"unicode"
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

func (t *Tokenizer) buildPost(v value) (postProcessor, error) {
	p := postProcessor{one: []templateItem{{part: partA}}, two: []templateItem{{part: partA}, {part: partB, typeID: 1}}}
	if v.absent() {
		return p, nil
	}
	n, err := newNode(v, 0)
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

func postKinds() map[string]func(*Tokenizer, *postProcessor, *node) {
	return map[string]func(*Tokenizer, *postProcessor, *node){
		"TemplateProcessing": (*Tokenizer).addTemplate, "BertProcessing": (*Tokenizer).addBert,
		"RobertaProcessing": (*Tokenizer).addRoberta, "ByteLevel": (*Tokenizer).addTrimming,
		"Sequence": nil, // spelled out by addPost
	}
}

// addPost applies one post-processor of the file; adds remembers whether one that adds tokens came before.
func (t *Tokenizer) addPost(p *postProcessor, n *node, adds *bool) error {
	if n.kind == "Sequence" {
		for _, c := range n.list("processors") {
			if err := t.addPost(p, c, adds); err != nil {
				return err
			}
		}
		return n.err
	}
	apply := postKinds()[n.kind]
	if apply == nil {
		return unknown(n.kind, postKinds())
	}
	if n.kind != "ByteLevel" {
		if *adds {
			return fmt.Errorf("%w: a second post-processor that adds tokens (%s)", ErrUnsupported, n.kind)
		}
		*adds = true
	}
	apply(t, p, n)
	return n.err
}

func (t *Tokenizer) addTrimming(p *postProcessor, n *node) {
	if n.flag("trim_offsets", true) {
		p.trimming = &trimming{n.flag("add_prefix_space", true)}
	}
}

func (t *Tokenizer) addTemplate(p *postProcessor, n *node) {
	special := map[string][]int32{}
	if n.has("special_tokens") {
		c := n.fields["special_tokens"].cursor()
		n.fail(c.object(func(key string) error {
			v, err := c.raw()
			if err != nil {
				return err
			}
			token, err := newNode(v, n.depth+1)
			if err != nil {
				return err
			}
			special[key], err = t.readIDs(token)
			return err
		}), "special_tokens")
	}
	p.one = t.readTemplate(n, "single", special)
	p.two = t.readTemplate(n, "pair", special)
}

// readIDs reads the ids of a template's token and checks that they exist.
func (t *Tokenizer) readIDs(n *node) (ids []int32, err error) {
	c := n.fields["ids"].cursor()
	err = c.array(func() error {
		id, err := c.integer()
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
func (t *Tokenizer) readTemplate(n *node, key string, special map[string][]int32) []templateItem {
	var items []templateItem
	for _, place := range n.list(key) {
		item := templateItem{}
		switch {
		case place.has("Sequence"):
			s := place.object("Sequence")
			item.typeID = int32(s.integer("type_id", 0, 0, 1<<30))
			item.part = partA
			if name := s.need("id"); name == "B" {
				item.part = partB
			} else if name != "A" {
				n.fail(fmt.Errorf("%w: sequence %q is neither A nor B", ErrSyntax, name), key)
			}
			n.fail(s.err, key)
		default:
			s := place.object("SpecialToken")
			item.typeID = int32(s.integer("type_id", 0, 0, 1<<30))
			name := s.need("id")
			ids, ok := special[name]
			if !ok {
				n.fail(fmt.Errorf("%w: template token %q is not in special_tokens", ErrVocab, name), key)
			}
			item.ids = ids
			n.fail(s.err, key)
		}
		n.fail(place.err, key)
		items = append(items, item)
	}
	if len(items) == 0 {
		n.fail(fmt.Errorf("%w: empty template", ErrSyntax), key)
		return []templateItem{{part: partA}}
	}
	return items
}

// namedID reads ["token", id].
func (t *Tokenizer) namedID(n *node, key string) []int32 {
	if !n.has(key) {
		n.missing(key)
		return nil
	}
	c := n.fields[key].cursor()
	i, id := 0, int64(-1)
	err := c.array(func() (err error) {
		if i++; i == 1 {
			_, err = c.str()
			return err
		}
		id, err = c.integer()
		return err
	})
	if err == nil {
		err = t.checkID(id)
	}
	n.fail(err, key)
	return []int32{int32(id)}
}

func (t *Tokenizer) addBert(p *postProcessor, n *node) {
	cls, sep := t.namedID(n, "cls"), t.namedID(n, "sep")
	p.one = []templateItem{{ids: cls}, {part: partA}, {ids: sep}}
	p.two = []templateItem{{ids: cls}, {part: partA}, {ids: sep}, {part: partB, typeID: 1}, {ids: sep, typeID: 1}}
}

func (t *Tokenizer) addRoberta(p *postProcessor, n *node) {
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
		if lead > 0 && (i == 0 || sp.Start == 0) && p.trimming.prefix {
			lead--
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
