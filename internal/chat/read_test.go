package chat

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Where a template is looked for; a file of its own comes before the configuration, as in transformers 5.23.
func TestDefault(t *testing.T) {
	several := `{"chat_template": [{"name": "default", "template": "d"}, {"name": "tools", "template": "t"}]}`
	for name, c := range map[string]struct {
		files map[string]string
		want  string
		err   error
	}{
		"none":                {nil, "", nil},
		"no template":         {map[string]string{configFile: `{"eos_token": "<e>"}`}, "", nil},
		"configuration":       {map[string]string{configFile: `{"chat_template": "c"}`}, "c", nil},
		"file alone":          {map[string]string{templateFile: "f"}, "f", nil},
		"file first":          {map[string]string{configFile: `{"chat_template": "c"}`, templateFile: "f"}, "f", nil},
		"several":             {map[string]string{configFile: several}, "d", nil},
		"file before several": {map[string]string{configFile: several, templateFile: "f"}, "f", nil},
		"no default": {
			map[string]string{configFile: `{"chat_template": [{"name": "tools", "template": "t"}]}`}, "", ErrTemplate,
		},
		"damaged": {map[string]string{configFile: `{`, templateFile: "f"}, "", ErrTemplate},
		"file for the default": {map[string]string{
			configFile: `{"chat_template": [{"name": "tools", "template": "t"}]}`, templateFile: "f",
		}, "f", nil},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}

		if got, err := Default(dir); got.Template != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q %v, want %q %v", name, got.Template, err, c.want, c.err)
		}
	}
}
