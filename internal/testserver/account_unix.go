//go:build unix

package testserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// accountName is whom PostgreSQL runs as when root runs the tests: the server refuses root.
const accountName = "postgres"

// account is whom a server's processes run as. Nil is the caller.
type account struct {
	uid, gid uint32
}

func droppingRoot() bool { return os.Geteuid() == 0 }

func serverAccount() (*account, error) {
	if !droppingRoot() {
		return nil, nil
	}
	entry, err := user.Lookup(accountName)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL refuses to run as root, and there is no user %q to run it as: "+
			"create one (useradd --system %s) or run the tests as another user", accountName, accountName)
	}
	uid, err := strconv.ParseUint(entry.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(entry.Gid, 10, 32)
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("user %q: %w", accountName, err)
	}
	return &account{uid: uint32(uid), gid: uint32(gid)}, nil
}

// give makes path the account's own.
func (a *account) give(path string) error {
	if a == nil {
		return nil
	}
	return os.Lchown(path, int(a.uid), int(a.gid))
}

// checkReach makes sure that the account gets as far as dir. It lies below TMPDIR, which root may have put anywhere.
func (a *account) checkReach(dir string) error {
	if a == nil {
		return nil
	}
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("testserver: %w", err)
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if ok && info.Mode().Perm()&0o001 == 0 && (stat.Uid != a.uid || info.Mode().Perm()&0o100 == 0) {
			return fmt.Errorf("testserver: PostgreSQL runs as %q here, who can't get through %s: set TMPDIR to a "+
				"directory that everybody can enter, like /tmp", accountName, dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

func userKey() string { return strconv.Itoa(os.Geteuid()) }

// checkOwned refuses a directory that somebody else prepared: the place for temporary files is everybody's.
func checkOwned(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("testserver: %s is not a directory of ours alone: remove it or set TMPDIR", dir)
	}
	return nil
}
