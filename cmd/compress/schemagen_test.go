package main

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// object is a part of a schema.
type object = map[string]any

// schemas makes JSON Schemas of Go types, as package encoding/json writes them.
type schemas struct{ defs object }

var (
	textType = reflect.TypeFor[encoding.TextMarshaler]()
	jsonType = reflect.TypeFor[json.Marshaler]()
	rawType  = reflect.TypeFor[cli.Raw]()
)

// reportSchema is the schema of a verb whose results have these types, and which leaves a report of another
// type in its folder, if that is not nil.
func reportSchema(verb, about string, results []reflect.Type, inFolder reflect.Type) []byte {
	s := schemas{object{}}
	forms := []any{}
	for _, t := range results {
		forms = append(forms, s.report(t))
		if t != nil && t.Implements(rawType) { // --json prints it alone, --report writes it under "result"
			forms = append(forms, s.of(t))
		}
	}

	if inFolder != nil {
		forms = append(forms, s.of(inFolder.Elem()))
		about += " The last form is that of report.json in the folder of --out."
	}

	top := object{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "compress " + verb, "description": about,
		"$defs": s.defs,
	}

	if len(forms) == 1 {
		for k, v := range forms[0].(object) {
			top[k] = v
		}
	} else {
		top["anyOf"] = forms
	}

	text, err := json.MarshalIndent(top, "", " ")
	if err != nil {
		panic(err)
	}

	return append(text, '\n')
}

// report is the schema of one form of a report: the head and the keys of a result.
func (s *schemas) report(t reflect.Type) object {
	head := s.fields(reflect.TypeFor[cli.Head]())
	own := object{"properties": object{}, "required": []string{}, "additionalProperties": true}
	switch e := element(t); {
	case t == nil:
		own["additionalProperties"] = false
	case e.Kind() == reflect.Struct && !marshals(e):
		own = s.fields(e)
	case e.Kind() == reflect.Slice:
		own = object{
			"properties": object{"result": s.of(e)}, "required": []string{"result"},
			"additionalProperties": false,
		}
	}

	properties, required := own["properties"].(object), own["required"].([]string)
	for k, v := range head["properties"].(object) {
		properties[k] = v
	}

	required = append(required, head["required"].([]string)...)
	slices.Sort(required)
	return object{
		"type": "object", "properties": properties, "required": slices.Compact(required),
		"additionalProperties": own["additionalProperties"],
	}
}

// element is what a pointer leads to.
func element(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// marshals tells a type that writes its JSON itself.
func marshals(t reflect.Type) bool {
	return t.Implements(jsonType) || reflect.PointerTo(t).Implements(jsonType)
}

// of is the schema of values of a type.
func (s *schemas) of(t reflect.Type) object {
	if t.Kind() == reflect.Pointer {
		return object{"anyOf": []any{s.of(t.Elem()), object{"type": "null"}}}
	}
	if marshals(t) || t.Kind() == reflect.Interface {
		return object{}
	}
	if t.Implements(textType) {
		return object{"type": "string"}
	}

	switch t.Kind() {
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice, reflect.Array:
		if e := t.Elem(); e.Kind() == reflect.Uint8 && !e.Implements(textType) && !marshals(e) {
			return object{"type": []string{"string", "null"}}
		}
		return object{"type": []string{"array", "null"}, "items": s.of(t.Elem())}
	case reflect.Map:
		return object{"type": []string{"object", "null"}, "additionalProperties": s.of(t.Elem())}
	case reflect.Struct:
		return s.named(t)
	}

	return object{"type": "integer"}
}

// named is a reference to a definition, which is made once.
func (s *schemas) named(t reflect.Type) object {
	if t.Name() == "" || strings.Contains(t.Name(), "[") {
		return s.fields(t)
	}
	name := t.String()
	if s.defs[name] == nil {
		s.defs[name] = object{} // for types that hold themselves
		s.defs[name] = s.fields(t)
	}
	return object{"$ref": "#/$defs/" + name}
}

// fields is the schema of a struct.
func (s *schemas) fields(t reflect.Type) object {
	properties, required := object{}, []string{}
	var add func(t reflect.Type, always bool)
	add = func(t reflect.Type, always bool) {
		var inner []reflect.StructField
		for i := range t.NumField() {
			f := t.Field(i)
			tag, hasTag := f.Tag.Lookup("json")
			name, rest, _ := strings.Cut(tag, ",")
			switch {
			case f.Anonymous && name == "" && element(f.Type).Kind() == reflect.Struct:
				inner = append(inner, f)
				continue
			case !f.IsExported() || tag == "-":
				continue
			case !hasTag || name == "":
				name = f.Name
			}

			if properties[name] != nil {
				continue // the outer field hides it
			}

			part := s.of(f.Type)
			optional := strings.Contains(rest, "omitempty") || strings.Contains(rest, "omitzero")
			if optional && f.Type.Kind() == reflect.Pointer {
				part = s.of(f.Type.Elem())
			}

			properties[name] = part
			if !optional && always {
				required = append(required, name)
			}
		}

		for _, f := range inner {
			add(element(f.Type), always && f.Type.Kind() != reflect.Pointer)
		}
	}

	add(t, true)
	slices.Sort(required)
	return object{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}

// checker checks values against a schema, as far as the schemas of this program go.
type checker struct{ defs object }

// check gives the first thing that a schema does not allow, with the place; nil if there is none.
func (c checker) check(schema object, value any, at string) error {
	if ref, ok := schema["$ref"].(string); ok {
		return c.check(c.defs[strings.TrimPrefix(ref, "#/$defs/")].(object), value, at)
	}

	if forms, ok := schema["anyOf"].([]any); ok {
		var faults []string
		for _, form := range forms {
			err := c.check(form.(object), value, at)
			if err == nil {
				return nil
			}
			faults = append(faults, err.Error())
		}

		return fmt.Errorf("no form fits: %s", strings.Join(faults, "; or "))
	}

	if err := checkType(schema["type"], value, at); err != nil {
		return err
	}

	switch v := value.(type) {
	case []any:
		items, _ := schema["items"].(object)
		for i, x := range v {
			if err := c.check(items, x, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case object:
		return c.checkObject(schema, v, at)
	}

	return nil
}

func (c checker) checkObject(schema, value object, at string) error {
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, ok := value[name.(string)]; !ok {
			return fmt.Errorf("%s.%s is missing", at, name)
		}
	}

	properties, _ := schema["properties"].(object)
	for name, x := range value {
		part, known := properties[name].(object)
		if !known {
			switch other := schema["additionalProperties"].(type) {
			case bool:
				if !other {
					return fmt.Errorf("%s.%s is not in the schema", at, name)
				}
			case object:
				part = other
			}
		}

		if err := c.check(part, x, at+"."+name); err != nil {
			return err
		}
	}

	return nil
}

// checkType compares the kind of a value with the type of a schema: a name, or several.
func checkType(want, value any, at string) error {
	names, _ := want.([]any)
	if name, ok := want.(string); ok {
		names = []any{name}
	}
	if len(names) == 0 {
		return nil
	}

	got := "null"
	switch v := value.(type) {
	case bool:
		got = "boolean"
	case string:
		got = "string"
	case []any:
		got = "array"
	case object:
		got = "object"
	case json.Number:
		got = "number"
		if !strings.ContainsAny(v.String(), ".eE") {
			got = "integer"
		}
	}

	if slices.Contains(names, any(got)) || got == "integer" && slices.Contains(names, any("number")) {
		return nil
	}

	return fmt.Errorf("%s is %s, want %v", at, got, names)
}
