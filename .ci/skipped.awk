# What tests that passed, run with -test.v, have to say: how many they are, and of those that were skipped the reason.
/^ *--- PASS/ { passed++ }
/^ *--- SKIP/ {
	sub(/^ +/, "", before)
	sub(/^[a-z0-9_]+\.go:[0-9]+: /, "", before)
	skipped[++n] = "  skipped: " $3 ": " before
}
{ before = $0 }
END {
	printf "PASS: %d tests and parts, %d skipped\n", passed, n
	for (i = 1; i <= n && i <= 40; i++) print skipped[i]
}
