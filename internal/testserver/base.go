package testserver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

// base is a directory of one user, for all that this package puts on disk:
//
//	pglock-test-<user>-<namespace>/
//	    lock                    held while a supervisor is started or leftovers are swept
//	    shared-<owner>/         one per run: state.json, supervisor.log, the server's own files
//	    private-<owner>/        one per process with private servers
//	    template-<version>/     what servers are copied from
//
// <owner> is a process.ID, so whoever finds a directory can tell whether it is still needed. Whoever leaves the base
// last removes it.
type base string

// diskBase lies among the temporary files. Durable servers need it.
func diskBase() base { return base(filepath.Join(os.TempDir(), baseName())) }

// memoryBase lies in a file system in memory. It is empty where there is none, or where TMPDIR says where to go.
func memoryBase() base {
	root := memoryRoot()
	if root == "" || os.Getenv("TMPDIR") != "" {
		return ""
	}
	return base(filepath.Join(root, baseName()))
}

// fastBase is where all other servers go: in memory if there is plenty at this moment, since a cluster has a thousand
// files and file systems on disk can take a millisecond for each.
func fastBase() base {
	if fast := memoryBase(); fast != "" && plentyOfMemory(memoryRoot()) {
		return fast
	}
	return diskBase()
}

// bases returns every base that there may be.
func bases() []base {
	if fast := memoryBase(); fast != "" {
		return []base{fast, diskBase()}
	}
	return []base{diskBase()}
}

// baseWith returns the base that has a directory of that name, or else the one where it is to be made.
func baseWith(name string) base {
	for _, b := range bases() {
		if _, err := os.Stat(b.path(name)); err == nil {
			return b
		}
	}
	return fastBase()
}

func baseName() string { return "pglock-test-" + userKey() + "-" + namespace() }

// namespace marks pids that can be compared with ours.
func namespace() string {
	sum := sha256.Sum256([]byte(process.Namespace()))
	return hex.EncodeToString(sum[:4])
}

func (b base) path(name string) string { return filepath.Join(string(b), name) }

func (b base) exists() bool {
	_, err := os.Stat(string(b))
	return err == nil
}

// prepare creates the directory if need be. Where root hands the servers to another account, that account may walk
// through, but not look around: state files hold passwords.
func (b base) prepare() error {
	if err := os.Mkdir(string(b), 0o700); err != nil && !os.IsExist(err) {
		return fmt.Errorf("testserver: %w", err)
	}
	if err := checkOwned(string(b)); err != nil {
		return err
	}
	return letThrough(string(b))
}

// make creates a directory that a process keeps. The caller holds the lock.
func (b base) make(name string) (string, error) {
	dir := b.path(name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("testserver: %w", err)
	}
	return dir, letThrough(dir)
}

// letThrough lets the servers' account reach what lies below dir.
func letThrough(dir string) error {
	if !droppingRoot() {
		return nil
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	return nil
}
