package workers

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/jobs"
)

// TestVouchedFolders: an offer counts for nothing where its folder does not say the same, or is not one to work in.
func TestVouchedFolders(t *testing.T) {
	root := t.TempDir()
	dir, other := filepath.Join(root, "run"), filepath.Join(root, "other")
	for _, d := range []string{dir, other} {
		if err := os.MkdirAll(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}

	if err := Vouch(filepath.Join(dir, "offer"), []byte("spec")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}

	for name, c := range map[string]struct {
		folders   []string
		dir, spec string
		good      bool
	}{
		"own":            {nil, dir, "spec", true},
		"below":          {[]string{root}, dir, "spec", true},
		"itself":         {[]string{other, dir}, dir, "spec", true},
		"another offer":  {nil, dir, "spec2", false},
		"another folder": {nil, other, "spec", false},
		"not named":      {[]string{other}, dir, "spec", false},
		"link out of it": {[]string{dir}, filepath.Join(dir, "link"), "spec", false},
		"no folder":      {nil, filepath.Join(root, "none"), "spec", false},
	} {
		w := &Worker{Folders: c.folders}
		if err := w.Vouched(c.dir, "offer", []byte(c.spec)); (err == nil) != c.good ||
			err != nil && !errors.Is(err, jobs.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}

	if os.Geteuid() == 0 { // then another user's folder can be made
		if err := os.Chown(filepath.Join(dir, "offer"), 12345, 12345); err != nil {
			t.Skip(err)
		}
		if err := (&Worker{}).Vouched(dir, "offer", []byte("spec")); !errors.Is(err, jobs.ErrRefused) {
			t.Errorf("another user's folder: %v", err)
		}
	}
}

// TestAccessFlags: flags that go nowhere are refused.
func TestAccessFlags(t *testing.T) {
	for name, w := range map[string]Where{
		"login without cluster": {Access: jobs.Access{Login: "f"}}, "token without listen": {Token: "f"},
		"anyone without listen": {Anyone: true},
		"anyone with token":     {Listen: ":0", Anyone: true, Token: "f"},
		"half a certificate":    {Listen: ":0", Cert: "f"},
		"pin":                   {Cluster: "nats://x", Access: jobs.Access{Pin: "x"}},
		"two logins":            {Cluster: "nats://x", Access: jobs.Access{Login: "a", Creds: "b"}},
	} {
		if err := w.Validate(); err == nil {
			t.Errorf("%s is taken", name)
		}
	}

	good := Where{Cluster: "tls://x", Access: jobs.Access{Login: "a", CA: "b", Cert: "c", Key: "d"}}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}
