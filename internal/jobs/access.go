package jobs

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/modelcompress/compress/internal/safefile"
)

// ErrAccess: what a connection or a server should show, or believe, cannot be used.
var ErrAccess = errors.New("unusable credentials")

// maxSecret bounds files of credentials.
const maxSecret = 1 << 20

// Access is what a connection shows of itself, and by what it knows the server. All may be empty.
type Access struct {
	Login string // file: USER:PASSWORD, or a token, in its first line; takes the place of what the URL says
	Creds string // file of a user's JWT and seed, as the tool nsc writes it
	NKey  string // file of a user's NKey seed

	// file of the authorities that may have signed the server's certificate; empty: those of the system
	CA        string
	Cert, Key string // files of the certificate that this side shows, and of its key
	Pin       string // sha256:HEX of the server's certificate, which then needs no authority
}

// Validate refuses what contradicts itself; no file is looked at.
func (a Access) Validate() error {
	given := 0
	for _, file := range []string{a.Login, a.Creds, a.NKey} {
		if file != "" {
			given++
		}
	}

	switch {
	case given > 1:
		return fmt.Errorf("%w: a login, credentials and an NKey exclude each other", ErrAccess)
	case (a.Cert == "") != (a.Key == ""):
		return fmt.Errorf("%w: a certificate and its key go together", ErrAccess)
	case a.Pin != "" && a.CA != "":
		return fmt.Errorf("%w: a fingerprint and authorities exclude each other", ErrAccess)
	case a.Pin != "":
		_, err := readPin(a.Pin)
		return err
	}

	return nil
}

// options are those of the connection.
func (a Access) options() ([]nats.Option, error) {
	var opts []nats.Option

	for _, file := range []string{a.Login, a.Creds, a.NKey, a.CA, a.Cert, a.Key} {
		if _, err := secret(file); err != nil {
			return nil, err
		}
	}

	if a.Login != "" {
		line, err := firstLine(a.Login)
		if err != nil {
			return nil, err
		}

		user, password, named := strings.Cut(line, ":")
		// a token: of a cluster, or of a server inside a coordinator, which knows it as its workers' password
		if !named {
			user, password = workerUser, line
			opts = append(opts, nats.Token(line))
		}

		opts = append(opts, nats.UserInfo(user, password))
	}

	if a.Creds != "" {
		opts = append(opts, nats.UserCredentials(a.Creds))
	}

	if a.NKey != "" {
		nkey, err := nats.NkeyOptionFromSeed(a.NKey)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", a.NKey, ErrAccess, err)
		}
		opts = append(opts, nkey)
	}

	if a.CA != "" {
		opts = append(opts, nats.RootCAs(a.CA))
	}
	if a.Cert != "" || a.Key != "" {
		opts = append(opts, nats.ClientCert(a.Cert, a.Key))
	}

	if a.Pin != "" {
		want, err := readPin(a.Pin)
		if err != nil {
			return nil, err
		}

		opts = append(opts, nats.Secure(&tls.Config{
			MinVersion: tls.VersionTLS13,
			// The certificate itself is known, so that nobody needs to have signed it.
			InsecureSkipVerify: true,
			VerifyConnection: func(s tls.ConnectionState) error {
				if len(s.PeerCertificates) == 0 || sha256.Sum256(s.PeerCertificates[0].Raw) != want {
					return fmt.Errorf("%w: the server's certificate is not the one of the fingerprint", ErrAccess)
				}
				return nil
			},
		}))
	}

	return opts, nil
}

// pinPrefix names the hash of a fingerprint.
const pinPrefix = "sha256:"

// pin is the fingerprint of a certificate.
func pin(certificate []byte) string {
	sum := sha256.Sum256(certificate)
	return pinPrefix + hex.EncodeToString(sum[:])
}

// readPin reads a fingerprint.
func readPin(text string) (sum [sha256.Size]byte, err error) {
	digits, ok := strings.CutPrefix(text, pinPrefix)
	raw, err := hex.DecodeString(digits)
	if err != nil || !ok || len(raw) != len(sum) {
		return sum, fmt.Errorf("%w: fingerprint %.100q; want sha256: and 64 hexadecimal digits", ErrAccess, text)
	}
	return [sha256.Size]byte(raw), nil
}

// secret reads a file of credentials; without a name there is none.
func secret(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	text, err := safefile.ReadFile(file, maxSecret)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAccess, err)
	}
	return text, nil
}

// firstLine is the first line of a file of credentials, which must not be empty.
func firstLine(file string) (string, error) {
	text, err := secret(file)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line = strings.TrimSpace(line); line == "" {
		return "", fmt.Errorf("%s: %w: its first line is empty", file, ErrAccess)
	}
	return line, nil
}

// writeSecret writes a file that only its owner may read.
func writeSecret(file string, text []byte) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}
