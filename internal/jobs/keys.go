package jobs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// keys are what a server and its workers know each other by.
type keys struct {
	Token string `json:"token,omitempty"`
	Cert  []byte `json:"cert,omitempty"` // PEM; nil: no encryption
	Key   []byte `json:"key,omitempty"`
}

// lifetime of a certificate that a server makes for itself. Nobody is told to trust it but by its fingerprint.
const lifetime = 10 * 365 * 24 * time.Hour

// leastToken is the length of the shortest token that is not found by trying.
const leastToken = 16

// Loopback reports whether only this machine reaches an address, host:port.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// keys are those that the options name, those that were kept, or new ones.
func (o ServerOptions) keys() (k keys, err error) {
	if k, err = readKeys(o.Keep); err != nil {
		return k, err
	}

	switch {
	case o.Open:
		k.Token = ""
	case o.TokenFile != "":
		if k.Token, err = firstLine(o.TokenFile); err != nil {
			return k, err
		}
		if k.Token = strings.TrimPrefix(k.Token, workerUser+":"); len(k.Token) < leastToken {
			return k, fmt.Errorf("%s: %w: a token of %d characters; want %d or more, by chance", o.TokenFile, ErrAccess,
				len(k.Token), leastToken)
		}
	case k.Token == "":
		k.Token = rand.Text()
	}

	switch {
	case o.Cert != "" || o.Key != "":
		if k.Cert, err = secret(o.Cert); err != nil {
			return k, err
		}
		if k.Key, err = secret(o.Key); err != nil {
			return k, err
		}

		return k, nil // they are kept where they are
	case Loopback(o.Listen) || o.Open:
		k.Cert, k.Key = nil, nil
	case k.Cert == nil:
		if k.Cert, k.Key, err = selfSigned(); err != nil {
			return k, err
		}
	}

	return k, k.keep(o.Keep)
}

// readKeys reads what an earlier server made; nothing if there was none.
func readKeys(file string) (k keys, err error) {
	if file == "" {
		return k, nil
	}

	text, err := secret(file)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}

	if err == nil {
		err = Decode(text, &k)
	}
	if err != nil {
		return k, fmt.Errorf("%s: %w: %w (HINT: delete it: workers then need the new token)", file, ErrAccess, err)
	}

	return k, nil
}

// keep writes the keys where a later server finds them.
func (k keys) keep(file string) error {
	if file == "" {
		return nil
	}

	text, err := json.Marshal(k)
	if err != nil {
		return err
	}

	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return err
	}

	fresh := file + ".new"
	_ = os.Remove(fresh) // of a run that was killed
	if err := writeSecret(fresh, text); err != nil {
		return err
	}

	return os.Rename(fresh, file)
}

// certificate is what the server shows; nil: it does not encrypt.
func (k keys) certificate() (*tls.Certificate, error) {
	if k.Cert == nil {
		return nil, nil
	}
	c, err := tls.X509KeyPair(k.Cert, k.Key)
	if err != nil {
		return nil, fmt.Errorf("%w: certificate: %w", ErrAccess, err)
	}
	return &c, nil
}

// selfSigned makes a certificate and its key, in PEM.
func selfSigned() (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}

	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}

	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "compress queue"}, DNSNames: []string{"compress"},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return nil, nil, err
	}

	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}

	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), nil
}
