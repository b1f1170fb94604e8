package ggufmodel

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"github.com/modelcompress/compress/internal/orderedjson"
)

// Files gives the small files of the checkpoint by their names: config.json, generation_config.json, and, where the
// file has a tokenizer, tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja. They
// are made once; callers must not change them.
func (m *Model) Files() (map[string][]byte, error) { return m.files() }

// makeFiles makes what Files gives.
func (m *Model) makeFiles() (map[string][]byte, error) {
	files := map[string][]byte{"config.json": m.text}
	v, err := newVocabulary(m.meta, m.config.Vocab)
	if err != nil {
		return nil, err
	}

	generation, err := m.generation(v)
	if err != nil {
		return nil, err
	}
	if generation != nil {
		files["generation_config.json"] = generation
	}
	if v == nil {
		return files, nil
	}

	if files["tokenizer.json"], err = v.write(m.config.Arch.GGUF.MergesByID); err != nil {
		return nil, m.wrap(err)
	}
	files["tokenizer_config.json"], files["special_tokens_map.json"], err = v.settings(m.config.MaxPositions)
	if err != nil {
		return nil, m.wrap(err)
	}

	if template, _ := v.text(templateKey); template != "" {
		files["chat_template.jinja"] = []byte(template)
	}

	return files, nil
}

// wrap makes an error about the file of one that is none yet.
func (m *Model) wrap(err error) error {
	if e := new(Error); errors.As(err, &e) {
		return err
	}
	return &Error{File: m.meta.file, Err: ErrTokenizer, Detail: err.Error()}
}

// generation is generation_config.json: the tokens that begin a text and end it; nil where the file names none.
func (m *Model) generation(v *vocabulary) ([]byte, error) {
	var o orderedjson.Object
	if id, ok, err := m.meta.tokenID("bos_token_id"); err != nil {
		return nil, err
	} else if ok {
		o.Set("bos_token_id", json.RawMessage(strconv.Itoa(id)))
	}

	var ends []string
	add := func(id int) {
		if text := strconv.Itoa(id); !slices.Contains(ends, text) {
			ends = append(ends, text)
		}
	}

	eot := false
	for _, name := range []string{"eos_token_id", "eot_token_id", "eom_token_id"} {
		id, ok, err := m.meta.tokenID(name)
		if err != nil {
			return nil, err
		}
		if ok {
			add(id)
			eot = eot || name == "eot_token_id"
		}
	}
	if id, ok := v.turnEnd(); ok && !eot {
		add(id)
	}

	switch {
	case len(ends) == 1:
		o.Set("eos_token_id", json.RawMessage(ends[0]))
	case len(ends) > 1:
		o.Set("eos_token_id", list(len(ends), func(i int) json.RawMessage { return json.RawMessage(ends[i]) }))
	}
	if len(o.Keys()) == 0 {
		return nil, nil
	}

	text, err := o.Indent()
	return text, err
}
