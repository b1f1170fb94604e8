package searchcmd

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var write = flag.Bool("write", false, "write the text that the committed search measures nano on")

// heldoutFile is the text of the committed search for nano: nothing was measured on it before.
const heldoutFile = "heldout.txt"

// TestHeldoutText: the text is what its seed gives, in the manner of testdata/nano/text.
func TestHeldoutText(t *testing.T) {
	w := &writer{draw: rand.New(rand.NewPCG(2, 0x68656c646f7574))}
	world, err := os.ReadFile("../../../../testdata/nano/world.json")
	if err == nil {
		err = json.Unmarshal(world, &w.world)
	}
	if err != nil {
		t.Fatal(err)
	}

	text := w.text(56_000)
	path := filepath.Join(committed, heldoutFile)
	if *write {
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	there, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(there, []byte(text)) {
		t.Errorf("%s is not the text of its seed: %v", path, err)
	}
}

// writer makes texts of the kinds that nano's base was trained on, a third of each: sums, facts of people, tales.
type writer struct {
	draw  *rand.Rand
	world struct {
		Base      []map[string]string
		Relations map[string]struct{ Templates []string }
	}
}

func (w *writer) text(size int) string {
	var docs []string
	for n := 0; n < size; n += len(docs[len(docs)-1]) + 2 {
		docs = append(docs, [...]func() string{w.sums, w.facts, w.tale}[w.draw.IntN(3)]())
	}
	return strings.Join(docs, "\n\n") + "\n"
}

// sums are five of them.
func (w *writer) sums() string {
	var list []string
	for range 5 {
		a, b := w.draw.IntN(20), w.draw.IntN(20)
		list = append(list, fmt.Sprintf("Question: %d + %d =\nAnswer: %d", a, b, a+b))
	}
	return strings.Join(list, "\n\n")
}

// facts are all that there is to say of a person.
func (w *writer) facts() string {
	one := w.world.Base[w.draw.IntN(len(w.world.Base))]
	relations := []string{"born", "job", "firm", "inst", "lang"}
	w.draw.Shuffle(len(relations), func(i, j int) { relations[i], relations[j] = relations[j], relations[i] })
	var list []string
	for _, r := range relations {
		said := strings.ReplaceAll(w.of(w.world.Relations[r].Templates), "{}", one["name"])
		list = append(list, said+" "+one[r]+".")
	}
	return strings.Join(list, " ")
}

func (w *writer) tale() string {
	manner := w.of(strings.Fields("brave calm curious glad lonely proud shy tired"))
	animals := w.two("bear crow fox frog goat hare mouse owl swan wolf")
	places := w.two("bridge cave forest garden harbour market meadow mill orchard tower")
	things := w.two("basket blanket button feather kettle ladder lantern pebble ribbon whistle")
	text := "Once a MANNER ONE lived near the HERE. One day the ONE found a THIS and carried it to the THERE. " +
		w.of([]string{"There a TWO was waiting with a THAT. ", "At the THERE stood a TWO who held a THAT. "}) +
		w.of([]string{
			`"Will you trade your THIS for my THAT?" asked the TWO. `,
			`"I would like to have your THIS," said the TWO. `,
		}) +
		w.of([]string{"The ONE agreed, and gave the THIS to the TWO. ", "The ONE nodded and handed over the THIS. "}) +
		"So the ONE went home with the THAT, and the TWO kept the THIS."

	return strings.NewReplacer("MANNER", manner, "ONE", animals[0], "TWO", animals[1], "HERE", places[0], "THERE",
		places[1],
		"THIS", things[0], "THAT", things[1]).Replace(text)
}

func (w *writer) of(list []string) string { return list[w.draw.IntN(len(list))] }

// two different words.
func (w *writer) two(list string) [2]string {
	words := strings.Fields(list)
	at := w.draw.Perm(len(words))
	return [2]string{words[at[0]], words[at[1]]}
}
