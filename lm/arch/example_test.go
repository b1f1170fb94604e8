package arch_test

import (
	"fmt"
	"os"

	"github.com/modelcompress/compress/lm/arch"
)

// What a config.json says of a model's shape, whatever the names of its keys.
func ExampleParseConfig() {
	const file = "../../testdata/nano/base/config.json"
	text, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}

	c, err := arch.ParseConfig(file, text)
	if err != nil {
		panic(err)
	}
	fmt.Println(c.ModelType, "of", c.Layers, "layers,", c.Hidden, "channels,", c.Heads, "heads")
	// Output: llama of 4 layers, 96 channels, 6 heads
}
