package testserver_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// TestEmbedded downloads this machine's own PostgreSQL from a repository on loopback.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a variable for the directory of caches")
	}
	jar := packPostgres(t)
	var downloads atomic.Int32
	repository := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, ".jar"):
			downloads.Add(1)
			_, _ = w.Write(jar)
		case strings.HasSuffix(r.URL.Path, ".jar.sha256"):
			sum := sha256.Sum256(jar)
			_, _ = w.Write([]byte(hex.EncodeToString(sum[:])))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(repository.Close)

	s := newStage(t)
	cache := t.TempDir()
	env := append(ownCache(t, cache),
		testserver.ServerVariable+"=embedded", testserver.RepositoryVariable+"="+repository.URL)
	for range 2 { // two runs, of which the second finds the download of the first
		a := s.startRemote(env...)
		if a.Error != "" {
			t.Fatal(a.Error)
		}
		if a.Server.Way != testserver.WayEmbedded {
			t.Errorf("got %v", a.Server)
		}
		if !value[bool](t, connect(t, a.Server.URL), "SELECT current_setting('data_directory') LIKE $1", s.dir+"/%") {
			t.Error("the server's data is elsewhere")
		}
		a.leave()
		s.mustEmpty(a.Server.URL)
	}
	if n := downloads.Load(); n != 1 {
		t.Errorf("%d downloads", n)
	}
	archives, err := filepath.Glob(filepath.Join(cache, "pglock-test", "postgres", "*"))
	if err != nil || len(archives) != 1 {
		t.Errorf("the cache has %q, %v", archives, err)
	}
}

func TestEmbeddedUnreachable(t *testing.T) {
	t.Parallel()
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(silent.Close)
	for name, repository := range map[string]string{"refused": "http://127.0.0.1:1", "silent": silent.URL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			a := s.startRemote(append(ownCache(t, t.TempDir()), testserver.ServerVariable+"=embedded",
				testserver.RepositoryVariable+"="+repository, testserver.PatienceVariable+"=300ms")...)
			if !strings.Contains(a.Error, "embedded: PostgreSQL can't be downloaded") {
				t.Errorf("got %+v", a.report)
			}
			a.leave()
			s.mustEmpty()
		})
	}
}

// packPostgres puts this machine's server into an archive like those of the repository: a zip file with a
// tar file in it, compressed by xz. Only the programs are in it; what else the server needs are links.
func packPostgres(t *testing.T) []byte {
	t.Helper()
	bin := binDir(t)
	var packed bytes.Buffer
	archive := tar.NewWriter(&packed)
	for _, program := range []string{"initdb", "pg_ctl", "postgres"} {
		text, err := os.ReadFile(filepath.Join(bin, program))
		if err != nil {
			t.Fatal(err)
		}
		header := &tar.Header{Name: "bin/" + program, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(text))}
		if err := archive.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"share", "lib"} {
		if target := filepath.Join(filepath.Dir(bin), name); exists(target) {
			header := &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
			if err := archive.WriteHeader(header); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	var jar bytes.Buffer
	outer := zip.NewWriter(&jar)
	inner, err := outer.CreateHeader(&zip.FileHeader{Name: "postgres.txz", Method: zip.Store})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inner.Write(xzStored(packed.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := outer.Close(); err != nil {
		t.Fatal(err)
	}
	return jar.Bytes()
}

// binDir returns where a private server of this machine has its programs.
func binDir(t *testing.T) string {
	t.Helper()
	server := pgtest.Server(t, testserver.Options{})
	conn := connect(t, server.URL())
	return value[string](t, conn, "SELECT setting FROM pg_config WHERE name = 'BINDIR'")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestStandbyNeedsItsProgram uses a server that has no pg_basebackup, like a downloaded one.
func TestStandbyNeedsItsProgram(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("links to programs don't work there")
	}
	bin := binDir(t)
	partial, err := os.MkdirTemp("", "bin-") //nolint:usetesting // the servers' account must get in
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(partial) })
	if err := os.Chmod(partial, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"initdb", "pg_ctl", "postgres"} {
		path, err := exec.LookPath(filepath.Join(bin, program))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(partial, filepath.Base(path))); err != nil {
			t.Fatal(err)
		}
	}
	server := pgtest.Server(t, testserver.Options{BinDir: partial})
	if _, err := server.Standby(t.Context()); !errors.Is(err, testserver.ErrNoProgram) || !strings.Contains(err.Error(), "pg_basebackup") {
		t.Errorf("got %v, want an error that names pg_basebackup", err)
	}
}
