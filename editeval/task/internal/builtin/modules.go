package builtin

import (
	"crypto/sha256"
	"encoding/hex"
)

// modules are the Python files that are known, by the SHA-256 of their text: what each of their functions is called
// here. A file that differs by a byte may compute something else, and so is not among them.
var modules = map[string]map[string]string{
	// lm-evaluation-harness 0.4.13: hellaswag/utils.py
	"07d23b60b28f2a4f658dcf8440623a63fe6644854ce9b846a114dde980dc1214": {"process_docs": "docs.hellaswag"},
	// toxigen/utils.py
	"ee3555e7e5100a18c63a3b194003af6e2685f87949b98576ba746f6ee3f16e00": {"doc_to_target": "toxigen.doc_to_target"},
	// truthfulqa/utils.py
	"d3c827d1e2cd442a1e4738b527a18effd48cbb2aed478c12a652311b5ea4dbc8": {
		"process_results_mc2": "utils.process_results_mc2",
	},
	// wikitext/preprocess_wikitext.py
	"a44020374b172159bf5be80a64d2c4194c9d5c77284f696ac666361338c8da7d": wikitext,
	// winogrande/preprocess_winogrande.py
	"e55327629264a98f1d383fda24645b6779afb53fa0bce2150042b9416b1ae006": {
		"doc_to_text":   "preprocess_winogrande.doc_to_text",
		"doc_to_target": "preprocess_winogrande.doc_to_target",
		"doc_to_choice": "preprocess_winogrande.doc_to_choice",
	},
	// The shorter files, with the same functions, that this project's reference runs were made with.
	"7f179a2b50e38fc9e07f1f69a0229eec9ae190720fb369176d5250177f15fd4c": {
		"process_results_mc2": "utils.process_results_mc2",
	},
	"182ef9604cace46eae8e3b2c90550efc580d67bd420f9196016a0e52d72e9c53": wikitext,
}

var wikitext = map[string]string{
	"wikitext_detokenizer": "preprocess_wikitext.wikitext_detokenizer",
	"process_results":      "preprocess_wikitext.process_results",
}

// Python gives the name under which a function of a Python file with this text is known here.
func Python(text []byte, function string) (name string, known bool) {
	sum := sha256.Sum256(text)
	name, known = modules[hex.EncodeToString(sum[:])][function]
	return name, known
}
