package testserver

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// A template is a cluster that was never started. initdb takes a second of computing, a copy a tenth of that; so the
// first server of a run makes a template for all others. It lies in the base directory, and the last process that
// leaves that directory removes it, see baseLock.release.

const templatePrefix = "template-"

// makingTemplate keeps the goroutines of one process from making the same template. Processes may do so, and one wins.
var makingTemplate sync.Mutex

// initialize gives the server its cluster, and the password that belongs to it.
func (s *Server) initialize(ctx context.Context) error {
	template, err := s.ensureTemplate(ctx)
	if err != nil {
		return err
	}
	password, err := os.ReadFile(filepath.Join(template, "password"))
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	s.password = string(password)
	if err := copyTree(filepath.Join(template, dataName), s.data(), s.account); err != nil {
		return fmt.Errorf("testserver: copy a cluster: %w", err)
	}
	return nil
}

// ensureTemplate returns the directory of the template for the server's programs.
func (s *Server) ensureTemplate(ctx context.Context) (string, error) {
	version, err := serverVersion(ctx, s.bin)
	if err != nil {
		return "", err
	}
	key := sha256.Sum256([]byte(s.bin + " " + version))
	home := base(filepath.Dir(filepath.Dir(s.dir))) // servers lie in a process's directory, and those in the base
	template := home.path(templatePrefix + hex.EncodeToString(key[:8]))

	makingTemplate.Lock()
	defer makingTemplate.Unlock()
	if _, err := os.Stat(template); err == nil {
		return template, nil
	}
	draft := filepath.Join(s.dir, "template")
	if err := s.makeTemplate(ctx, draft); err != nil {
		return "", err
	}
	// Whole or not at all: nobody ever sees half a template. If another process was faster, its template stays.
	if err := os.Rename(draft, template); err != nil {
		if _, missing := os.Stat(template); missing != nil {
			return "", fmt.Errorf("testserver: %w", err)
		}
		return template, os.RemoveAll(draft)
	}
	return template, nil
}

// makeTemplate runs initdb. Passwords are needed also on loopback, so that what the tests do is what users do.
func (s *Server) makeTemplate(ctx context.Context, dir string) error {
	passwordFile := filepath.Join(dir, "password")
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = os.WriteFile(passwordFile, []byte(rand.Text()), 0o600)
	}
	if err = errors.Join(err, s.account.give(dir), s.account.give(passwordFile)); err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	return s.tool(ctx, "initdb", "--no-sync", "--auth=scram-sha-256", "--pwfile="+passwordFile,
		"--username="+superuser, "--encoding=UTF8", "--locale=C", "--pgdata="+filepath.Join(dir, dataName))
}

// removeTemplates removes every template. The caller holds the lock and knows that nobody uses them.
func (b base) removeTemplates(entries []fs.DirEntry) {
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), templatePrefix) {
			_ = os.RemoveAll(b.path(entry.Name())) // what stays is used by the next run
		}
	}
}

// copyTree copies directories and plain files, which is all that a cluster has, and makes them the account's own.
func copyTree(from, to string, owner *account) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inner, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		target := filepath.Join(to, inner)
		if entry.IsDir() {
			err = os.Mkdir(target, info.Mode().Perm())
		} else {
			err = copyFile(path, target, info.Mode().Perm())
		}
		return errors.Join(err, owner.give(target))
	})
}

func copyFile(from, to string, mode fs.FileMode) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
