package corpus

const hashOfTwoRows = "da72f95aa502d5fd17aaa9ed8898384c02a1ceabe69fdc069832b625bf7e26bc"

// drawCases holds what CPython draws; TestSampleDrawsAsPython says how.
var drawCases = []struct {
	seed      uint64
	documents []string
	redrawn   int
	starts    []int
}{
	{
		seed: 0, documents: []string{
			"yyyyyyyyyyyyyyyyyyyy", "gggggggggggggggggggg", "zzzzzzzzzzzzzzzzzzzz",
			"<256>ttttttttttttttttttt",
		},
		redrawn: 2, starts: []int{394, 776, 430},
	},
	{
		seed: 42, documents: []string{
			"iiiiiiiiiiiiiiiiiiii", "llllllllllllllllllll", "gggggggggggggggggggg",
			"jjjjjjjjjjjjjjjjjjjj",
		},
		redrawn: 13, starts: []int{654, 114, 25},
	},
	{
		seed: 12345678901234567,
		documents: []string{
			"mmmmmmmmmmmmmmmmmmmm", "jjjjjjjjjjjjjjjjjjjj", "<256>uuuuuuuuuuuuuuuuuuu",
			"wwwwwwwwwwwwwwwwwwww",
		},
		redrawn: 3, starts: []int{99, 610, 682},
	},
}
