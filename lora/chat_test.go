package lora

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/lora/internal/dataset"
)

// Training reads the chat template that evaluation and the transformers library read: that of a file of its own
// first. One that is given comes before all.
func TestChatTemplateOrder(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"tokenizer_config.json": `{"eos_token": "<e>", "chat_template": "config"}`,
		"chat_template.jinja": "{% for m in messages %}file {{ m.role }}{{ eos_token }}{% endfor %}{% if " +
			"add_generation_prompt %}file {% endif %}",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	for source, want := range map[string]string{"": "file assistant<e>", "{% if messages %}given{% endif %}": "given"} {
		render, err := chatOf(t.Context(), dir, source)
		if err != nil {
			t.Fatal(err)
		}

		if got, _, err := render([]dataset.Message{{Role: "assistant", Content: "x"}}); err != nil || got != want {
			t.Errorf("%q: %q %v, want %q", source, got, err, want)
		}
	}

	if render, err := chatOf(t.Context(), t.TempDir(), ""); render != nil || err != nil {
		t.Errorf("a folder without a template: %v", err)
	}
}
