package ggufmodel

import (
	"encoding/json"
	"strconv"

	"github.com/modelcompress/compress/internal/orderedjson"
)

// Files gives the small files of the checkpoint by their names: config.json, and what follows from the metadata of
// generation and of the tokenizer.
func (m *Model) Files() (map[string][]byte, error) {
	files := map[string][]byte{"config.json": m.text}
	generation, err := m.generation()
	if err != nil {
		return nil, err
	}
	if generation != nil {
		files["generation_config.json"] = generation
	}

	return files, nil
}

// generation is generation_config.json: the tokens that begin a text and end it; nil where the file names none.
func (m *Model) generation() ([]byte, error) {
	var o orderedjson.Object
	if id, ok, err := m.meta.tokenID("bos_token_id"); err != nil {
		return nil, err
	} else if ok {
		o.Set("bos_token_id", json.RawMessage(strconv.Itoa(id)))
	}

	var ends []string
	for _, name := range []string{"eos_token_id", "eot_token_id", "eom_token_id"} {
		id, ok, err := m.meta.tokenID(name)
		if err != nil {
			return nil, err
		}
		text := strconv.Itoa(id)
		if ok && (len(ends) == 0 || ends[len(ends)-1] != text) {
			ends = append(ends, text)
		}
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
	if err != nil {
		return nil, &Error{File: m.meta.file, Err: ErrMetadata, Detail: err.Error()}
	}

	return text, nil
}
