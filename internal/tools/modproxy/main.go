// Command modproxy writes a module proxy of files from a repository, so that a release can be tried before
// its tags are pushed:
//
//	modproxy REPOSITORY DIRECTORY VERSION REVISION MODULE...
//
// GOPROXY=file://DIRECTORY serves the modules then, each in that version with the files of the revision. The first
// module is that of the repository's root.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	if len(os.Args) < 6 {
		fmt.Fprintln(os.Stderr, "usage: modproxy REPOSITORY DIRECTORY VERSION REVISION MODULE...")
		os.Exit(2)
	}
	for _, path := range os.Args[5:] {
		if err := write(os.Args[1], os.Args[2], module.Version{Path: path, Version: os.Args[3]}, os.Args[4], os.Args[5]); err != nil {
			fmt.Fprintln(os.Stderr, "modproxy:", err)
			os.Exit(1)
		}
	}
}

// write adds a module to the proxy.
func write(repository, directory string, m module.Version, revision, root string) error {
	subdirectory := strings.TrimPrefix(strings.TrimPrefix(m.Path, root), "/")
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	dir := filepath.Join(directory, escaped, "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	mod, err := exec.Command("git", "-C", repository, "show", revision+":"+filepath.Join(subdirectory, "go.mod")).Output()
	if err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{m.Version, time.Now().UTC()})
	if err != nil {
		return err
	}
	for file, text := range map[string][]byte{"list": []byte(m.Version + "\n"), m.Version + ".info": info, m.Version + ".mod": mod} {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
			return err
		}
	}
	archive, err := os.Create(filepath.Join(dir, m.Version+".zip"))
	if err != nil {
		return err
	}
	return errors.Join(zip.CreateFromVCS(archive, m, repository, revision, subdirectory), archive.Close())
}
