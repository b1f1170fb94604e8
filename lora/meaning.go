package lora

// meanings says in a line what the kinds of adapters are.
var meanings = map[string]string{
	"lora":    "W + (alpha/rank)·B·A, in PEFT's form; rslora, DoRA and ranks by module are settings of it",
	"mos":     "Mixture of Shards: A and B of all layers are put together from shards of common pools",
	"vera":    "A and B are random and shared by all layers, only scales of their rows are trained",
	"prolora": "most ranks of A and B are rotated copies of a part, some are not shared",
	"miss":    "one small factor for each matrix, repeated along its outputs",
	"gralora": "each matrix is cut into parts with factors of their own",
	"shira":   "some elements of each matrix are trained, the others stay",
	"rasa":    "some ranks of each layer's own beside a pool of ranks that all layers weigh (RaSA)",
	"share":   "LoRA of which all layers have A, B or both in common (ShareLoRA)",
	"full":    "every parameter of the model",
}

// Meaning says in a line what a kind of [Kinds] is; "" for other words.
func Meaning(kind string) string { return meanings[kind] }
