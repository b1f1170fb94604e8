# Of a run with -test.v that failed: the tests that did, with what they said.
/^=== RUN/ { said = ""; next }
/^ *--- FAIL/ { printf "%s%s\n", said, $0; said = ""; next }
/^ *--- / { said = ""; next }
/_test\.go:[0-9]+: / { said = said $0 "\n" }
/^panic|^FAIL|^SIG|^qemu|^fatal/ { print }
