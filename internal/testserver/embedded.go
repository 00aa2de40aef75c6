package testserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const embeddedVersion = embeddedpostgres.V17

// downloaded is the directory of the programs that this process has downloaded.
var downloaded struct {
	sync.Mutex
	bin string
}

// programs returns the directory of this machine's PostgreSQL, or of a downloaded one.
func programs(ctx context.Context) (string, error) {
	bin, err := findPrograms()
	if err == nil {
		return bin, nil
	}
	c, err2 := readConfig()
	if err2 == nil {
		bin, err2 = c.download(ctx)
	}
	if err2 != nil {
		return "", fmt.Errorf("%w; nor can it be downloaded: %w", err, err2)
	}
	return bin, nil
}

// download returns the programs that the module embedded-postgres downloads and unpacks, or has in
// its cache. The module can't be canceled, so its goroutine may outlive ctx.
func (c config) download(ctx context.Context) (string, error) {
	downloaded.Lock()
	defer downloaded.Unlock()
	if downloaded.bin != "" && lacking(downloaded.bin, neededPrograms) == "" {
		return downloaded.bin, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.patience, fmt.Errorf("%s kept silent for %v", c.repository, c.patience))
	defer cancel()
	h, err := homeIn(root(true)) // a file system in memory may forbid programs
	if err != nil {
		return "", err
	}
	dir := h.newDir()
	done := make(chan error, 1)
	go func() { done <- unpack(c.repository, dir) }()
	select { // whichever is first: a late download only fills a directory that is removed
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	logs, _ := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	for _, path := range logs {
		os.Remove(path) // the module leaves them behind when the start fails
	}
	if err != nil {
		return "", fmt.Errorf("testserver: PostgreSQL can't be downloaded: %s", oneLine(err))
	}
	downloaded.bin = filepath.Join(dir, "bin")
	return downloaded.bin, nil
}

// unpack downloads the programs into dir. The module always starts a server afterwards, in its own
// way and not as another user. A locale that does not exist makes that step fail before it begins,
// so the only measure of success is that the programs are there.
func unpack(repository, dir string) error {
	defer http.DefaultClient.CloseIdleConnections()
	err := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(embeddedVersion).BinaryRepositoryURL(repository).
		BinariesPath(dir).RuntimePath(dir + "-run").DataPath(dir + "-run/data").
		Locale("no such locale").Port(uint32(freePort())).Logger(io.Discard)).Start()
	if missing := lacking(filepath.Join(dir, "bin"), neededPrograms); missing != "" {
		return errors.Join(fmt.Errorf("there is no %s in the download", missing), err)
	}
	if runtime.GOOS == "windows" {
		return nil
	}
	return exec.Command("chmod", "-R", "a+rX", dir).Run() // for the servers' account, whatever the umask is
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// freePort returns a port on which nothing listens.
func freePort() int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
