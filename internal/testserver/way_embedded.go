package testserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// embeddedVersion is what the embedded way downloads.
const embeddedVersion = embeddedpostgres.V17

// startEmbedded downloads PostgreSQL's programs, or takes them from the cache of an earlier download, and starts a
// server from them.
func (c config) startEmbedded(ctx context.Context, dir string) (*running, error) {
	bin, err := c.fetch(ctx, dir)
	if err != nil {
		return nil, err
	}
	return startFrom(ctx, bin, dir)
}

// fetch returns a directory below dir with PostgreSQL's programs. The download is done by a process of its own: the
// module that does it can't be cancelled, a process can.
func (c config) fetch(ctx context.Context, dir string) (string, error) {
	const longest = 5 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	if err := c.reachRepository(ctx); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(dir, "embedded-")
	if err == nil {
		err = letThrough(dir)
	}
	if err != nil {
		return "", fmt.Errorf("testserver: %w", err)
	}
	cmd, err := job{Task: taskFetch, Dir: dir}.command(ctx, fetchLog)
	if err != nil {
		return "", err
	}
	log := cmd.Stdout.(*os.File)
	defer log.Close()
	cmd.Env = append(cmd.Env, "TMPDIR="+dir, "TMP="+dir, RepositoryVariable+"="+c.repository)
	cmd.SysProcAttr = toolAttr(nil)
	runtime.LockOSThread() // see tool
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(log.Name()) // what it said is only an addition
		return "", fmt.Errorf("testserver: download PostgreSQL from %s: %w: %s",
			c.repository, errors.Join(ctx.Err(), err), lastLines(string(said)))
	}
	return filepath.Join(unpacked(dir), "bin"), nil
}

const fetchLog = "fetch.log"

func unpacked(dir string) string { return filepath.Join(dir, "unpacked") }

// reachRepository makes sure that somebody answers, or that it doesn't matter because there is a download already.
func (c config) reachRepository(ctx context.Context) error {
	if home, err := os.UserHomeDir(); err == nil {
		archives, _ := filepath.Glob(filepath.Join(home, ".embedded-postgres-go", "*-"+string(embeddedVersion)+".txz"))
		if len(archives) > 0 {
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, c.repository, nil)
	if err != nil {
		return fmt.Errorf("testserver: %s: %w", RepositoryVariable, err)
	}
	client := http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("testserver: PostgreSQL can't be downloaded: %s", oneLine(err))
	}
	return response.Body.Close()
}

// fetchBinaries is the job of the process that downloads. The module always starts a server once it has unpacked the
// programs, in its own way and as the user it runs as. It is given a data directory that looks initialized and can't
// be started, so it stops there; the server is started by this package, like any other.
func fetchBinaries(dir string) error {
	begun := filepath.Join(dir, "begun") // the module makes this directory when it has unpacked
	data := filepath.Join(dir, "pretended")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("17"), 0o600); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	err = embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(embeddedVersion).
		BinaryRepositoryURL(os.Getenv(RepositoryVariable)).
		BinariesPath(unpacked(dir)).
		RuntimePath(begun).
		DataPath(data).
		Port(uint32(port)).
		Logger(io.Discard)).Start()
	if err == nil {
		return errors.New("testserver: the embedded server started without a cluster")
	}
	if _, missing := os.Stat(begun); missing != nil {
		return err
	}
	if missing := missingPrograms(filepath.Join(unpacked(dir), "bin")); missing != "" {
		return fmt.Errorf("there is no %s in the download", missing)
	}
	return letRead(unpacked(dir))
}

// letRead lets the servers' account read and run what root unpacked, whatever the umask.
func letRead(dir string) error {
	if !droppingRoot() {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if entry.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
