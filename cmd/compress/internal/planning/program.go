package planning

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/modelcompress/compress/kernels"
)

// programOn is what results depend on besides plan, models and data: this very program, and the device.
func programOn(dev kernels.Device) (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	name, _, _ := strings.Cut(dev.Info().Name, ":")
	return fmt.Sprintf("program %s device %s %s", hex.EncodeToString(h.Sum(nil))[:16], name, strings.Join(dev.Info().Features, "+")), nil
}
