package main

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

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"

	"github.com/pglock/pglock-go/internal/testserver"
)

const version = embeddedpostgres.V17

// download puts the programs that the module embedded-postgres downloads, or has in its cache, into
// the task's directory. The module can't be canceled, so its goroutine may outlive ctx.
func download(ctx context.Context, task testserver.Task) error {
	ctx, cancel := context.WithTimeoutCause(ctx, task.Patience, fmt.Errorf("%s kept silent for %v", task.Repository, task.Patience))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- unpack(task.Repository, task.Dir) }()
	var err error
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
		return fmt.Errorf("PostgreSQL can't be downloaded: %s", oneLine(err))
	}
	return nil
}

// unpack downloads the programs into dir. The module always starts a server afterwards, in its own
// way and not as another user. A locale that does not exist makes that step fail before it begins,
// so the only measure of success is that initdb is there.
func unpack(repository, dir string) error {
	defer http.DefaultClient.CloseIdleConnections()
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	err = embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(version).BinaryRepositoryURL(repository).CachePath(filepath.Join(cache, "pglock-test", "postgres")).
		BinariesPath(dir).RuntimePath(dir + "-run").DataPath(dir + "-run/data").
		Locale("no such locale").Port(port).Logger(io.Discard)).Start()
	if missing, failed := filepath.Glob(filepath.Join(dir, "bin", "initdb*")); failed != nil || len(missing) == 0 {
		return errors.Join(errors.New("there is no initdb in the download"), err)
	}
	if runtime.GOOS == "windows" {
		return nil
	}
	return exec.Command("chmod", "-R", "a+rX", dir).Run() // for the servers' account, whatever the umask is
}

// freePort returns a port on which nothing listens.
func freePort() (uint32, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return uint32(listener.Addr().(*net.TCPAddr).Port), nil
}
