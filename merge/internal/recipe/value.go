package recipe

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Type is the type of a parameter.
type Type uint8

// The types of parameters.
const (
	Number  Type = iota // a finite number
	Integer             // a whole number
	Bool                // a truth value
	Text                // a word; numbers and truth values are taken as they are written
)

// String names a type for messages.
func (t Type) String() string {
	return [...]string{Number: "a number", Integer: "a whole number", Bool: "true or false", Text: "a word"}[t]
}

// Scope says for what a parameter has a value.
type Scope uint8

// The scopes of parameters.
const (
	Shared   Scope = iota // one value per output tensor
	PerInput              // one per input, the base included
	PerModel              // one per input but the base
)

// BasePolicy says what a method makes of base_model.
type BasePolicy uint8

// The policies.
const (
	BaseIgnored  BasePolicy = iota // an input like any other
	BaseOptional                   // special where there is one
	BaseRequired                   // there must be one
)

// Value is the value of a parameter. Integers are in Number.
type Value struct {
	Type   Type
	Number float64
	Bool   bool
	Text   string
}

// NumberValue makes a default of type Number.
func NumberValue(x float64) *Value { return &Value{Type: Number, Number: x} }

// IntegerValue makes a default of type Integer.
func IntegerValue(n int) *Value { return &Value{Type: Integer, Number: float64(n)} }

// BoolValue makes a default of type Bool.
func BoolValue(b bool) *Value { return &Value{Type: Bool, Bool: b} }

// TextValue makes a default of type Text.
func TextValue(s string) *Value { return &Value{Type: Text, Text: s} }

// String writes a value as a recipe does.
func (v Value) String() string {
	switch v.Type {
	case Bool:
		return strconv.FormatBool(v.Bool)
	case Text:
		return v.Text
	}
	return strconv.FormatFloat(v.Number, 'g', -1, 64)
}

// Values are the parameters of a tensor, or of one of its sources, by name. Asking for a name that is absent gives the
// zero value; Has tells.
type Values map[string]Value

// Number gives a parameter of type Number or Integer.
func (v Values) Number(name string) float64 { return v[name].Number }

// Int gives a parameter of type Integer.
func (v Values) Int(name string) int { return int(v[name].Number) }

// Bool gives a parameter of type Bool.
func (v Values) Bool(name string) bool { return v[name].Bool }

// Text gives a parameter of type Text.
func (v Values) Text(name string) string { return v[name].Text }

// Has reports whether a parameter has a value: it was set or has a default.
func (v Values) Has(name string) bool {
	_, ok := v[name]
	return ok
}

// String writes the parameters in the order of their names.
func (v Values) String() string {
	var list []string
	for name, value := range v {
		list = append(list, fmt.Sprintf("%s=%s", name, value))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// Param describes a parameter of a method.
type Param struct {
	Name     string
	Type     Type
	Scope    Scope
	Required bool   // there is no default, and absence is an error
	Default  *Value // nil where not required: the parameter may be absent
}

// Method describes a merge method to Resolve.
type Method struct {
	Name   string
	Params []Param
	Base   BasePolicy

	MinInputs, MaxInputs int // the base included; MaxInputs 0: no bound
	MinModels, MaxModels int // beside the base; MaxModels 0: no bound
}

// Param finds a parameter, nil if there is none of that name.
func (m *Method) Param(name string) *Param {
	for i := range m.Params {
		if m.Params[i].Name == name {
			return &m.Params[i]
		}
	}
	return nil
}
