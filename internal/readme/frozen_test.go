package readme_test

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// frozenFile lists what programs of users depend on, a line each.
const frozenFile = root + "/testdata/frozen.txt"

var update = flag.Bool("update", false, "put the figures of runs into the documents, and what is new into testdata/frozen.txt")

// TestNothingFrozenIsGone: what a release has had stays. A line of frozen.txt that is gone or changed fails;
// a new one is added by -update. Until the first release, a line that goes is deleted by hand.
func TestNothingFrozenIsGone(t *testing.T) {
	t.Parallel()
	now := map[string]bool{}
	for _, collect := range []func(*testing.T) []string{frozenAPI, frozenMigrations, frozenSQL, frozenCommand, frozenMetrics} {
		lines := collect(t)
		if len(lines) < 15 {
			t.Fatalf("only %d lines: %q", len(lines), lines)
		}
		for _, line := range lines {
			now[line] = true
		}
	}
	data, err := os.ReadFile(frozenFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	kept := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		kept[strings.TrimSpace(line)] = true
	}
	gone, added := difference(kept, now), difference(now, kept)
	for _, line := range gone {
		t.Errorf("gone or changed: %s\n\tPrograms and databases of users depend on it: see \"What stays\" in docs/reference/compatibility.md.", line)
	}
	if *update {
		maps.Copy(kept, now)
		if err := os.WriteFile(frozenFile, []byte(strings.Join(slices.Sorted(maps.Keys(kept)), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if len(added) > 0 {
		t.Errorf("new, and not in testdata/frozen.txt, to which go test ./internal/readme -run Frozen -update adds it:\n\t%s", strings.Join(added, "\n\t"))
	}
}

// difference returns what is in a and not in b, sorted.
func difference(a, b map[string]bool) (all []string) {
	for line := range a {
		if !b[line] {
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return all
}

// publicDirs returns the directories of the packages that programs can import.
func publicDirs(t *testing.T) (dirs []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir():
			return err
		case slices.Contains([]string{"internal", "cmd", "examples", "docs", "testdata", "bin"}, d.Name()), strings.HasPrefix(d.Name(), ".") && name != ".":
			return fs.SkipDir
		}
		if files, _ := filepath.Glob(filepath.Join(root, name, "*.go")); len(files) > 0 {
			dirs = append(dirs, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// frozenAPI returns the exported declarations of all packages but leasetable, whose names follow the protocol. The fields of a struct and the methods of an
// interface have lines of their own, so that one can be added.
func frozenAPI(t *testing.T) (lines []string) {
	t.Helper()
	for _, dir := range publicDirs(t) {
		if dir == "leasetable" {
			continue
		}
		files, _ := filepath.Glob(filepath.Join(root, dir, "*.go"))
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				for _, declaration := range declarations(d) {
					lines = append(lines, "api "+dir+" "+declaration)
				}
			}
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(lines))) // a function may stand in a file for each system
}

// declarations returns the exported declarations of d, a line each.
func declarations(d ast.Decl) (lines []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if !d.Name.IsExported() || d.Recv != nil && !ast.IsExported(strings.TrimLeft(source(d.Recv.List[0].Type), "*")) {
			return nil
		}
		receiver := ""
		if d.Recv != nil {
			receiver = "(" + source(d.Recv.List[0].Type) + ") "
		}
		return []string{"func " + receiver + d.Name.Name + strings.TrimPrefix(source(d.Type), "func")}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					lines = append(lines, typeLines(s)...)
				}
			case *ast.ValueSpec:
				for _, name := range s.Names {
					if name.IsExported() {
						lines = append(lines, strings.TrimSpace(d.Tok.String()+" "+name.Name+" "+source(s.Type)))
					}
				}
			}
		}
	}
	return lines
}

// typeLines returns the lines of a type: itself, and its exported fields and methods.
func typeLines(s *ast.TypeSpec) (lines []string) {
	name := "type " + s.Name.Name
	members := func(kind string, list *ast.FieldList) {
		lines = append(lines, name+" "+kind)
		for _, f := range list.List {
			names := f.Names
			if len(names) == 0 {
				lines = append(lines, name+" embeds "+source(f.Type))
			}
			for _, n := range names {
				if n.IsExported() {
					lines = append(lines, strings.TrimSpace(name+"."+n.Name+" "+source(f.Type)+" "+source(f.Tag)))
				}
			}
		}
	}
	switch k := s.Type.(type) {
	case *ast.StructType:
		members("struct", k.Fields)
	case *ast.InterfaceType:
		members("interface", k.Methods)
	default:
		lines = append(lines, name+strings.Repeat(" =", min(1, int(s.Assign)))+" "+source(s.Type))
	}
	return lines
}

// source returns a node as one line of source, without comments; empty for none.
func source(node ast.Node) string {
	if node == nil || reflect.ValueOf(node).IsNil() {
		return ""
	}
	var b bytes.Buffer
	if err := printer.Fprint(&b, token.NewFileSet(), node); err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// frozenMigrations returns the checksums of the files that databases have run, and of the programs of the
// protocol, which clients in other languages replay.
func frozenMigrations(t *testing.T) (lines []string) {
	t.Helper()
	for _, pattern := range []string{"migrations/*.sql", "testdata/protocol/*.txt"} {
		files, _ := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		for _, file := range files {
			text := strings.ReplaceAll(read(t, file), "\r\n", "\n")
			lines = append(lines, fmt.Sprintf("file %s %x", path.Join(path.Dir(pattern), filepath.Base(file)), sha256.Sum256([]byte(text))))
		}
	}
	return lines
}

// frozenSQL returns the columns of tables and views, the functions that everybody may call, and the
// SQLSTATEs.
func frozenSQL(t *testing.T) (lines []string) {
	t.Helper()
	for line := range strings.Lines(read(t, root+"/internal/schema/objects.txt")) {
		line = strings.TrimSpace(line)
		if object, isPublic := strings.CutSuffix(line, "\ttrue"); isPublic {
			lines = append(lines, "sql "+strings.Join(strings.Fields(object), " "))
		} else if strings.HasPrefix(line, "column ") && !strings.Contains(line, "_pkey.") {
			lines = append(lines, "sql "+strings.Join(strings.Fields(strings.TrimSuffix(line, "\tfalse"))[:3], " "))
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^\| (PG[A-Z0-9]{3}) \|`).FindAllStringSubmatch(read(t, root+"/docs/reference/sql.md")+read(t, root+"/docs/reference/sql-protocol.md"), -1) {
		lines = append(lines, "sqlstate "+m[1])
	}
	return lines
}

// frozenCommand returns the flags, the exit statuses, the variables and the fields of the JSON of the
// command. A test of the command compares its page with the code.
func frozenCommand(t *testing.T) (lines []string) {
	t.Helper()
	page := read(t, root+"/docs/reference/cli.md")
	section := ""
	for line := range strings.Lines(page) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(title)
		}
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		switch {
		case !strings.HasPrefix(line, "| ") || cell == "flag" || cell == "status" || cell == "variable":
		case strings.HasPrefix(cell, "`"):
			lines = append(lines, section+": "+strings.ReplaceAll(cell, "`", ""))
		case section == "Exit status":
			lines = append(lines, section+": "+cell)
		}
	}
	files, _ := filepath.Glob(root + "/pglock/cmd/pglock/*.go")
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile("`json:\"([a-z_]+)").FindAllStringSubmatch(read(t, file), -1) {
			lines = append(lines, "json "+strings.TrimSuffix(filepath.Base(file), ".go")+" "+m[1])
		}
	}
	return lines
}

// frozenMetrics returns the instruments with their kinds, and their attributes.
func frozenMetrics(t *testing.T) (lines []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^//\t(pglock\.[a-z_.]+ .*)$`).FindAllStringSubmatch(read(t, root+"/pglock/otelpglock/doc.go"), -1) {
		lines = append(lines, "metric "+strings.Join(strings.Fields(m[1]), " "))
	}
	return lines
}
